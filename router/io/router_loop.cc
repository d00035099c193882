#include "router/io/router_loop.h"

#include <algorithm>

#include "cluster/base/clock.h"
#include "cluster/base/log.h"
#include "schemas/codec.h"

namespace kvern {
namespace {

// Messages that one turn reads from a socket: enough to amortise a turn, few enough that an answer
// does not wait long.
constexpr int kReadsPerTurn = 256;
// ... and no more bytes of clients than a core's cache holds: a short prompt is looked at when it
// comes and copied when it is dispatched, which is mostly at the end of the turn.
constexpr size_t kBytesPerTurn = 256 << 10;
// Messages that may lie ready in the socket from one client: each may have 8 MiB, and they count
// against no other limit before they are read. ZeroMQ is woken for more after half of them, so
// fewer would cost those who send many small ones.
constexpr int kClientReceiveQueue = 32;
// The core's samples of finished requests are bounded, so they are fetched now and then.
constexpr Duration kSampleEvery = kSecond;
// A turn that takes longer was stopped meanwhile. Shorter ones are within what a lease leaves
// beside its keep-alives: two of three seconds.
constexpr Duration kLongTurn = 500 * kMillisecond;
// A full queue empties without a word from ZeroMQ.
constexpr Duration kRetryEvery = 2 * kMillisecond;

// Twice the clients that the core knows: those who have not said Hello are here too.
PortLimits ClientLimits(const RouterConfig& config) {
  PortLimits limits;
  limits.max_peers = 2 * size_t{config.max_clients};
  limits.max_body_bytes = kMaxRouterToClientBytes;
  limits.pending_messages = 1024;
  limits.pending_bytes = 16u << 20;  // A client this far behind is not reading.
  return limits;
}

PortLimits WorkerLimits() {
  PortLimits limits;
  limits.max_peers = 1u << 18;  // groups that the core allows, times ranks
  limits.max_body_bytes = kMaxWorkerMessageBytes;
  limits.pending_messages = 4096;
  limits.pending_bytes = 2 * kMaxWorkerMessageBytes;
  return limits;
}

SocketOptions SocketLimits(size_t max_message_bytes) {
  SocketOptions options;
  options.max_message_bytes = static_cast<int64_t>(max_message_bytes);
  options.linger_ms = 1000;  // The last answers of a drained router are still to leave.
  return options;
}

// The ids of long prompts leave from where they came to lie.
Port::Message InParts(const RouterToWorker& message, Incarnation sender) {
  std::vector<TokenIds> attached;
  Port::Message parts{EncodeRouterToWorkerInParts(message, sender, &attached), {}};
  for (const TokenIds& ids : attached) {
    parts.attached.push_back({std::as_bytes(std::span(ids.begin(), ids.size())), ids.owner()});
  }
  return parts;
}

void Write(const LimitedLine& line) {
  std::vector<LogField> fields;
  for (const auto& [key, value] : line.fields) fields.emplace_back(key, value);
  Log(line.level, line.event, std::move(fields));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterPorts>> RouterPorts::Bind(NetContext& context,
                                                               const std::string& listen,
                                                               const std::string& worker_listen) {
  SocketOptions client_limits = SocketLimits(kMaxClientMessageBytes);
  client_limits.receive_queue = kClientReceiveQueue;
  KVERN_ASSIGN_OR_RETURN(RouterSocket clients, RouterSocket::Bind(context, listen, client_limits));
  KVERN_ASSIGN_OR_RETURN(
      RouterSocket workers,
      RouterSocket::Bind(context, worker_listen, SocketLimits(kMaxWorkerMessageBytes)));
  KVERN_ASSIGN_OR_RETURN(WakeUp wake, WakeUp::Create());
  return std::unique_ptr<RouterPorts>(
      new RouterPorts(std::move(clients), std::move(workers), std::move(wake)));
}

RouterPorts::RouterPorts(RouterSocket clients, RouterSocket workers, WakeUp wake)
    : endpoint_(clients.endpoint()),
      worker_endpoint_(workers.endpoint()),
      clients_(std::move(clients)),
      workers_(std::move(workers)),
      wake_(std::move(wake)),
      questions_(&wake_) {}

RouterLoop::RouterLoop(const RouterConfig& config, uint64_t seed, RouterText text,
                       RouterPorts* ports)
    : config_(config),
      router_(config, seed, text.filters),
      clients_(std::move(ports->clients_), ClientLimits(config)),
      workers_(std::move(ports->workers_), WorkerLimits()),
      wake_(ports->wake_),
      questions_(ports->questions_) {
  if (text.tokenizer != nullptr) {
    text_pool_ =
        std::make_unique<TextPool>(text.tokenizer, std::move(text.chat_template), &wake_);
    text_threads_ = text.threads;
  }
  poller_.Add(clients_.socket());
  poller_.Add(workers_.socket());
  poller_.AddFd(wake_.fd());
}

RouterLoop::~RouterLoop() = default;

void RouterLoop::Watch(int fd, std::function<void()> readable) {
  watched_.emplace_back(poller_.AddFd(fd), std::move(readable));
}

void RouterLoop::Stop() {
  stop_ = true;
  wake_.Notify();
}

absl::Status RouterLoop::Run() {
  now_ = MonotonicNow();
  absl::Status status;
  if (text_pool_ != nullptr) status = text_pool_->Start(text_threads_);
  while (status.ok() && !stop_ && !router_.Drained()) status = Turn();
  WriteHeldLines(now_ + kSampleEvery);
  questions_.Close();
  return status;
}

Duration RouterLoop::WaitTime() const {
  if (more_to_read_) return 0;
  Time until = std::min(router_.NextDeadline(), next_sample_);
  if (clients_.HasPending() || workers_.HasPending()) until = std::min(until, now_ + kRetryEvery);
  return std::max<Duration>(0, until - MonotonicNow());
}

absl::Status RouterLoop::Turn() {
  const Time last = now_;
  const Duration wait = WaitTime();
  KVERN_RETURN_IF_ERROR(poller_.Wait(wait));
  now_ = MonotonicNow();
  NoteAbsence(now_ - last, wait);
  wake_.Clear();
  more_to_read_ = false;
  for (const auto& [index, readable] : watched_) {
    if (poller_.Ready(index)) readable();
  }
  KVERN_RETURN_IF_ERROR(ReadWorkers());
  KVERN_RETURN_IF_ERROR(ReadClients());
  ReadTexts();
  KVERN_RETURN_IF_ERROR(clients_.Retry().status());
  KVERN_RETURN_IF_ERROR(workers_.Retry().status());
  KVERN_RETURN_IF_ERROR(EndTurn());
  if (now_ >= next_sample_) {
    TakeStatus();
    WriteHeldLines(now_);
  }
  AnswerQuestions();
  return absl::OkStatus();
}

void RouterLoop::NoteAbsence(Duration since_last, Duration waited_for) {
  // What was said meanwhile may still be on its way through ZeroMQ's thread, which was stopped,
  // too, so that empty sockets say nothing.
  if (since_last > waited_for + kLongTurn) Step(Absent{since_last - waited_for - kLongTurn});
}

absl::Status RouterLoop::ReadClients() {
  size_t bytes = 0;
  for (int i = 0; i < kReadsPerTurn && bytes < kBytesPerTurn; ++i) {
    KVERN_ASSIGN_OR_RETURN(ReceiveResult received, clients_.Receive(&routing_id_, &frame_));
    if (received == ReceiveResult::kNothing) {
      heard_.clients = now_;
      return absl::OkStatus();
    }
    if (received == ReceiveResult::kMalformed) {
      ++bad_client_messages_.frames;
      continue;
    }
    bytes += frame_.bytes().size();
    Decoded<ClientMessage> decoded =
        DecodeClientMessageInPlace(frame_.bytes(), [this] { return frame_.Share(); });
    if (!decoded.ok()) {
      KVERN_RETURN_IF_ERROR(RefuseClient(routing_id_, decoded));
      continue;
    }
    PeerId peer = clients_.Heard(routing_id_, decoded.sender);
    Step(ClientSaid{peer, std::move(decoded.message)});
  }
  more_to_read_ = true;
  return absl::OkStatus();
}

absl::Status RouterLoop::ReadWorkers() {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    KVERN_ASSIGN_OR_RETURN(ReceiveResult received, workers_.Receive(&routing_id_, &frame_));
    if (received == ReceiveResult::kNothing) {
      heard_.workers = now_;
      return absl::OkStatus();
    }
    if (received == ReceiveResult::kMalformed) {
      ++bad_worker_messages_.frames;
      continue;
    }
    Decoded<WorkerToRouter> decoded = DecodeWorkerToRouter(frame_.bytes());
    if (!decoded.ok()) {
      KVERN_RETURN_IF_ERROR(RefuseWorker(routing_id_, decoded));
      continue;
    }
    PeerId peer = workers_.Heard(routing_id_, decoded.sender);
    Step(WorkerSaid{peer, std::move(decoded.message)});
  }
  more_to_read_ = true;
  return absl::OkStatus();
}

absl::Status RouterLoop::RefuseClient(const std::string& routing_id,
                                      const Decoded<ClientMessage>& decoded) {
  ++bad_client_messages_.by_failure[static_cast<size_t>(decoded.failure)];
  std::string reason(DecodeFailureName(decoded.failure));
  LogLimited(
      "client " + reason,
      {LogLevel::kDebug, "bad_client_message", {{"reason", reason}, {"error", decoded.error}}});
  RequestError error;
  error.request_id = decoded.request_id;
  error.code = ErrorCode::kInvalidArgument;
  error.message = decoded.error;
  // Said under the id of a request that goes on, this is not its end.
  error.details.still_open = router_.IsOpen(decoded.request_id);
  return clients_.Reply(routing_id, EncodeRouterToClient(error, config_.router_incarnation));
}

absl::Status RouterLoop::RefuseWorker(const std::string& routing_id,
                                      const Decoded<WorkerToRouter>& decoded) {
  ++bad_worker_messages_.by_failure[static_cast<size_t>(decoded.failure)];
  PeerId known = workers_.Find(routing_id);
  std::string reason(DecodeFailureName(decoded.failure));
  LogLimited(absl::StrCat(known != 0 ? "worker " : "stranger ", reason),
             {known != 0 ? LogLevel::kWarning : LogLevel::kDebug,
              "bad_worker_message",
              {{"reason", reason}, {"error", decoded.error}}});
  // A worker that speaks another language must exit; what it runs is lost.
  KVERN_RETURN_IF_ERROR(workers_.Reply(
      routing_id, EncodeRouterToWorker(JoinRefused{decoded.error}, config_.router_incarnation)));
  workers_.Lose(known);
  return absl::OkStatus();
}

void RouterLoop::ReadTexts() {
  if (text_pool_ == nullptr) return;
  for (Tokenized& answer : text_pool_->Take()) Step(std::move(answer));
}

absl::Status RouterLoop::EndTurn() {
  // Each pass beyond the first has lost a peer, so this ends.
  do {
    router_.Flush(now_, heard_, effects_);
    KVERN_RETURN_IF_ERROR(Perform());
  } while (StepLost());
  if (group_went_live_) {
    group_went_live_ = false;
    if (on_group_live_) on_group_live_(TakeStatus());
  }
  return absl::OkStatus();
}

bool RouterLoop::StepLost() {
  std::vector<PeerId> lost_clients = clients_.TakeLost();
  std::vector<PeerId> lost_workers = workers_.TakeLost();
  for (PeerId peer : lost_clients) Step(ClientUnreachable{peer});
  for (PeerId peer : lost_workers) Step(WorkerUnreachable{peer});
  return !lost_clients.empty() || !lost_workers.empty();
}

absl::Status RouterLoop::Perform() {
  for (const ToWorker& effect : effects_.to_workers) {
    KVERN_RETURN_IF_ERROR(
        workers_.Send(effect.worker, InParts(effect.message, config_.router_incarnation)));
  }
  for (const ToClient& effect : effects_.to_clients) {
    KVERN_RETURN_IF_ERROR(clients_.Send(
        effect.client, EncodeRouterToClient(effect.message, config_.router_incarnation)));
  }
  for (Tokenize& job : effects_.tokenize) text_pool_->Submit(std::move(job));
  for (const RequestId& id : effects_.withdrawn) text_pool_->Withdraw(id);
  WriteNotes();
  if (on_group_joining_) {
    for (const GroupJoining& start : effects_.joining) on_group_joining_(start);
  }
  if (on_group_given_up_) {
    for (const GroupGivenUp& start : effects_.given_up) on_group_given_up_(start);
  }
  effects_.Clear();
  return absl::OkStatus();
}

void RouterLoop::WriteNotes() {
  for (const Note& note : effects_.notes) {
    LimitedLine line{note.warning ? LogLevel::kWarning : LogLevel::kInfo, note.event, note.fields};
    // What a stranger can bring about as often as it likes. Of groups that come and go it can, too,
    // but many of one's own may start together.
    constexpr uint32_t kGroupsAtOnce = 32;
    bool one_line = note.event == "group_refused" || note.event == "group_forgotten" ||
                    note.event == "client_lost" || note.event == "slow_reader";
    LogLimited(note.event, std::move(line), one_line ? 1 : kGroupsAtOnce);
    if (note.event == "group_live") group_went_live_ = true;
  }
}

void RouterLoop::LogLimited(const std::string& kind, LimitedLine line, uint32_t burst) {
  std::optional<LimitedLine> now = log_limiter_.Add(now_, kind, std::move(line), burst);
  if (now.has_value()) Write(*now);
}

void RouterLoop::WriteHeldLines(Time now) {
  for (const LimitedLine& line : log_limiter_.Due(now)) Write(line);
}

RouterStatus RouterLoop::TakeStatus() {
  RouterStatus status = router_.Status(now_);
  distributions_.Observe(status.counters);
  next_sample_ = now_ + kSampleEvery;
  freed_memory_.GiveBack(now_);
  return status;
}

StatusSnapshot RouterLoop::MakeSnapshot() {
  StatusSnapshot snapshot;
  snapshot.model = config_.model;
  snapshot.status = TakeStatus();
  snapshot.capacity = router_.Capacity();
  snapshot.distributions = distributions_;
  snapshot.client_messages = bad_client_messages_;
  snapshot.worker_messages = bad_worker_messages_;
  return snapshot;
}

void RouterLoop::AnswerQuestions() {
  questions_.Answer([this] { return MakeSnapshot(); },
                    [this](const RequestId& id) { return router_.Find(id); });
}

}  // namespace kvern
