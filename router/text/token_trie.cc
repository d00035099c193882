#include "router/text/token_trie.h"

#include "cluster/base/check.h"

namespace kvern {

void TokenTrie::Insert(std::string_view text, uint32_t id) {
  KVERN_CHECK(!text.empty());
  uint32_t node = kRoot;
  for (char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    uint32_t child = Child(node, byte);
    if (child == kRoot) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      if (node == kRoot) {
        first_[byte] = child;
      } else {
        children_.emplace(uint64_t{node} << 8 | byte, child);
      }
    }
    node = child;
  }
  KVERN_CHECK(!nodes_[node].ends) << "inserted twice: id " << id;
  nodes_[node] = {true, id};
}

}  // namespace kvern
