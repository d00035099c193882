#include "tools/sim/queue_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvern::sim {
namespace {

// So many may pass the head of the queue, as router/core/dispatch.cc promises.
constexpr uint32_t kMaxPassed = 16;

}  // namespace

QueueWatch::QueueWatch(Checker& checker, Checker::Report violation)
    : checker_(checker), violation_(std::move(violation)) {}

void QueueWatch::Hear(const RouterEffects& effects) {
  for (const ToClient& to : effects.to_clients) Told(to.message);
}

void QueueWatch::TurnOver(const RouterEffects& effects) {
  size_t started = 0;
  for (const ToWorker& to : effects.to_workers) {
    const auto* commands = std::get_if<Commands>(&to.message);
    if (commands != nullptr) started += commands->dispatches.size();
  }
  CheckPassed(started);
}

void QueueWatch::Told(const RouterToClient& message) {
  if (const auto* deltas = std::get_if<Deltas>(&message)) {
    for (const Delta& delta : deltas->deltas) {
      if (!delta.usage && !checker_.any_forgotten()) continue;
      Record* record = checker_.Find(delta.request_id);
      if (record == nullptr) continue;
      if (record->forgotten) Violate("S10", delta.request_id, "goes on for a former process");
      if (delta.usage) record->answered = true;
    }
  } else if (const auto* accepted = std::get_if<kvern::Accepted>(&message)) {
    Accepted(accepted->request_id);
  } else if (const auto* error = std::get_if<RequestError>(&message)) {
    Record* record = checker_.Find(error->request_id);
    if (record != nullptr && !error->details.still_open) record->answered = true;
  }
}

void QueueWatch::Accepted(const RequestId& id) {
  const Record* record = checker_.Find(id);
  if (record == nullptr) return;
  one_line_ = one_line_ && record->tenant == 0 && record->priority == 0;
  if (one_line_) line_.push_back(id);
}

void QueueWatch::ClientGone(uint32_t client) {
  std::erase_if(line_, [&](const RequestId& id) {
    const Record& record = *checker_.Find(id);
    return record.client == client && record.client_lost;
  });
}

void QueueWatch::CheckPassed(size_t started) {
  if (!one_line_) return line_.clear();
  auto gone = [&](const RequestId& id) {
    const Record& r = *checker_.Find(id);
    return r.dispatched || r.answered;
  };
  // Only what was the head at the beginning of the turn, and still is, was passed by all of them.
  bool same = !line_.empty() && line_.front() == head_ && !gone(head_);
  if (same) {
    Record& head = *checker_.Find(head_);
    head.passed += static_cast<uint32_t>(started);
    if (started > 0 && head.passed > kMaxPassed) {
      Violate("S6", head_, absl::StrCat(head.passed, " have passed it at the head of the queue"));
    }
  }
  while (!line_.empty() && gone(line_.front())) line_.pop_front();
  head_ = line_.empty() ? RequestId{} : line_.front();
}

void QueueWatch::Violate(const char* name, const RequestId& id, const std::string& what) {
  violation_(absl::StrCat(name, ": request ", id.low, ": ", what));
}

}  // namespace kvern::sim
