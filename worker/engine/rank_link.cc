#include "worker/engine/rank_link.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include "cluster/base/clock.h"
#include "cluster/base/log.h"
#include "cluster/base/rng.h"
#include "schemas/codec.h"
#include "worker/engine/leave_signal.h"

namespace kvern {
namespace {

// When it is said that the start has not come, and how often again.
constexpr Duration kFirstWord = 2 * kSecond;
constexpr Duration kNextWord = 60 * kSecond;

}  // namespace

absl::StatusOr<std::unique_ptr<RankLink>> RankLink::Connect(const std::string& endpoint) {
  SocketOptions options;
  options.max_message_bytes = static_cast<int64_t>(kMaxWorkerMessageBytes);
  options.linger_ms = 1000;  // so that a Leave is still said
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<NetContext> context, NetContext::Create());
  KVERN_ASSIGN_OR_RETURN(DealerSocket socket, DealerSocket::Connect(*context, endpoint, options));
  std::unique_ptr<RankLink> link(new RankLink(endpoint, std::move(context), std::move(socket)));
  // Differs between processes and their restarts.
  link->incarnation_ =
      HashCounter(static_cast<uint64_t>(getpid()), static_cast<uint64_t>(MonotonicNow()));
  KVERN_ASSIGN_OR_RETURN(link->watch_, ConnectionWatch::Create(*link->context_, link->socket_));
  return link;
}

absl::Status RankLink::SendMessage(const WorkerToRouter& message) {
  std::string body = EncodeWorkerToRouter(message, incarnation_);
  KVERN_ASSIGN_OR_RETURN(SendResult result, socket_.Send(body));
  if (result == SendResult::kSent) return absl::OkStatus();
  return Unavailable("the router at ", endpoint_, " takes no more messages");
}

absl::Status RankLink::SendJoin(const Join& join) { return SendMessage(join); }
absl::Status RankLink::Send(const StepReport& report) { return SendMessage(report); }
absl::Status RankLink::Send(const Leave& leave) { return SendMessage(leave); }

void RankLink::PassOnLeaveSignal(Incarnation group_incarnation) {
  passes_on_leave_ = true;
  group_incarnation_ = group_incarnation;
}

void RankLink::SayIfToldToLeave() {
  if (!passes_on_leave_ || !LeaveSignal::told()) return;
  passes_on_leave_ = false;
  absl::Status said = SendMessage(LeaveSoon{group_incarnation_});
  if (said.ok()) return;
  // The group need not end for it: whoever wants that has the second SIGTERM.
  Log(LogLevel::kWarning, "leave_not_said", {{"error", said.message()}});
}

absl::Status RankLink::Wait(Duration timeout) {
  zmq_pollitem_t items[] = {{socket_.handle(), 0, ZMQ_POLLIN, 0},
                            {watch_->handle(), 0, ZMQ_POLLIN, 0},
                            {nullptr, LeaveSignal::fd(), ZMQ_POLLIN, 0}};
  const int count = passes_on_leave_ ? 3 : 2;
  long timeout_ms = static_cast<long>((timeout + kMillisecond - 1) / kMillisecond);
  if (zmq_poll(items, count, timeout_ms) < 0 && errno != EINTR)
    return ErrnoStatus("zmq_poll", errno);
  return absl::OkStatus();
}

absl::StatusOr<bool> RankLink::Next(RouterToWorker& message) {
  Frame frame;
  std::vector<Frame> attached;
  KVERN_ASSIGN_OR_RETURN(ReceiveResult result, socket_.Receive(&frame, &attached));
  if (result == ReceiveResult::kNothing) {
    // Looked at last: what came before the break is still read.
    broken_ = broken_ || watch_->Broken();
    if (broken_) return Unavailable("the connection to the router at ", endpoint_, " broke");
    return false;
  }
  std::vector<Bytes> prompts;
  for (const Frame& prompt : attached) prompts.push_back(prompt.bytes());
  Decoded<RouterToWorker> decoded = DecodeRouterToWorkerInParts(frame.bytes(), prompts);
  if (!decoded.ok()) return Internal("the router at ", endpoint_, " sent: ", decoded.error);
  message = std::move(decoded.message);
  return true;
}

absl::StatusOr<GroupStart> RankLink::AwaitStart(Duration timeout) {
  const Time begin = MonotonicNow();
  const Time deadline = begin + timeout;
  Time next_word = begin + kFirstWord;
  while (true) {
    RouterToWorker message;
    KVERN_ASSIGN_OR_RETURN(bool got, Next(message));
    if (got) {
      if (auto* start = std::get_if<GroupStart>(&message)) return std::move(*start);
      if (auto* refused = std::get_if<JoinRefused>(&message)) {
        return FailedPrecondition("the router refuses this rank: ", refused->reason);
      }
      return Internal("the router sent commands before it started the group");
    }
    const Time now = MonotonicNow();
    if (now >= next_word) {
      next_word = now + kNextWord;
      Log(LogLevel::kInfo, "waits_for_the_start",
          {{"endpoint", endpoint_},
           {"waited_s", (now - begin) / kSecond},
           {"why", "no router answers there yet, or other ranks have not joined"}});
    }
    Duration left = deadline - now;
    if (left <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("the router at ", endpoint_, " did not start the group within ",
                       timeout / kSecond, " s: it is not there, or other ranks have not joined"));
    }
    KVERN_RETURN_IF_ERROR(Wait(std::min(left, next_word - now)));
  }
}

absl::Status RankLink::Receive(Duration timeout, std::vector<Commands>& commands) {
  SayIfToldToLeave();
  bool waited = timeout == 0;
  while (true) {
    RouterToWorker message;
    KVERN_ASSIGN_OR_RETURN(bool got, Next(message));
    if (got) {
      if (auto* refused = std::get_if<JoinRefused>(&message)) {
        return FailedPrecondition("the router refuses this group: ", refused->reason);
      }
      auto* received = std::get_if<Commands>(&message);
      if (received == nullptr) return Internal("the router started this group twice");
      commands.push_back(std::move(*received));
      continue;
    }
    if (waited || !commands.empty()) return absl::OkStatus();
    KVERN_RETURN_IF_ERROR(Wait(timeout));
    waited = true;
  }
}

}  // namespace kvern
