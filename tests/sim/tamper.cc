#include "tests/sim/tamper.h"

#include <utility>

namespace kvern::sim {
namespace {

// Longer than any ttft deadline that clients ask for, shorter than the default one.
constexpr Duration kHold = 3 * kSecond;

}  // namespace

void Tamper::Apply(Time now, RouterEffects& effects) {
  if (bug_ == Bug::kNone) return;
  for (ToClient& to : effects.to_clients) {
    if (auto* deltas = std::get_if<Deltas>(&to.message)) SpoilDeltas(to.client, *deltas);
  }
  SpoilErrors(effects);
  for (ToWorker& to : effects.to_workers) {
    auto* commands = std::get_if<Commands>(&to.message);
    if (bug_ == Bug::kDropCancel && commands != nullptr) commands->cancels.clear();
  }
  if (bug_ == Bug::kLateDispatch) HoldCommands(now, effects);
}

void Tamper::SpoilDeltas(PeerId client, Deltas& deltas) {
  for (const Delta& delta : deltas.deltas) {
    if (bug_ == Bug::kDeltaAfterEnd) last_[delta.request_id] = delta;
  }
  if (deltas.deltas.empty() || !rng_.Chance(1, 8)) return;
  size_t index = rng_.Below(deltas.deltas.size());
  Delta& victim = deltas.deltas[index];
  auto erase = [&] { deltas.deltas.erase(deltas.deltas.begin() + static_cast<int64_t>(index)); };
  if (bug_ == Bug::kWrongToken) victim.token_ids[0] = (victim.token_ids[0] + 1) % vocab_;
  if (bug_ == Bug::kRepeatDelta) deltas.deltas.push_back(Delta(victim));
  if (bug_ == Bug::kDropDelta && !victim.usage) erase();
  if (bug_ != Bug::kSwapDeltas) return;
  auto held = swapped_.find(client);
  if (held != swapped_.end()) {
    deltas.deltas.push_back(held->second);
    swapped_.erase(held);
  } else if (!victim.usage) {
    swapped_[client] = victim;
    erase();
  }
}

void Tamper::SpoilErrors(RouterEffects& effects) {
  std::vector<ToClient> out;
  for (ToClient& to : effects.to_clients) {
    const auto* error = std::get_if<RequestError>(&to.message);
    if (error == nullptr) {
      out.push_back(std::move(to));
      continue;
    }
    if (bug_ == Bug::kDropTerminal) continue;
    PeerId client = to.client;
    RequestError copy = *error;
    out.push_back(std::move(to));
    if (bug_ == Bug::kRepeatError && copy.code != ErrorCode::kCancelled) {
      out.push_back({client, copy});
    }
    auto last = last_.find(copy.request_id);
    if (last != last_.end() && copy.code == ErrorCode::kCancelled) {
      out.push_back({client, Deltas{{last->second}}});
    }
  }
  effects.to_clients = std::move(out);
}

void Tamper::HoldCommands(Time now, RouterEffects& effects) {
  std::vector<ToWorker> out;
  if (hold_until_ >= 0 && now >= hold_until_) {
    out = std::exchange(held_, {});
    hold_until_ = -1;
  }
  for (ToWorker& to : effects.to_workers) {
    if (std::holds_alternative<Commands>(to.message)) {
      if (hold_until_ < 0 && out.empty()) hold_until_ = now + kHold;
      held_.push_back(std::move(to));
    } else {
      out.push_back(std::move(to));
    }
  }
  effects.to_workers = std::move(out);
}

}  // namespace kvern::sim
