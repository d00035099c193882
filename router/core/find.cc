// Where one request is, and why it waits: what dispatch would decide about it now, in words.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

std::string Blocks(uint64_t blocks) {
  return absl::StrCat(blocks, blocks == 1 ? " KV block" : " KV blocks");
}

std::string TextOf(const Hold& hold) {
  switch (hold.why) {
    case Why::kNone:
      return "has room by now and may be tried at the next dispatch";
    case Why::kPeak:
      return absl::StrCat("would then need ", Blocks(hold.value),
                          " as expected, allowed: ", hold.limit);
    case Why::kWorstCase:
      return absl::StrCat("would then need ", Blocks(hold.value), " at worst, it has ", hold.limit);
    case Why::kPrefill:
      return absl::StrCat("has ", hold.value, " prompt tokens to prefill, allowed: ", hold.limit);
    case Why::kRunning:
      return absl::StrCat("runs ", hold.value, " requests, allowed: ", hold.limit);
    case Why::kBreaker:
      if (hold.value > 0) {
        return absl::StrCat("failed too many, nothing is sent for ", hold.value, " ms");
      }
      return "failed too many, its next request has no token yet";
    case Why::kSilent:
      return absl::StrCat("has been silent for ", hold.value, " ms, allowed: ", hold.limit);
    case Why::kDraining:
      return "is draining";
    case Why::kNotLive:
      return "is not live";
    case Why::kTooSmall:
      return absl::StrCat("has ", Blocks(hold.limit), " in all");
    case Why::kQuota:
      return absl::StrCat("runs ", Blocks(hold.value), ", allowed: ", hold.limit);
    case Why::kPassed:
      return absl::StrCat("was passed by ", hold.value, " requests, allowed: ", hold.limit);
    case Why::kLarge:
      return absl::StrCat("is too large to pass: ", Blocks(hold.value), ", allowed: ", hold.limit);
    case Why::kAhead:
      return absl::StrCat(
          "was served ", hold.value,
          " tokens for its weight more than the one that has least, allowed: ", hold.limit);
  }
  KVERN_CHECK(false) << static_cast<int>(hold.why);
  return "";
}

std::string NeedOf(const Request& request) {
  uint64_t worst = request.need.tokens_pool();
  std::string text = absl::StrCat("needs ", Blocks(worst));
  if (request.expected_blocks != worst) {
    absl::StrAppend(&text, " at worst, ", request.expected_blocks, " as expected");
  }
  return text;
}

// RequestStatus::waits_for.
std::string_view WordOf(Why why) {
  switch (why) {
    case Why::kNone:
      return "dispatch";
    case Why::kPeak:
    case Why::kWorstCase:
      return "blocks";
    case Why::kPrefill:
      return "prefill";
    case Why::kRunning:
      return "running";
    case Why::kBreaker:
      return "failures";
    case Why::kSilent:
      return "silence";
    case Why::kDraining:
    case Why::kNotLive:
      return "group";
    case Why::kTooSmall:
      return "larger_group";
    case Why::kQuota:
      return "tenant_quota";
    case Why::kPassed:
    case Why::kLarge:
    case Why::kAhead:
      return "turn";
  }
  KVERN_CHECK(false) << static_cast<int>(why);
  return "";
}

}  // namespace

bool RouterImpl::IsOpen(const RequestId& id) {
  const std::unique_ptr<Request>* found = requests_.Find(id);
  return found != nullptr && !(*found)->answered;
}

absl::StatusOr<RequestStatus> RouterImpl::Find(const RequestId& id) {
  if (!IsOpen(id)) {
    return absl::NotFoundError(absl::StrCat("no open request has the id ", id.ToString()));
  }
  const Request& request = **requests_.Find(id);
  RequestStatus status;
  status.needed_blocks = request.need.tokens_pool();
  status.expected_blocks = request.expected_blocks;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    if (!group.open()) continue;
    uint64_t free = group.ledger->total().tokens_pool() - ReservedBlocks(group).tokens_pool();
    status.free_blocks = std::max(status.free_blocks, free);
  }
  if (request.kept != nullptr) status.reason = "its reader has a full window to take";
  switch (request.phase) {
    case Phase::kTokenizing:
    case Phase::kArrived:
      status.state = "tokenizing";
      break;
    case Phase::kQueued:
      status.state = "queued";
      FindQueued(request, status);
      break;
    case Phase::kRunning:
      status.state = "running";
      status.group = request.group->name;
      break;
    case Phase::kUnread:
      status.state = "unread";
      break;
  }
  return status;
}

void RouterImpl::FindQueued(const Request& request, RequestStatus& status) {
  status.queue_position = queue_.Position(
      request, [this](const Request& r, uint64_t more) { return QuotaHold(r, more).none(); });
  const Request& oldest = *request.tenant->lines[request.band].first;
  if (Hold quota = QuotaHold(oldest); !quota.none()) {
    status.reason = absl::StrCat(&oldest == &request ? "" : "the oldest of its tenant ",
                                 NeedOf(oldest), "; its tenant ", TextOf(quota));
    status.waits_for = WordOf(quota.why);
  } else {
    WhyQueued(request, status);
  }
  SetExpectedWait(request, status);
}

void RouterImpl::SetExpectedWait(const Request& request, RequestStatus& status) {
  bool work = false;   // some group takes work
  bool might = false;  // such as this
  for (size_t i = 0; i < groups_.size(); ++i) {
    work = work || WorkHold(groups_.at(i)).none();
    might = might || StandingHold(groups_.at(i), request).none();
  }
  std::optional<Duration> wait;
  if (!work) {
    wait = WaitAtLastRate(request);
    status.wait_at_last_rate = wait.has_value();
    status.reason += wait ? "; the wait is from when one takes work, at the rate measured last"
                          : "; no rate was measured yet";
  } else if (!might) {
    status.reason += "; no group that takes work can hold it";
  } else {
    if (std::optional<Wait> predicted = PredictWait(request)) wait = predicted->time;
    if (!wait) status.reason += "; no speed is known yet";
  }
  if (wait) status.expected_wait_ms = static_cast<uint64_t>(*wait / kMillisecond);
}

void RouterImpl::WhyQueued(const Request& request, RequestStatus& status) {
  FindCandidates();
  const Request& head = *candidates_.at(0);
  auto say = [&status](std::string_view before, NoGroup why) {
    absl::StrAppend(&status.reason, ToAbsl(before), why.text);
    status.waits_for = WordOf(why.soonest);
  };
  if (&head == &request) return say("", WhyNoGroup(request));
  uint64_t ahead = status.queue_position;
  status.reason = absl::StrCat(ahead, ahead == 1 ? " request is" : " requests are",
                               " ahead, the first ", WhyNoGroup(head).text);
  if (uint64_t most = LargestBelow(head.need.tokens_pool());
      request.need.tokens_pool() <= most) {
    return say("; groups too small for that one take this one, which ", WhyNoGroup(request, most));
  }
  if (std::ranges::count(candidates_, &request) == 0) {
    status.waits_for = "turn";
    absl::StrAppend(&status.reason, "; this one is not among the ", candidates_.size() - 1,
                    " that may pass");
    return;
  }
  Hold pass = PassHold(head, request);
  if (pass.none()) return say("; this one ", WhyNoGroup(request));
  std::string_view who = "; this one ";
  if (pass.why == Why::kPassed) who = "; it ";
  if (pass.why == Why::kQuota || pass.why == Why::kAhead) who = "; the tenant of this one ";
  absl::StrAppend(&status.reason, ToAbsl(who), TextOf(pass));
  status.waits_for = WordOf(pass.why);
}

RouterImpl::NoGroup RouterImpl::WhyNoGroup(const Request& request, uint64_t most) {
  struct Kind {
    const Group* nearest = nullptr;
    Hold hold;
    size_t groups = 0;
  };
  std::array<Kind, static_cast<size_t>(Why::kTooSmall) + 1> kinds;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    if (most != kAnySize && !MayGoTo(group, request, most)) continue;
    Hold hold = HoldOf(group, request);
    Kind& kind = kinds.at(static_cast<size_t>(hold.why));
    ++kind.groups;
    if (kind.nearest != nullptr && hold.Excess() >= kind.hold.Excess()) continue;
    kind.nearest = &group;
    kind.hold = hold;
  }
  NoGroup why{NeedOf(request)};
  if (groups_.size() == 0) absl::StrAppend(&why.text, "; no group has joined");
  bool first = true;
  for (const Kind& kind : kinds) {
    if (kind.groups == 0) continue;
    if (first) why.soonest = kind.hold.why;
    first = false;
    absl::StrAppend(&why.text, "; group ", kind.nearest->name, " ", TextOf(kind.hold));
    if (kind.groups > 1) absl::StrAppend(&why.text, " (", kind.groups - 1, " more alike)");
  }
  return why;
}

}  // namespace kvern::router
