// Finds, among a fixed set of strings, the longest that begins at a place in a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvern {

// Immutable after the last Insert; then any number of threads may search it.
class TokenTrie {
 public:
  struct Match {
    uint32_t id;
    size_t length;  // Bytes.
  };

  // REQUIRES: the text is not empty and was not inserted before.
  void Insert(std::string_view text, uint32_t id);

  // The longest inserted string that text begins with and whose id `allowed` accepts; length 0 when
  // there is none. Looks at no more bytes than the longest inserted string has, and adds their
  // number to `steps`.
  template <typename Allowed>
  Match Longest(std::string_view text, const Allowed& allowed, uint64_t* steps) const {
    Match best{0, 0};
    uint32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      ++*steps;
      node = Child(node, static_cast<uint8_t>(text[i]));
      if (node == kRoot) break;
      const Node& here = nodes_[node];
      if (here.ends && allowed(here.id)) best = {here.id, i + 1};
    }
    return best;
  }

 private:
  static constexpr uint32_t kRoot = 0;  // No node's child, so it also says "no such child".

  struct Node {
    bool ends = false;
    uint32_t id = 0;
  };

  uint32_t Child(uint32_t node, uint8_t byte) const {
    if (node == kRoot) return first_[byte];
    auto it = children_.find(uint64_t{node} << 8 | byte);
    return it == children_.end() ? kRoot : it->second;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);
  // Most places of a text begin no string: the root's children are an array.
  std::vector<uint32_t> first_ = std::vector<uint32_t>(256, kRoot);
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // node << 8 | byte -> child
};

}  // namespace kvern
