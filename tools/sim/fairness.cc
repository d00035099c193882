#include "tools/sim/fairness.h"

#include <algorithm>
#include <utility>

namespace kvern::sim {
namespace {

// Divisible by the small weights, so that little is lost in the division.
constexpr uint64_t kScale = 5040;

}  // namespace

FairnessMeter::FairnessMeter(std::vector<uint32_t> weights)
    : weights_(std::move(weights)),
      served_(weights_.size()),
      waiting_(weights_.size()),
      pairs_(weights_.size() * weights_.size()) {}

void FairnessMeter::Add(const RouterEffects& effects, Checker& checker) {
  if (weights_.size() < 2) return;
  for (const ToClient& to : effects.to_clients) {
    if (const auto* accepted = std::get_if<Accepted>(&to.message)) {
      Record* record = checker.Find(accepted->request_id);
      record->in_line = true;
      Wait(record->tenant, 1);
    } else if (const auto* deltas = std::get_if<Deltas>(&to.message)) {
      for (const Delta& delta : deltas->deltas) {
        Serve(checker.Find(delta.request_id)->tenant, kOutputWeight * delta.token_ids.size());
      }
    } else if (const auto* error = std::get_if<RequestError>(&to.message)) {
      if (Record* record = checker.Find(error->request_id)) Leave(*record);
    }
  }
  for (const ToWorker& to : effects.to_workers) {
    const auto* commands = std::get_if<Commands>(&to.message);
    if (commands == nullptr) continue;
    for (const Dispatch& dispatch : commands->dispatches) {
      Record* record = checker.Find(dispatch.request_id);
      Leave(*record);
      Serve(record->tenant, dispatch.prompt.size());
    }
  }
}

void FairnessMeter::Leave(Record& record) {
  if (!std::exchange(record.in_line, false)) return;
  Wait(record.tenant, -1);
}

void FairnessMeter::Wait(uint32_t tenant, int change) {
  bool waited = waiting_[tenant] > 0;
  waiting_[tenant] += static_cast<uint64_t>(change);
  if (waited != (waiting_[tenant] > 0)) Update(tenant);
}

void FairnessMeter::Serve(uint32_t tenant, uint64_t tokens) {
  served_[tenant] += tokens * kScale / weights_[tenant];
  Update(tenant);
}

void FairnessMeter::Update(uint32_t tenant) {
  auto tenants = static_cast<uint32_t>(weights_.size());
  for (uint32_t other = 0; other < tenants; ++other) {
    if (other != tenant) UpdatePair(std::min(tenant, other), std::max(tenant, other));
  }
}

void FairnessMeter::UpdatePair(uint32_t a, uint32_t b) {
  Pair& pair = pairs_[a * weights_.size() + b];
  bool both_wait = waiting_[a] > 0 && waiting_[b] > 0;
  int64_t difference = static_cast<int64_t>(served_[a]) - static_cast<int64_t>(served_[b]);
  if (both_wait && !pair.both_wait) pair.lowest = pair.highest = difference;
  pair.both_wait = both_wait;
  if (!both_wait) return;
  pair.lowest = std::min(pair.lowest, difference);
  pair.highest = std::max(pair.highest, difference);
  gap_ = std::max(gap_, static_cast<uint64_t>(pair.highest - pair.lowest) / kScale);
}

}  // namespace kvern::sim
