// A running hash over everything the router says and when: equal for equal runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "cluster/base/rng.h"
#include "router/core/router.h"

namespace kvern::sim {

class Digest {
 public:
  void Add(uint64_t word) { hash_ = Mix64(hash_ ^ word); }
  void Add(std::string_view text);
  void Add(const RouterEffects& effects);
  uint64_t hash() const { return hash_; }

 private:
  void Add(const RequestId& id);
  void Add(const Delta& delta);
  void Add(const Dispatch& dispatch);
  void Add(const RouterToClient& message);
  void Add(const RouterToWorker& message);

  uint64_t hash_ = 0;
};

}  // namespace kvern::sim
