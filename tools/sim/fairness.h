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
// than it was served since it last was the head. That is checked as it really was, what passed a
// blocked head included; and by the theorem, whoever was how often the head, with what passes
// counted: since a tenant's last start it was served a prompt and the outputs that its requests
// could still make; and it starts one only as the head, or while it is ahead of the tenant that
// has least by no more than that one's next request can take.
class FairnessMeter {
 public:
  // [tenants] 1 or more each.
  explicit FairnessMeter(std::vector<uint32_t> weights);

  // ---- In one turn of the router, in this order.
  // It hears of output, of which so many tokens are beyond what was said to come.
  void Heard(uint32_t tenant, int32_t band, uint64_t tokens, uint64_t beyond = 0);
  // One was lined up that needs blocks for so many tokens.
  void LinedUp(uint32_t tenant, int32_t band, uint64_t need_tokens);
  // It started one; `head`: the request cannot have passed another one. `output`: that may come.
  void Started(uint32_t tenant, int32_t band, uint64_t prompt_tokens, bool head,
               uint64_t output = 0);
  // So much of that will not come.
  void Ended(uint32_t tenant, int32_t band, uint64_t output);
  // The tenant has a request in line now; `anew`: it may have had none for a moment.
  void Waits(uint32_t tenant, int32_t band, bool anew);
  void Leaves(uint32_t tenant, int32_t band);
  // It may have charged some of what was heard and some not.
  void Forget();
  // The end of the turn: by what a gap is too large, or "".
  std::string TurnOver();

  // The largest gap of any pair so far, in tokens of a tenant of weight 1.
  uint64_t gap() const;
  // By the theorem, for that pair.
  uint64_t allowed_gap() const;

 private:
  struct Account {
    uint64_t served = 0;   // tokens, times kScale over the weight, as are all of these
    uint64_t started = 0;  // in this turn
    bool head = false;     // among them was one
    uint64_t since_head = 0;
    uint64_t most_since_head = 0;
    // ---- for the theorem, the largest so far
    uint64_t most_prompt = 0;
    uint64_t most_output = 0;  // of what ran, that might come
    uint64_t most_need = 0;    // of one request, as service
    uint64_t most_late = 0;    // output between two starts of what had ended, as was thought
    uint64_t output = 0;       // that may come now
    uint64_t late = 0;         // since the last start
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
  // By how much more than the other it may have been served, by the theorem.
  uint64_t MostAhead(uint32_t tenant, const Account& ahead, const Account& behind);
  std::string Compare(Band& band, uint32_t a, uint32_t b);

  std::vector<uint32_t> weights_;
  std::map<int32_t, Band> bands_;  // in use
  uint64_t stamp_ = 0;
  uint64_t gap_ = 0;
  uint64_t gap_allowed_ = 0;
};

}  // namespace kvern::sim
