#include "tools/sim/queue_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvern::sim {
namespace {

// So many may pass the head of the queue, each so many times smaller, as router/core/dispatch.cc
// promises.
constexpr uint32_t kMaxPassed = 16;
constexpr uint64_t kBackfillShare = 4;

}  // namespace

QueueWatch::QueueWatch(std::vector<uint32_t> weights, Checker& checker, Checker::Report violation)
    : checker_(checker), violation_(std::move(violation)), meter_(std::move(weights)) {}

void QueueWatch::Heard(Record& record, uint64_t tokens) {
  uint64_t expected = std::min<uint64_t>(tokens, record.output_to_come);
  record.output_to_come -= static_cast<uint32_t>(expected);
  meter_.Heard(record.tenant, record.priority, tokens, tokens - expected);
}

void QueueWatch::Answered(Record& record) {
  record.answered = true;
  meter_.Ended(record.tenant, record.priority, std::exchange(record.output_to_come, 0));
}

void QueueWatch::Hear(const RouterEffects& effects) {
  for (const ToClient& to : effects.to_clients) Told(to.message);
}

void QueueWatch::GroupHas(uint32_t group, uint64_t blocks) {
  group_blocks_[group] = blocks;
  fewest_blocks_ = std::min(fewest_blocks_, blocks);
}

void QueueWatch::TurnOver(const RouterEffects& effects) {
  std::vector<Front> fronts = TakeFronts();
  std::vector<uint64_t> started;  // blocks of the groups
  for (const ToWorker& to : effects.to_workers) {
    const auto* commands = std::get_if<Commands>(&to.message);
    if (commands == nullptr) continue;
    for (const Dispatch& dispatch : commands->dispatches) {
      const Record* record = checker_.Find(dispatch.request_id);
      started.push_back(record == nullptr ? UINT64_MAX : group_blocks_.at(record->group));
      CheckBand(dispatch.request_id, fronts);
    }
  }
  CheckPassed(started, fronts);
  std::string unfair = meter_.TurnOver();
  if (!unfair.empty()) violation_(absl::StrCat("L5: ", unfair));
  ++turn_;
}

void QueueWatch::Told(const RouterToClient& message) {
  if (const auto* deltas = std::get_if<Deltas>(&message)) {
    for (const Delta& delta : deltas->deltas) {
      if (!delta.usage && !checker_.any_forgotten()) continue;
      Record* record = checker_.Find(delta.request_id);
      if (record == nullptr) continue;
      if (record->forgotten) Violate("S10", delta.request_id, "goes on for a former process");
      if (delta.usage) Answered(*record);
    }
  } else if (const auto* accepted = std::get_if<kvern::Accepted>(&message)) {
    Accepted(accepted->request_id);
  } else if (const auto* error = std::get_if<RequestError>(&message)) {
    Record* record = checker_.Find(error->request_id);
    if (record != nullptr && !error->details.still_open) Answered(*record);
  }
}

void QueueWatch::Accepted(const RequestId& id) {
  Record* record = checker_.Find(id);
  if (record == nullptr) return;
  record->answered = false;  // the first of two may have been
  record->passed = 0;
  Line& line = lines_[record->priority][record->tenant];
  // The first of two has ended, and may still be in the middle of the line.
  if (record->repeated) std::erase_if(line, [&](const Waiting& one) { return one.id == id; });
  line.push_back({id, turn_});
  meter_.LinedUp(record->tenant, record->priority, checker_.NeedOf(*record) * kBlockSize);
}

void QueueWatch::ClientGone(uint32_t client) {
  for (auto& [band, tenants] : lines_) {
    for (auto& [tenant, line] : tenants) {
      for (const Waiting& waiting : line) {
        Record& record = *checker_.Find(waiting.id);
        if (record.client != client || !record.client_lost) continue;
        // Lined up in this turn: perhaps only after the end of those before it.
        if (waiting.turn == turn_) unsure_.insert({band, tenant});
        Answered(record);
      }
    }
  }
}

bool QueueWatch::Gone(const RequestId& id) const {
  const Record& record = *checker_.Find(id);
  return record.dispatched || record.answered;
}

std::vector<QueueWatch::Front> QueueWatch::TakeFronts() {
  std::vector<Front> fronts;
  for (auto& [band, tenants] : lines_) {
    for (auto& [tenant, line] : tenants) {
      if (!line.empty()) fronts.push_back(TakeFront(band, tenant, line));
    }
  }
  return fronts;
}

QueueWatch::Front QueueWatch::TakeFront(int32_t band, uint32_t tenant, Line& line) {
  Front front{band, tenant, /*unseen=*/checker_.HasBlockQuota(tenant), /*stays=*/true};
  auto may_have_been_head = [&] {
    const Record& record = *checker_.Find(line.front().id);
    front.largest = std::max(front.largest, checker_.NeedOf(record));
  };
  for (; !line.empty() && Gone(line.front().id); line.pop_front()) {
    may_have_been_head();
    front.stays = false;
  }
  if (line.empty()) {
    if (!front.unseen) meter_.Leaves(tenant, band);
    return front;
  }
  may_have_been_head();
  front.head = &line.front().id;
  // Whoever lines up when all before it have left has begun to wait.
  bool anew = line.front().turn == turn_;
  front.stays = front.stays && !anew;
  if (front.unseen) return front;
  // It has no claim on what smaller groups serve meanwhile.
  if (checker_.NeedOf(*checker_.Find(*front.head)) > fewest_blocks_) {
    too_large_.insert({band, tenant});
    front.unseen = true;
    meter_.Leaves(tenant, band);
  } else {
    bool returns = too_large_.erase({band, tenant}) > 0;
    meter_.Waits(tenant, band, anew || returns);
  }
  return front;
}

bool QueueWatch::MayPass(uint64_t blocks, int32_t band, const std::vector<Front>& fronts) {
  return std::any_of(fronts.begin(), fronts.end(), [&](const Front& front) {
    return front.band >= band && blocks * kBackfillShare <= front.largest;
  });
}

void QueueWatch::CheckBand(const RequestId& id, const std::vector<Front>& fronts) {
  Record* record = checker_.Find(id);
  if (record == nullptr) return;
  uint64_t need = checker_.NeedOf(*record);
  uint32_t output = record->answered ? 0 : record->max_tokens * record->n - record->output_to_come;
  record->output_to_come += output;
  meter_.Started(record->tenant, record->priority, record->prompt_tokens,
                 /*head=*/!MayPass(need, record->priority, fronts), output);
  // The highest band of which one could start, but for its size.
  auto top = std::find_if(fronts.begin(), fronts.end(), [](const Front& front) {
    return front.head != nullptr && !front.unseen;
  });
  if (top == fronts.end() || top->band <= record->priority) return;
  if (MayPass(need, top->band, fronts)) return;
  Violate("S6", id,
          absl::StrCat("started in band ", record->priority, " with ", need,
                       " blocks while request ", top->head->low, " waits in band ", top->band));
}

void QueueWatch::CheckPassed(const std::vector<uint64_t>& started,
                             const std::vector<Front>& fronts) {
  // The head of the queue is the one of the highest band, if that has one tenant: else it is not
  // seen whose turn it is. Only what was the head throughout the turn was passed by all of them.
  if (started.empty() || fronts.empty()) return;
  const Front& front = fronts[0];
  bool alone = fronts.size() == 1 || fronts[1].band < front.band;
  if (unsure_.contains({front.band, front.tenant})) return;
  if (!alone || front.head == nullptr || !front.stays) return;
  if (checker_.HasBlockQuota(front.tenant)) return;
  Record& head = *checker_.Find(*front.head);
  // What went where it cannot go did not pass it.
  const uint64_t need = checker_.NeedOf(head);
  head.passed += static_cast<uint32_t>(
      std::ranges::count_if(started, [need](uint64_t blocks) { return blocks >= need; }));
  if (head.passed > kMaxPassed) {
    Violate("S6", *front.head,
            absl::StrCat(head.passed, " have passed it at the head of the queue"));
  }
}

void QueueWatch::Violate(const char* name, const RequestId& id, const std::string& what) {
  violation_(absl::StrCat(name, ": request ", id.low, ": ", what));
}

}  // namespace kvern::sim
