#include "tools/sim/fairness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvern::sim {
namespace {

// Divisible by the small weights, so that little is lost in the division.
constexpr uint64_t kScale = 5040;
// What may be lost in the divisions of a run, here and in the router.
constexpr uint64_t kRounding = 2 * kScale;

}  // namespace

FairnessMeter::FairnessMeter(std::vector<uint32_t> weights) : weights_(std::move(weights)) {}

uint64_t FairnessMeter::gap() const { return gap_ / kScale; }

uint64_t FairnessMeter::allowed_gap() const { return gap_allowed_ / kScale; }

uint64_t FairnessMeter::Scaled(uint32_t tenant, uint64_t tokens) const {
  return tokens * kScale / weights_[tenant];
}

FairnessMeter::Account& FairnessMeter::Touch(uint32_t tenant, int32_t number) {
  Band& band = bands_[number];
  if (band.accounts.empty()) {
    band.accounts.resize(weights_.size());
    band.pairs.resize(weights_.size() * weights_.size());
  }
  Account& account = band.accounts[tenant];
  if (!std::exchange(account.touched, true)) band.touched.push_back(tenant);
  return account;
}

void FairnessMeter::LinedUp(uint32_t tenant, int32_t band, uint64_t need_tokens) {
  if (weights_.size() < 2) return;
  Account& account = Touch(tenant, band);
  account.most_need = std::max(account.most_need, Scaled(tenant, kOutputWeight * need_tokens));
}

void FairnessMeter::Ended(uint32_t tenant, int32_t band, uint64_t output) {
  if (weights_.size() >= 2) Touch(tenant, band).output -= output;
}

void FairnessMeter::Heard(uint32_t tenant, int32_t band, uint64_t tokens, uint64_t beyond) {
  if (weights_.size() < 2) return;
  Account& account = Touch(tenant, band);
  account.output -= tokens - beyond;
  account.late += beyond;
  account.most_late = std::max(account.most_late, account.late);
  uint64_t service = Scaled(tenant, kOutputWeight * tokens);
  account.served += service;
  account.since_head += service;
}

void FairnessMeter::Started(uint32_t tenant, int32_t band, uint64_t prompt_tokens, bool head,
                            uint64_t output) {
  if (weights_.size() < 2) return;
  Account& account = Touch(tenant, band);
  account.most_prompt = std::max(account.most_prompt, prompt_tokens);
  account.late = 0;  // what was heard of in this turn came before
  account.output += output;
  account.most_output = std::max(account.most_output, account.output);
  account.started += Scaled(tenant, prompt_tokens);
  account.head = account.head || head;
}

void FairnessMeter::Waits(uint32_t tenant, int32_t band, bool anew) {
  if (weights_.size() >= 2 && anew) Touch(tenant, band).waits_since = ++stamp_;
}

void FairnessMeter::Leaves(uint32_t tenant, int32_t band) {
  if (weights_.size() >= 2) Touch(tenant, band).waits_since = 0;
}

void FairnessMeter::Forget() {
  for (auto& [number, band] : bands_) {
    for (uint32_t tenant = 0; tenant < weights_.size(); ++tenant) {
      if (band.accounts[tenant].waits_since > 0) Waits(tenant, number, /*anew=*/true);
    }
  }
}

std::string FairnessMeter::TurnOver() {
  std::string wrong;
  for (auto& [number, band] : bands_) {
    for (uint32_t tenant : band.touched) {
      Account& account = band.accounts[tenant];
      account.most_since_head = std::max(account.most_since_head, account.since_head);
      uint64_t started = std::exchange(account.started, 0);
      account.served += started;
      // The order within a turn is not seen: all of it may have come after the head.
      if (std::exchange(account.head, false)) account.since_head = 0;
      account.since_head += started;
      account.most_since_head = std::max(account.most_since_head, account.since_head);
    }
    for (uint32_t tenant : std::exchange(band.touched, {})) {
      band.accounts[tenant].touched = false;
      for (uint32_t other = 0; other < weights_.size(); ++other) {
        if (other == tenant) continue;
        std::string what = Compare(band, std::min(tenant, other), std::max(tenant, other));
        if (!what.empty()) wrong = absl::StrCat("in band ", number, ", ", what);
      }
    }
  }
  return wrong;
}

uint64_t FairnessMeter::MostAhead(uint32_t tenant, const Account& ahead, const Account& behind) {
  uint64_t output = ahead.most_output + ahead.most_late;
  return Scaled(tenant, ahead.most_prompt + kOutputWeight * output) + behind.most_need;
}

std::string FairnessMeter::Compare(Band& band, uint32_t a, uint32_t b) {
  const Account& one = band.accounts[a];
  const Account& two = band.accounts[b];
  if (one.waits_since == 0 || two.waits_since == 0) return "";
  Pair& pair = band.pairs[a * weights_.size() + b];
  int64_t difference = static_cast<int64_t>(one.served) - static_cast<int64_t>(two.served);
  bool same = pair.waits_since[0] == one.waits_since && pair.waits_since[1] == two.waits_since;
  if (!same) pair = {{one.waits_since, two.waits_since}, difference, difference};
  pair.lowest = std::min(pair.lowest, difference);
  pair.highest = std::max(pair.highest, difference);
  auto gap = static_cast<uint64_t>(pair.highest - pair.lowest);
  uint64_t by_theorem = MostAhead(a, one, two) + MostAhead(b, two, one);
  if (gap > gap_) {
    gap_ = gap;
    gap_allowed_ = by_theorem;
  }
  uint64_t as_it_was = one.most_since_head + two.most_since_head;
  if (gap <= std::min(as_it_was, by_theorem) + kRounding) return "";
  return absl::StrCat("the services of tenants ", a, " and ", b, ", that wait, drifted apart by ",
                      gap / kScale, " tokens, allowed: ", std::min(as_it_was, by_theorem) / kScale,
                      by_theorem < as_it_was ? " by the theorem" : "");
}

}  // namespace kvern::sim
