#include "tools/sim/fault_injector.h"

#include <algorithm>

namespace kvern::sim {
namespace {

constexpr uint32_t kSlowness = 10;
constexpr uint32_t kLinkSlowness = 50;
// A slow reader takes one message in that time; a busy client is sent fifty to a hundred a second.
constexpr Duration kReadGap = 50 * kMillisecond;

}  // namespace

FaultInjector::FaultInjector(World* world, FaultTargets* targets, Rng rng)
    : world_(world), targets_(targets) {
  for (size_t i = 0; i < kNumFaults; ++i) streams_.push_back(rng.Fork(i));
  rng_ = &streams_[0];
}

void FaultInjector::ScheduleAll() {
  const SimOptions& options = world_->options();
  for (size_t i = 0; i < static_cast<size_t>(kFirstRequestFault); ++i) {
    DrawFor(Fault(i));
    for (uint32_t n = 0; n < options.faults[Fault(i)]; ++n) {
      Time at = world_->now() + rng_->Between(0, options.duration - 1);
      world_->Schedule(at, EventKind::kFault, 0, i);
    }
  }
}

bool FaultInjector::Chance(Fault fault) {
  DrawFor(fault);
  uint32_t percent = world_->options().faults[fault];
  if (percent == 0 || !rng_->Chance(percent, 100)) return false;
  counts_.Add(fault);
  return true;
}

void FaultInjector::Happen(Fault fault) {
  DrawFor(fault);
  auto& groups = targets_->all_groups();
  SimGroup& group = *groups[rng_->Below(groups.size())];
  size_t slot = rng_->Below(targets_->client_slots());
  bool happened = false;
  if (fault == Fault::kRackKilled) {
    happened = KillAll();
  } else if (fault <= Fault::kGroupSlow || fault == Fault::kReportLies ||
             fault == Fault::kReportRepeated || fault == Fault::kDispatchRefused ||
             fault == Fault::kGroupLeaves) {
    happened = HappenToGroup(fault, group);
  } else if (fault <= Fault::kRankOutlives) {
    happened = HappenToStart(fault, group);
  } else if (fault <= Fault::kGroupLinkSlow) {
    happened = HappenToLink(fault, group);
  } else {
    happened = HappenToClient(fault, slot);
  }
  if (happened) counts_.Add(fault);
}

bool FaultInjector::KillAll() {
  bool any = false;
  for (auto& group : targets_->all_groups()) {
    any =
        group->Kill({.told = false, .lose_tail = true, .restart_after = Milliseconds(100, 3000)}) ||
        any;
  }
  return any;
}

bool FaultInjector::HappenToGroup(Fault fault, SimGroup& group) {
  Duration lease = world_->options().router.group_lease;
  bool lose_tail = rng_->Chance(1, 2);
  switch (fault) {
    case Fault::kGroupKilled:
      return group.Kill(
          {.told = true, .lose_tail = lose_tail, .restart_after = Milliseconds(1, 2000)});
    case Fault::kGroupKilledMute:
      return group.Kill(
          {.told = false, .lose_tail = lose_tail, .restart_after = Milliseconds(1, 2000)});
    case Fault::kGroupLoop:
      return group.Kill({.told = true,
                         .lose_tail = lose_tail,
                         .restart_after = Milliseconds(1, 100),
                         .deaths_to_come = 3});
    case Fault::kGroupFrozen:
      return group.Pause(rng_->Between(1, lease / 2));
    case Fault::kGroupFrozenLong:
      return group.Pause(lease + rng_->Between(1, 2 * lease));
    case Fault::kGroupSlow:
      return group.SlowDown(kSlowness, world_->now() + Milliseconds(100, 5000));
    case Fault::kGroupLeaves:
      return OneLeaves(group);
    case Fault::kReportLies:
      return group.LieOnce();
    case Fault::kDispatchRefused:
      return group.RefuseNext(static_cast<uint32_t>(rng_->Between(1, 6)));
    default:
      return group.RepeatOnce();
  }
}

// Whoever drains a group takes one that serves.
bool FaultInjector::OneLeaves(SimGroup& first) {
  uint64_t draw = rng_->Next();
  Duration restart_after = Milliseconds(1, 2000);
  if (first.LeaveSoon(draw, restart_after)) return true;
  for (auto& group : targets_->all_groups()) {
    if (group->LeaveSoon(draw, restart_after)) return true;
  }
  return false;
}

bool FaultInjector::HappenToStart(Fault fault, SimGroup& group) {
  SimGroup::NextStart next = SimGroup::NextStart::kRankLate;
  if (fault == Fault::kGroupSmaller) next = SimGroup::NextStart::kSmaller;
  if (fault == Fault::kRankMissing) next = SimGroup::NextStart::kRankMissing;
  if (fault == Fault::kRankDiffers) next = SimGroup::NextStart::kRankDiffers;
  if (fault == Fault::kRankOutlives) next = SimGroup::NextStart::kRankOutlives;
  return group.Kill({.told = true,
                     .lose_tail = false,
                     .restart_after = Milliseconds(1, 500),
                     .next_start = next});
}

bool FaultInjector::HappenToLink(Fault fault, SimGroup& group) {
  if (!group.up()) return false;
  if (fault == Fault::kGroupReset) return group.Reset();
  group.CountFault();
  Time until = world_->now() + Milliseconds(10, 3000);
  for (PeerId peer : group.peers()) {
    Connection& link = targets_->network().At(peer);
    if (fault == Fault::kGroupLinkSlow) {
      link.up.slow_until = link.down.slow_until = until;
      link.up.slowness = link.down.slowness = kLinkSlowness;
      continue;
    }
    if (fault != Fault::kGroupDeaf) link.up.blocked_until = until;
    if (fault != Fault::kGroupMute) link.down.blocked_until = until;
  }
  return true;
}

bool FaultInjector::HappenToClient(Fault fault, size_t slot) {
  SimClient& client = targets_->ClientIn(slot);
  if (!client.alive()) return false;
  Connection& link = targets_->network().At(client.peer());
  Time until = world_->now() + Milliseconds(10, 6000);
  switch (fault) {
    case Fault::kClientPartitioned:
      link.up.blocked_until = link.down.blocked_until = until;
      return true;
    case Fault::kClientLinkSlow:
      link.up.slow_until = link.down.slow_until = until;
      link.up.slowness = link.down.slowness = kLinkSlowness;
      return true;
    case Fault::kClientSlowReader:
      link.down.slow_until = until;
      link.down.gap = kReadGap;
      return true;
    case Fault::kClientFrozen:
      return client.Pause(until - world_->now());
    case Fault::kClientRestarts:
      return client.Restart();
    default:
      // A broken connection has another peer id when it stands again: to the router, both are a
      // client that is gone.
      client.Die(fault == Fault::kClientReset || rng_->Chance(1, 2));
      targets_->ReplaceClient(slot, Milliseconds(1, 500));
      return true;
  }
}

void FaultInjector::Spoil(Ask& ask) {
  SpoilLengths(ask);
  if (Chance(Fault::kShortTtftDeadline)) {
    ask.request.ttft_deadline_ms = static_cast<uint32_t>(rng_->Between(1, 300));
  }
  if (Chance(Fault::kShortDeadline)) {
    ask.request.deadline_ms = static_cast<uint32_t>(rng_->Between(1, 2000));
  }
  if (Chance(Fault::kCancel)) ask.cancel_after = Milliseconds(0, 2000);
  if (Chance(Fault::kBadRequest)) {
    Break(ask.request);
    ask.bad = true;
  }
  ask.repeated = !ask.bad && Chance(Fault::kRepeatedId);
  if (Chance(Fault::kForeignCancel)) ask.cancel_foreign = true;
  SpoilReader(ask);
  if (!ask.bad && Chance(Fault::kBadIds)) SpoilIds(ask);
}

void FaultInjector::SpoilIds(Ask& ask) {
  // Just below and above the length from which the router does not look at ids.
  constexpr auto kLong = static_cast<int64_t>(kMinBytesInPlace / sizeof(uint32_t));
  std::vector<uint32_t> ids(static_cast<size_t>(rng_->Between(kLong - 1, kLong + 40)));
  ids[rng_->Below(ids.size())] = world_->options().router.vocab_size;
  ask.request.prompt.reset();
  ask.request.messages.reset();
  ask.request.prompt_token_ids = std::move(ids);
  bool seen = ask.request.prompt_token_ids->size_bytes() < kMinBytesInPlace;
  (seen ? ask.bad : ask.bad_ids) = true;
}

void FaultInjector::SpoilReader(Ask& ask) {
  if (Chance(Fault::kReaderSlow)) ask.read_gap = Milliseconds(5, 100);
  if (Chance(Fault::kReaderStalls)) {
    ask.read_delay = rng_->Between(0, 2 * world_->options().router.slow_reader_timeout);
  }
}

void FaultInjector::SpoilLengths(Ask& ask) {
  const SimOptions& options = world_->options();
  if (Chance(Fault::kFanOut)) ask.request.n = static_cast<uint32_t>(rng_->Between(2, kMaxChoices));
  if (!Chance(Fault::kNeverFits)) return;
  uint64_t all = options.kv_blocks * kBlockSize;
  uint64_t tokens = rng_->Chance(1, 2) ? options.router.max_seq_len : all;
  ask.request.max_tokens = static_cast<uint32_t>(std::min<uint64_t>(tokens + 1, 1u << 30));
}

void FaultInjector::Break(GenerateRequest& request) {
  switch (rng_->Below(6)) {
    case 0:
      request.n = kMaxChoices + 1;
      break;
    case 1:
      request.sampling.temperature = -1;
      break;
    case 2:
      request.model = "another";
      break;
    case 3:
      request.sampling.stop_token_ids = {world_->options().router.vocab_size};
      break;
    case 4:
      request.priority = 8;
      break;
    default:
      request.max_tokens = 0;
      break;
  }
}

}  // namespace kvern::sim
