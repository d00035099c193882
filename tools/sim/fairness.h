// How far the services of tenants that wait drift apart, and how far they may.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvern::sim {

// What an output token costs beside an input token, as the router charges it.
inline constexpr uint64_t kOutputWeight = 2;

// Service, of a tenant in a band: its prompt tokens when they are dispatched, and its output
// tokens, twice, when the router hears of them, over its weight. The gap of two tenants is what the
// difference of their services has changed by, at most, while both had requests in line.
//
// Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, theorem 4.4, bound it by
// 2 max(w_p L_input, w_q M): a head is of the tenant that has least, so nobody is ahead by more
// than it was served since it last was the head. Here that is what it really was served since then,
// what passed a blocked head included: the bound is the largest of these of the one and of the
// other.
class FairnessMeter {
 public:
  // [tenants] 1 or more each.
  explicit FairnessMeter(std::vector<uint32_t> weights);

  // ---- In one turn of the router, in this order.
  // It hears of output.
  void Heard(uint32_t tenant, int32_t band, uint64_t tokens);
  // It started one; `head`: the request cannot have passed another one.
  void Started(uint32_t tenant, int32_t band, uint64_t prompt_tokens, bool head);
  // The tenant has a request in line now; `anew`: it may have had none for a moment.
  void Waits(uint32_t tenant, int32_t band, bool anew);
  void Leaves(uint32_t tenant, int32_t band);
  // It may have charged some of what was heard and some not.
  void Forget();
  // The end of the turn: by what a gap is too large, or "".
  std::string TurnOver();

  // The largest gap of any pair so far, in tokens of a tenant of weight 1.
  uint64_t gap() const;

 private:
  struct Account {
    uint64_t served = 0;   // tokens, times kScale over the weight, as are all of these
    uint64_t started = 0;  // in this turn
    bool head = false;     // among them was one
    uint64_t since_head = 0;
    uint64_t most_since_head = 0;
    uint64_t waits_since = 0;  // a stamp; 0: it does not wait
    bool touched = false;      // in this turn
  };
  struct Pair {
    uint64_t waits_since[2] = {0, 0};
    int64_t lowest = 0;  // of the difference while both wait
    int64_t highest = 0;
  };
  struct Band {
    std::vector<Account> accounts;  // [tenants]
    std::vector<Pair> pairs;        // [a * tenants + b], a < b
    std::vector<uint32_t> touched;  // tenants
  };

  Account& Touch(uint32_t tenant, int32_t band);
  uint64_t Scaled(uint32_t tenant, uint64_t tokens) const;
  std::string Compare(Band& band, uint32_t a, uint32_t b);

  std::vector<uint32_t> weights_;
  std::map<int32_t, Band> bands_;  // in use
  uint64_t stamp_ = 0;
  uint64_t gap_ = 0;
};

}  // namespace kvern::sim
