// What must hold of the whole, beside what each client reads (checker.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "tools/sim/simulation.h"

namespace kvern::sim {
namespace {

// Steps of a group's life after which the router knows how long they take.
constexpr uint64_t kStepsToLearn = 200;
// Of so few that wait the router looks at each, whoever is too large for some group.
constexpr size_t kSureToBeSeen = 64;

}  // namespace

void Simulation::Violate(const std::string& what) {
  violations_.push_back(absl::StrCat("at ", now() / kMicrosecond, " us: ", what));
}

void Simulation::CheckCheaply(const RouterEffects& effects) {
  for (const ToClient& to : effects.to_clients) NoteAnswer(to.message);
  breaker_.Hear(now(), effects);
  for (const ToWorker& to : effects.to_workers) CheckCommands(to);
  CheckSent();
  flow_.Take(now(), effects);
  checker_.TurnOver();
  NoteLinedUp(effects);
  watch_.Hear(effects);
  CheckNotes(effects);
  watch_.TurnOver(effects);
  for (const RequestId& id : checker_.TakeLost()) {
    checker_.Ended(now(), *checker_.Find(id), /*released=*/false);
  }
  if (front_end_->NextDeadline() <= now()) Violate("S7: a timer is due after Flush");
}

void Simulation::NoteAnswer(const RouterToClient& message) {
  auto ended = [this](const RequestId& id, bool whole) {
    Record* record = checker_.Find(id);
    // Its worker is not at its end where a stop string or an error was.
    if (record != nullptr) checker_.Ended(now(), *record, whole && !record->has_stop);
  };
  if (const auto* accepted = std::get_if<Accepted>(&message)) {
    checker_.LinedUp(now(), accepted->request_id);
    waiting_.push_back(accepted->request_id);
    // Of two with one id, the first has ended.
    if (Record* record = checker_.Find(accepted->request_id)) record->dispatched = false;
  } else if (const auto* error = std::get_if<RequestError>(&message)) {
    if (!error->details.still_open) ended(error->request_id, /*whole=*/false);
  } else if (const auto* deltas = std::get_if<Deltas>(&message)) {
    for (const Delta& delta : deltas->deltas) {
      if (delta.usage) ended(delta.request_id, /*whole=*/true);
    }
  }
}

void Simulation::NoteLinedUp(const RouterEffects& effects) {
  lined_up_ = {queue_.executed(), {}};
  for (const ToClient& to : effects.to_clients) {
    const auto* accepted = std::get_if<Accepted>(&to.message);
    if (accepted != nullptr) lined_up_.requests.push_back(accepted->request_id);
  }
  if (sent_at_ == queue_.executed()) lined_up_ = Sent();
}

void Simulation::CheckCommands(const ToWorker& to) {
  uint32_t owner = network_.At(to.worker).owner;
  SimGroup& group = *groups_[owner];
  if (const auto* start = std::get_if<GroupStart>(&to.message)) {
    known_groups_[group.name()] = start->kv_blocks;
    watch_.GroupHas(owner, start->kv_blocks);
    if (start->kv_blocks != group.kv_blocks() && start->group_incarnation == group.incarnation()) {
      Violate("S5: a group's capacity is not the smallest of its ranks'");
    }
    // Who has it takes a rank's place among the GPUs of that start.
    if (start->comm_id != CommIdOf(start->group_incarnation)) {
      Violate("S2: ranks were handed the id of another start of their group");
    }
  }
  if (const auto* commands = std::get_if<Commands>(&to.message)) {
    Sent& sent = sent_[owner];
    sent_at_ = queue_.executed();
    if (sent.event != queue_.executed()) sent = {queue_.executed(), {}};
    if (!commands->dispatches.empty() &&
        commands->group_incarnation == leaving_[network_.At(to.worker).owner]) {
      Violate(absl::StrCat("S13: ", group.name(), " got work, it was told to leave"));
    }
    for (const Dispatch& dispatch : commands->dispatches) {
      checker_.Dispatched(now(), dispatch, owner, group.kv_blocks());
      // Where nobody tells it of first tokens it would take all that was sent for waiting for one.
      if (hears_reports_) breaker_.Started(now(), owner, dispatch.request_id);
      sent.requests.push_back(dispatch.request_id);
    }
    if (!commands->dispatches.empty()) sent_now_.insert({owner, to.worker});
  }
}

void Simulation::CheckLeave(const std::string& name, const RouterEffects& effects) {
  for (const ToClient& to : effects.to_clients) {
    const auto* error = std::get_if<RequestError>(&to.message);
    if (error == nullptr || error->code != ErrorCode::kUnavailable) continue;
    if (!error->details.retry_after_ms) continue;  // its worker refused it, in the same turn
    const Record* record = checker_.Find(error->request_id);
    if (record == nullptr || !record->dispatched) continue;
    if (groups_[record->group]->name() != name) continue;
    Violate(absl::StrCat("S13: request ", error->request_id.low, " was lost when ", name, " left"));
  }
}

void Simulation::CheckNotes(const RouterEffects& effects) {
  for (const Note& note : effects.notes) {
    if (note.event == "group_left") CheckLeave(note.fields[0].second, effects);
    if (note.event == "group_left" || note.event == "group_lost") {
      ++failures_[note.fields[0].second].causes;
    }
    if (note.event == "client_lost") {
      watch_.ClientGone(network_.At(std::stoull(note.fields[0].second)).owner);
    }
    if (note.event != "group_lost") continue;
    const SimGroup* group = GroupNamed(note.fields[0].second);
    if (++losses_[group->name()] > group->faults()) {
      Violate(absl::StrCat("L4: ", group->name(),
                           " was lost without a fault: ", note.fields[1].second));
    }
  }
}

SimGroup* Simulation::GroupNamed(const std::string& name) {
  auto index = group_by_name_.find(name);
  KVERN_CHECK(index != group_by_name_.end()) << name;
  return groups_[index->second].get();
}

RouterStatus Simulation::TakeStatus() {
  RouterStatus status = front_end_->Status(now());
  // A cancel reaches the worker between two steps, and its report the router: nothing else may
  // hold the blocks, unless the group sleeps.
  Duration step = 0;
  for (const auto& group : groups_) step = std::max(step, group->longest_step());
  Duration limit = 2 * (options_.max_delay + options_.router_turn + step) + 10 * kMillisecond;
  for (double seconds : status.counters.cancel_to_free_seconds) {
    if (groups_delay_ || seconds * 1e9 <= static_cast<double>(limit)) continue;
    Violate(absl::StrCat("R6: blocks came back ", seconds, " s after the cancel"));
  }
  return status;
}

void Simulation::CheckFully() {
  // A check looks at all that runs; each group still gets its share of events between two of them,
  // and of hundreds of groups, which all do the same, a part of it.
  uint64_t every = options_.full_check_every;
  uint64_t groups = groups_.size();
  uint64_t share = std::max<uint64_t>(every, every / 10 * groups);
  next_full_check_ = queue_.executed() + share * std::max<uint64_t>(1, groups / 100);
  front_end_->Audit();
  for (const auto& group : groups_) group->Audit();  // S4
  RouterStatus status = TakeStatus();
  flow_.CheckFully(now(), status);
  for (const GroupStatus& seen : status.groups) {
    if (seen.live) CheckGroup(seen);
  }
  CheckWaiting();
  CheckIdle(status);
  CheckExpectedWait();
}

void Simulation::CheckIdle(const RouterStatus& status) {
  if (!hears_reports_ || options_.optimistic || waiting_.size() > kSureToBeSeen) return;
  for (const GroupStatus& group : status.groups) {
    bool takes_work = group.live && !group.draining && group.worst_case_blocks == 0 &&
                      group.report_age < options_.router.group_lease / 2;
    if (!takes_work) continue;
    RouterBooks books = front_end_->Books(now(), GroupNamed(group.name)->peers()[0]);
    if (!books.live || books.failures > 0) continue;
    for (const RequestId& id : waiting_) {
      const Record& record = *checker_.Find(id);
      if (record.answered || record.dispatched || checker_.HasBlockQuota(record.tenant)) continue;
      if (checker_.NeedOf(record) > group.total_blocks) continue;
      absl::StatusOr<RequestStatus> found = front_end_->Find(id);
      if (!found.ok() || found->state != "queued") continue;
      Violate(absl::StrCat("S14: request ", id.low, " waits, and ", group.name, " is idle: ",
                           found->reason));
    }
  }
}

void Simulation::CheckGroup(const GroupStatus& seen) {
  if (seen.report_age > options_.router.group_lease + options_.router_turn) {
    Violate(absl::StrCat("R7: ", seen.name, " has been silent for ", seen.report_age / kMillisecond,
                         " ms and is not given up"));
  }
  if (seen.drift_blocks != 0) {
    Violate(absl::StrCat("S5: drift of ", seen.name, " is ", seen.drift_blocks));
  }
  CheckHeld(*GroupNamed(seen.name), seen.worst_case_blocks);
}

void Simulation::CheckReport(PeerId reporter, const RouterBooks& before, const Heard& heard) {
  RouterBooks books = front_end_->Books(now(), reporter);
  if (!books.live) return;
  const SimGroup& group = *groups_[network_.At(reporter).owner];
  if (books.drift_blocks != 0) {
    Violate(absl::StrCat("S5: drift of ", group.name(), " is ", books.drift_blocks));
  }
  CheckHeld(group, books.worst_case_blocks);
  auto its =
      std::ranges::count_if(heard.nacks, [](const Nack& nack) { return IsFault(nack.code); });
  // Each end of a group counts once, however many waited there.
  Failures& known = failures_[group.name()];
  uint64_t most = before.live ? before.failures : known.counted + known.causes;
  if (books.failures > most + static_cast<uint64_t>(its)) {
    Violate(absl::StrCat("R8: ", group.name(), " counts as having failed ", books.failures,
                         " times, ", most, " before a report that says so of ", its));
  }
  known = {books.failures, 0};
}

void Simulation::CheckHeld(const SimGroup& group, uint64_t worst_case_blocks) {
  if (!group.up() || group.scheduler() == nullptr) return;
  uint64_t held = group.scheduler()->reserved_blocks();
  if (worst_case_blocks >= held && held >= group.scheduler()->used_blocks()) return;
  Violate(absl::StrCat("S5: ", group.name(), " holds ", held, " blocks, the router counts ",
                       worst_case_blocks));
}

// Right after the turn the router's numbers are still those it decided by.
void Simulation::CheckSent() {
  RouterBooks queue = front_end_->Books(now(), 0);
  if (queue.queue_entries > options_.router.queue_entries ||
      queue.queue_bytes > options_.router.queue_bytes) {
    Violate(absl::StrCat("S6: the queue has ", queue.queue_entries, " entries, ", queue.queue_bytes,
                         " bytes"));
  }
  for (auto [owner, leader] : std::exchange(sent_now_, {})) {
    RouterBooks books = front_end_->Books(now(), leader);
    if (books.live) CheckSentTo(*groups_[owner], leader, books, sent_[owner].requests);
  }
}

void Simulation::CheckSentTo(const SimGroup& group, PeerId leader, const RouterBooks& books,
                             const std::vector<RequestId>& sent) {
  if (books.report_age >= options_.router.group_lease / 2) {
    Violate(absl::StrCat("S12: ", group.name(), " got work, its last report is ",
                         books.report_age / kMillisecond, " ms old"));
  }
  // Alone it may have all; and a guaranteed request that came after a standard one, too.
  bool promised = !checker_.Find(sent.back())->guaranteed && books.running >= 2;
  uint64_t limit = books.total_blocks * (100 - options_.router.watermark_percent) / 100;
  if (promised && !options_.optimistic && front_end_->ReservedBlocks(leader) > limit) {
    Violate(absl::StrCat("P2: ", group.name(), " is expected to come to ",
                         front_end_->ReservedBlocks(leader), " blocks, the watermark is at ",
                         limit));
  }
  size_t before = books.running - std::min<size_t>(books.running, sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    // Alone it is started, whatever is predicted.
    if (before + i > 0) CheckInTime(group, *checker_.Find(sent[i]));
  }
}

void Simulation::CheckInTime(const SimGroup& group, const Record& record) {
  // The router has seen how long its steps take: some reports are older than those it relies on.
  bool reports_late = options_.faults[Fault::kGroupLinkSlow] > 0;
  if (options_.optimistic) return;  // promises no such thing
  if (reports_late || group.steps_of_life() < kStepsToLearn) return;
  // And what prompts cost, where this one costs more than a step.
  bool is_long = record.prompt_tokens > SimGroup::TellingPrefill(options_.batch_tokens);
  Duration heard_after = options_.max_delay + options_.router_turn;
  if (is_long && group.prefills_since() > now() - heard_after) return;
  Duration prefill = 0;
  for (uint32_t done = 0; done < record.prompt_tokens;) {
    uint32_t chunk = std::min(options_.batch_tokens, record.prompt_tokens - done);
    StepWork work;
    work.Add(done, chunk);
    prefill += StepTime(options_.model_cost, options_.device_cost, work);
    done += chunk;
  }
  // The router predicts, so half of what the prefill takes alone is what must be left.
  if (now() + prefill / 2 <= record.arrived + record.ttft_deadline) return;
  Violate(absl::StrCat("S7: a request was started whose prefill takes ", prefill / kMicrosecond,
                       " us, ", (record.arrived + record.ttft_deadline - now()) / kMicrosecond,
                       " us before its deadline"));
}

// Nobody is lined up for a wait that is predicted to be too long.
void Simulation::CheckExpectedWait() {
  if (lined_up_.event != queue_.executed() || lined_up_.requests.size() != 1) return;
  const Record& record = *checker_.Find(lined_up_.requests[0]);
  absl::StatusOr<RequestStatus> found = front_end_->Find(lined_up_.requests[0]);
  if (!found.ok() || found->state != "queued" || !found->expected_wait_ms) return;
  if (found->wait_at_last_rate) return;  // no group takes work: what comes waits for its deadline
  Duration allowed =
      std::min(record.arrived + record.ttft_deadline - now(), options_.router.queue_wait_max);
  if (static_cast<Duration>(*found->expected_wait_ms) * kMillisecond <= allowed) return;
  Violate(absl::StrCat("S6: lined up for a wait of ", *found->expected_wait_ms,
                       " ms, allowed: ", allowed / kMillisecond));
}

void Simulation::CheckWaiting() {
  uint64_t largest = 0;
  for (const auto& [name, blocks] : known_groups_) largest = std::max(largest, blocks);
  std::erase_if(waiting_, [&](const RequestId& id) {
    const Record& record = *checker_.Find(id);
    if (record.dispatched || record.answered) return true;
    uint64_t need = checker_.NeedOf(record);
    bool too_large = largest != 0 && need > largest;
    // Its deadline, and the turn that comes for it.
    Duration late = now() - record.arrived - record.ttft_deadline;
    if (!too_large && late <= options_.router_turn) return false;
    absl::StatusOr<RequestStatus> found = front_end_->Find(id);
    if (!found.ok() || found->state != "queued") return true;  // the answer is under way
    Violate(too_large ? absl::StrCat("S8: a request that needs ", need,
                                     " blocks waits, the largest group has ", largest)
                      : absl::StrCat("L3: a request waits ", late / kMicrosecond,
                                     " us after its deadline"));
    return true;
  });
}

void Simulation::CheckEnd() {
  CheckFully();
  checker_.AllAnswered();  // L1
  RouterStatus status = TakeStatus();
  uint64_t live = 0;
  for (const GroupStatus& group : status.groups) {
    live += group.live ? 1 : 0;
    if (group.reserved_blocks != 0 || group.used_blocks != 0) {
      Violate(absl::StrCat("L2: ", group.name, " still has ", group.reserved_blocks,
                           " blocks reserved, ", group.used_blocks, " used"));
    }
  }
  if (live != options_.groups) {
    Violate(absl::StrCat("L4: ", live, " of ", options_.groups, " groups are live"));
  }
  if (status.queue_entries != 0 || status.queue_bytes != 0) {
    Violate(absl::StrCat("L2: ", status.queue_entries, " requests still wait"));
  }
  if (status.paused_streams != 0 || status.kept_bytes != 0) {
    Violate(absl::StrCat("L2: ", status.kept_bytes, " bytes are still kept for ",
                         status.paused_streams, " streams"));
  }
}

}  // namespace kvern::sim
