// IdMap: a hash map without iteration, so that no decision can depend on a hash order.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "cluster/base/check.h"

namespace kvern {

// Pointers returned are valid until the next Insert or Erase. Whoever must visit all entries keeps
// its own ordered list of keys beside the map.
template <typename Key, typename Value>
class IdMap {
 public:
  size_t size() const { return map_.size(); }
  bool empty() const { return map_.empty(); }

  Value* Find(const Key& key) {
    auto it = map_.find(key);
    return it == map_.end() ? nullptr : &it->second;
  }
  const Value* Find(const Key& key) const {
    auto it = map_.find(key);
    return it == map_.end() ? nullptr : &it->second;
  }

  // REQUIRES: the key is present.
  Value& At(const Key& key) {
    Value* value = Find(key);
    KVERN_CHECK(value != nullptr);
    return *value;
  }
  const Value& At(const Key& key) const {
    const Value* value = Find(key);
    KVERN_CHECK(value != nullptr);
    return *value;
  }

  // REQUIRES: the key is absent.
  Value& Insert(const Key& key, Value value) {
    auto [it, inserted] = map_.emplace(key, std::move(value));
    KVERN_CHECK(inserted);
    return it->second;
  }

  // True if the key was present.
  bool Erase(const Key& key) { return map_.erase(key) != 0; }

 private:
  absl::flat_hash_map<Key, Value> map_;
};

}  // namespace kvern
