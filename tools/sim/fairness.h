// How far the service of tenants that wait drifts apart, as it is given.
#pragma once

#include <cstdint>
#include <vector>

#include "router/core/router.h"
#include "tools/sim/checker.h"

namespace kvern::sim {

// What an output token costs beside an input token, as the router charges it.
inline constexpr uint64_t kOutputWeight = 2;

// Service: a tenant's prompt tokens when they are dispatched, and its output tokens, twice, when
// they are delivered, over its weight. The gap of two tenants is what the difference of their
// services has changed by, at most, while both had requests in line. (Sheng et al., "Fairness in
// Serving Large Language Models", OSDI 2024, bound it for their virtual token counter, which
// charges the same.)
class FairnessMeter {
 public:
  // [tenants] 1 or more each.
  explicit FairnessMeter(std::vector<uint32_t> weights);

  // What the router said in one turn; `checker` knows the requests.
  void Add(const RouterEffects& effects, Checker& checker);

  // Its client is gone: it does not wait any more.
  void Leave(Record& record);

  // The largest gap of any pair so far, in tokens of a tenant of weight 1.
  uint64_t gap() const { return gap_; }

 private:
  struct Pair {
    bool both_wait = false;
    int64_t lowest = 0;  // of the difference while both wait
    int64_t highest = 0;
  };

  void Wait(uint32_t tenant, int change);
  void Serve(uint32_t tenant, uint64_t tokens);
  void Update(uint32_t tenant);
  void UpdatePair(uint32_t a, uint32_t b);

  std::vector<uint32_t> weights_;
  std::vector<uint64_t> served_;   // tokens, times kScale over the weight
  std::vector<uint64_t> waiting_;  // requests in line
  std::vector<Pair> pairs_;        // [a * tenants + b], a < b
  uint64_t gap_ = 0;
};

}  // namespace kvern::sim
