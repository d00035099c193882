#include "tools/clients/cpp/connection.h"

#include <signal.h>
#include <sys/random.h>
#include <zmq.h>

#include <algorithm>

#include "cluster/base/check.h"
#include "cluster/base/clock.h"
#include "cluster/base/threads.h"

namespace kvern {
namespace {

// Between two connections: a router that takes and drops them at once is not asked without pause.
constexpr Duration kReopenPause = 50 * kMillisecond;
// With no credit and no word of how long: the next keep-alive brings news.
constexpr Duration kHoldWithoutAdvice = kSecond;
// Advice beyond this means nothing.
constexpr Duration kMaxHold = 60 * kSecond;
// Messages are handled for so long before commands and time get their turn.
constexpr Duration kMaxPass = 10 * kMillisecond;
// How often Hello is said again before the router has taken anything.
constexpr int kMaxHellosAgain = 3;

uint64_t DrawNonZero() {
  uint64_t drawn = 0;
  while (drawn == 0) KVERN_CHECK(getrandom(&drawn, sizeof(drawn), 0) == sizeof(drawn));
  return drawn;
}

// Signals are the program's affair: none is delivered to the thread of a library.
template <typename Function>
absl::StatusOr<std::thread> StartWithoutSignals(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::StatusOr<std::thread> thread = StartThread(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

RequestError ErrorOf(const RequestId& request_id, ErrorCode code, const std::string& message) {
  RequestError error;
  error.request_id = request_id;
  error.code = code;
  error.message = message;
  return error;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ClientConnection>> ClientConnection::Start(
    const ClientOptions& options) {
  if (options.timeout <= 0)
    return InvalidArgument("timeout: ", options.timeout, " ns, must be > 0");
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<NetContext> context, NetContext::Create());
  KVERN_ASSIGN_OR_RETURN(WakeUp wake_up, WakeUp::Create());
  std::shared_ptr<ClientConnection> connection(
      new ClientConnection(options, std::move(context), std::move(wake_up)));
  // Here, so that a wrong endpoint is this call's error.
  KVERN_ASSIGN_OR_RETURN(connection->link_,
                         ClientLink::Open(*connection->context_, options.endpoint));
  connection->SayHello();
  connection->last_heard_ = MonotonicNow();
  KVERN_ASSIGN_OR_RETURN(connection->thread_,
                         StartWithoutSignals([raw = connection.get()] { raw->Run(); }));
  return connection;
}

ClientConnection::ClientConnection(ClientOptions options, std::unique_ptr<NetContext> context,
                                   WakeUp wake_up)
    : options_(std::move(options)),
      incarnation_(DrawNonZero()),
      context_(std::move(context)),
      wake_up_(std::move(wake_up)) {}

ClientConnection::~ClientConnection() {
  Stop();
  link_.reset();  // Before its context.
}

void ClientConnection::Stop() {
  Post([this](bool) { stopping_ = true; });
  if (thread_.joinable()) thread_.join();
}

void ClientConnection::Post(std::function<void(bool)> command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ended_) {
      commands_.push_back(std::move(command));
      wake_up_.Notify();
      return;
    }
  }
  command(false);
}

void ClientConnection::AwaitWelcome(WelcomeSink sink) {
  Post([this, sink = std::move(sink)](bool running) {
    if (!running) return sink(Unavailable("the client is closed"));
    if (welcome_.has_value()) return sink(*welcome_);
    BeginWait();
    welcome_sinks_.push_back(sink);
  });
}

uint64_t ClientConnection::Submit(GenerateRequest request, EventSink sink,
                                  std::shared_ptr<StreamProgress> progress) {
  uint64_t ticket = next_ticket_++;
  Post([this, ticket, request = std::move(request), sink = std::move(sink),
        progress = std::move(progress)](bool running) mutable {
    if (running) return SubmitHere(std::move(request), ticket, std::move(sink), progress);
    sink(ErrorOf(request.request_id, ErrorCode::kCancelled, "the client is closed"));
  });
  return ticket;
}

void ClientConnection::Taken(const RequestId& request_id, uint64_t ticket, StreamProgress& progress,
                             uint64_t tokens) {
  uint64_t before = progress.taken.fetch_add(tokens);
  uint64_t every = report_every_;
  if (every == 0 || before / every == (before + tokens) / every) return;
  Post([this, request_id, ticket](bool running) {
    if (running) Report(request_id, ticket);
  });
}

void ClientConnection::Cancel(const RequestId& request_id, std::optional<uint64_t> ticket) {
  Post([this, request_id, ticket](bool running) {
    if (running) CancelHere(request_id, ticket);
  });
}

void ClientConnection::QueryCapacity(CapacitySink sink) {
  Post([this, sink = std::move(sink)](bool running) {
    if (!running) return sink(Unavailable("the client is closed"));
    BeginWait();
    queries_.push_back(sink);
    if (!welcome_.has_value()) return;
    ++queries_sent_;
    Transmit(CapacityQuery{});
  });
}

void ClientConnection::Run() {
  while (!stopping_) {
    Wait();
    Time now = MonotonicNow();
    if (link_ != nullptr) {
      // Answers first: what came before the connection broke still counts.
      ReceiveSome();
      if (link_->Broken() || link_failed_) {
        while (link_->Broken() && ReceiveSome()) {
        }
        Lose("the connection to the router was lost");
        link_.reset();
        link_failed_ = false;
        reopen_at_ = now + kReopenPause;
      }
    } else if (now >= reopen_at_) {
      Reopen();
    }
    RunCommands();
    KeepTime();
  }
  for (const auto& [request_id, open] : open_) Transmit(CancelRequest{request_id});
  FailAll(ErrorCode::kCancelled, "the client was closed");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  RunCommands();
}

void ClientConnection::RunCommands() {
  std::vector<std::function<void(bool)>> commands;
  bool running;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
    running = !ended_;
  }
  for (auto& command : commands) command(running);
}

void ClientConnection::Wait() {
  zmq_pollitem_t items[3] = {{nullptr, wake_up_.fd(), ZMQ_POLLIN, 0}, {}, {}};
  int count = 1;
  if (link_ != nullptr) {
    short events = link_->wants_to_send() ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN;
    items[1] = {link_->socket(), 0, events, 0};
    items[2] = {link_->watch(), 0, ZMQ_POLLIN, 0};
    count = 3;
  }
  Time deadline = NextDeadline();
  long timeout_ms = -1;
  if (deadline != kTimeMax) {
    Duration left = std::max<Duration>(0, deadline - MonotonicNow());
    timeout_ms = static_cast<long>(left / kMillisecond) + 1;
  }
  zmq_poll(items, count, timeout_ms);
  wake_up_.Clear();
  if (link_ != nullptr && !link_->Flush().ok()) link_failed_ = true;
}

void ClientConnection::Reopen() {
  absl::StatusOr<std::unique_ptr<ClientLink>> link = ClientLink::Open(*context_, options_.endpoint);
  reopen_at_ = MonotonicNow() + kReopenPause;
  if (!link.ok()) return;  // Out of descriptors, say: the silence will end what waits.
  link_ = std::move(*link);
  hellos_again_ = 0;
  SayHello();
}

void ClientConnection::SayHello() {
  welcome_.reset();
  hello_due_ = false;
  Transmit(Hello{incarnation_, options_.tenant, options_.name, /*gives_credit=*/true});
}

// It ended what it had accepted; the rest, and what it has just refused, is sent again behind a new
// Hello, and nobody notices.
void ClientConnection::OnForgotten() {
  if (!welcome_.has_value()) return;  // Said of what was sent before the Hello that is under way.
  if (hellos_again_ == kMaxHellosAgain) {
    welcome_.reset();
    hello_due_ = true;
    hellos_again_ = 0;
    return FailAll(ErrorCode::kUnavailable, absl::StrCat("the router at ", options_.endpoint,
                                                         " does not know this client after ",
                                                         kMaxHellosAgain + 1, " Hellos"));
  }
  ++hellos_again_;
  SayHello();
  std::vector<RequestId> again = Unanswered();
  for (auto request_id = again.rbegin(); request_id != again.rend(); ++request_id) {
    Open& open = open_.at(*request_id);
    waiting_.push_front({*std::move(open.unanswered), 0, 0});
    open.unanswered.reset();
  }
  queries_sent_ = 0;
  EndSent("the router forgot this client, and this request with it: ask again");
}

bool ClientConnection::ReceiveSome() {
  Time end = MonotonicNow() + kMaxPass;
  do {
    Frame frame;
    absl::StatusOr<bool> received = link_->Receive(&frame);
    if (!received.ok() || !*received) return false;
    OnMessage(frame);
    last_heard_ = MonotonicNow();  // Again: the router was not silent while this was handled.
  } while (last_heard_ < end);
  return true;
}

void ClientConnection::OnMessage(const Frame& frame) {
  last_heard_ = MonotonicNow();
  Decoded<RouterToClient> decoded = DecodeRouterToClient(frame.bytes());
  if (!decoded.ok()) {
    if (decoded.failure == DecodeFailure::kUnknownKind) return;  // A newer router's.
    return FailAll(ErrorCode::kInternal,
                   absl::StrCat(options_.endpoint, " sent what cannot be read: ", decoded.error));
  }
  std::visit([&](auto& body) { On(body); }, decoded.message);
}

void ClientConnection::On(const Welcome& welcome) {
  welcome_ = welcome;
  report_every_ = (uint64_t{welcome.stream_window} + 1) / 2;
  std::vector<WelcomeSink> sinks = std::move(welcome_sinks_);
  welcome_sinks_.clear();
  for (const WelcomeSink& sink : sinks) sink(welcome);
  hold_until_ = 0;  // said by another connection
  for (Waiting& entry : waiting_) entry.until = 0;
  SendWaiting();
  for (; queries_sent_ < queries_.size(); ++queries_sent_) Transmit(CapacityQuery{});
}

void ClientConnection::On(const KeepAliveReply& reply) {
  hellos_again_ = 0;
  OnCredit(reply.credit);
}

void ClientConnection::On(const Accepted& accepted) {
  hellos_again_ = 0;
  auto found = open_.find(accepted.request_id);
  if (found == open_.end()) return;  // Cancelled here in the meantime.
  found->second.unanswered.reset();
  found->second.sink(accepted);
  OnCredit(accepted.credit);
}

void ClientConnection::On(Deltas& deltas) {
  for (Delta& delta : deltas.deltas) {
    auto found = open_.find(delta.request_id);
    if (found == open_.end()) continue;
    if (!delta.usage.has_value()) {
      uint64_t tokens = delta.token_ids.size();
      Open& open = found->second;
      open.sink(std::move(delta));
      if (open.sink_takes) Taken(found->first, open.ticket, *open.progress, tokens);
      continue;
    }
    EventSink sink = std::move(found->second.sink);
    open_.erase(found);
    sink(std::move(delta));
  }
}

void ClientConnection::On(const RequestError& error) {
  if (error.message == kHelloFirst) return OnForgotten();
  OnRefusal(error);
  // Refuses a second request of this id; the sink is the first one's.
  if (error.details.still_open) return;
  if (!error.request_id.IsZero()) {
    auto found = open_.find(error.request_id);
    if (found == open_.end()) return;
    EventSink sink = std::move(found->second.sink);
    open_.erase(found);
    return sink(error);
  }
  // The router could not read a message and cannot say which: all that it has not accepted.
  if (!welcome_.has_value()) {
    hello_due_ = true;
    return FailAll(error.code, error.message);
  }
  for (const RequestId& request_id : Unanswered()) {
    EndRequest(request_id, error.code, error.message);
  }
}

void ClientConnection::On(CapacityReply& reply) {
  hellos_again_ = 0;
  if (queries_sent_ == 0) return;
  CapacitySink sink = std::move(queries_.front());
  queries_.pop_front();
  --queries_sent_;
  sink(std::move(reply));
}

void ClientConnection::Lose(const std::string& why) {
  // The silence counts from now, if it was a router's: what else may be there breaks at each try.
  if (welcome_.has_value()) last_heard_ = MonotonicNow();
  welcome_.reset();
  EndSent(why);
  for (; queries_sent_ > 0; --queries_sent_) {
    CapacitySink sink = std::move(queries_.front());
    queries_.pop_front();
    sink(Unavailable(why));
  }
}

void ClientConnection::EndSent(const std::string& why) {
  std::vector<RequestId> lost;
  for (const auto& [request_id, open] : open_) {
    bool unsent = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& entry) {
      return entry.request.request_id == request_id;
    });
    if (!unsent) lost.push_back(request_id);
  }
  for (const RequestId& request_id : lost) EndRequest(request_id, ErrorCode::kUnavailable, why);
}

std::vector<RequestId> ClientConnection::Unanswered() const {
  std::vector<std::pair<uint64_t, RequestId>> sent;
  for (const auto& [request_id, open] : open_) {
    if (open.unanswered.has_value()) sent.push_back({open.ticket, request_id});
  }
  std::sort(sent.begin(), sent.end());
  std::vector<RequestId> result;
  for (const auto& [ticket, request_id] : sent) result.push_back(request_id);
  return result;
}

void ClientConnection::KeepTime() {
  if (!AnythingOpen()) return;
  Time now = MonotonicNow();
  if (now - last_heard_ >= options_.timeout) {
    last_heard_ = now;
    hello_due_ = hellos_again_ > 0 && !welcome_.has_value();
    for (const auto& [request_id, open] : open_) Transmit(CancelRequest{request_id});
    FailAll(ErrorCode::kUnavailable, absl::StrCat("the router at ", options_.endpoint, " is ",
                                                  welcome_.has_value() ? "silent" : "not reachable",
                                                  " for ", options_.timeout / kMillisecond, " ms"));
  } else if (welcome_.has_value() &&
             now - last_spoken_ >= Duration{welcome_->keep_alive_ms} * kMillisecond) {
    ReportAll();
    Transmit(KeepAlive{});
  }
  SendWaiting();
}

void ClientConnection::Transmit(const ClientMessage& message) {
  TransmitBytes(EncodeClientMessage(message, incarnation_));
}

void ClientConnection::TransmitBytes(std::string bytes) {
  last_spoken_ = MonotonicNow();
  if (link_ != nullptr && !link_->Send(std::move(bytes)).ok()) link_failed_ = true;
}

void ClientConnection::SubmitHere(GenerateRequest request, uint64_t ticket, EventSink sink,
                                  std::shared_ptr<StreamProgress> progress) {
  RequestId request_id = request.request_id;
  if (open_.contains(request_id)) {
    return sink(ErrorOf(request_id, ErrorCode::kInvalidArgument,
                        absl::StrCat("request_id: ", request_id.ToString(), " is already open")));
  }
  std::string bytes = EncodeClientMessage(request, incarnation_);
  if (bytes.size() > kMaxClientMessageBytes) {  // It would end the connection and every stream.
    return sink(ErrorOf(request_id, ErrorCode::kInvalidArgument,
                        absl::StrCat("the request has ", bytes.size(),
                                     " bytes, allowed: ", kMaxClientMessageBytes)));
  }
  BeginWait();
  Open& open = open_[request_id];
  open.sink = std::move(sink);
  open.ticket = ticket;
  open.sink_takes = progress == nullptr;
  open.progress = open.sink_takes ? std::make_shared<StreamProgress>() : std::move(progress);
  Time until = HoldUntil(request);
  if (!welcome_.has_value()) {
    waiting_.push_back({std::move(request), 0, 0});
  } else if (until != 0) {
    waiting_.push_back({std::move(request), MonotonicNow(), until});
  } else {
    open.unanswered = std::move(request);
    TransmitBytes(std::move(bytes));
  }
}

Time ClientConnection::HoldUntil(const GenerateRequest& request) const {
  Time now = MonotonicNow();
  // Behind those that wait already, even if there is credit for some.
  Time until = waiting_.empty() ? hold_until_ : std::max(hold_until_, waiting_.back().until);
  if (!options_.throttle || until <= now) return 0;
  for (const std::optional<uint32_t>& deadline : {request.ttft_deadline_ms, request.deadline_ms}) {
    if (deadline && now + Duration{*deadline} * kMillisecond <= until) return 0;
  }
  return until;
}

void ClientConnection::SendWaiting() {
  Time now = MonotonicNow();
  while (welcome_.has_value() && !waiting_.empty() && waiting_.front().until <= now) {
    Waiting entry = std::move(waiting_.front());
    waiting_.pop_front();
    // Its deadlines count from when it was made.
    auto waited_ms =
        static_cast<uint32_t>(entry.since == 0 ? 0 : (now - entry.since) / kMillisecond);
    for (std::optional<uint32_t>* deadline :
         {&entry.request.ttft_deadline_ms, &entry.request.deadline_ms}) {
      if (*deadline) **deadline -= std::min(**deadline - 1, waited_ms);
    }
    auto found = open_.find(entry.request.request_id);
    if (found == open_.end()) continue;
    ClientMessage message = std::move(entry.request);
    std::string bytes = EncodeClientMessage(message, incarnation_);
    found->second.unanswered = std::get<GenerateRequest>(std::move(message));
    TransmitBytes(std::move(bytes));
  }
}

void ClientConnection::OnRefusal(const RequestError& error) {
  const ErrorDetails& details = error.details;
  // An older router does not say that it takes none.
  bool none = details.credit ? *details.credit == 0 : error.code == ErrorCode::kOverloaded;
  if (!none || !details.retry_after_ms) return OnCredit(details.credit);
  auto longest = static_cast<uint64_t>(kMaxHold / kMillisecond);
  auto ms = static_cast<Duration>(std::min(*details.retry_after_ms, longest));
  hold_until_ = std::max(hold_until_, MonotonicNow() + ms * kMillisecond);
}

void ClientConnection::OnCredit(std::optional<uint32_t> credit) {
  if (!credit) return;
  if (*credit == 0) {
    hold_until_ = std::max(hold_until_, MonotonicNow() + kHoldWithoutAdvice);
    return;
  }
  hold_until_ = 0;
  for (size_t i = 0; i < std::min<size_t>(*credit, waiting_.size()); ++i) waiting_[i].until = 0;
  SendWaiting();
}

void ClientConnection::Report(const RequestId& request_id, uint64_t ticket) {
  auto found = open_.find(request_id);
  if (found == open_.end() || found->second.ticket != ticket || !welcome_.has_value()) return;
  found->second.reported = found->second.progress->taken;
  Time spoken = last_spoken_;
  Transmit(Consumed{{{request_id, found->second.reported}}});
  last_spoken_ = spoken;  // The next keep-alive is still due: only that has an answer.
}

void ClientConnection::ReportAll() {
  if (report_every_ == 0) return;
  Consumed consumed;
  for (auto& [request_id, open] : open_) {
    uint64_t taken = open.progress->taken;
    if (taken == open.reported || consumed.streams.size() == kMaxConsumedStreams) continue;
    open.reported = taken;
    consumed.streams.push_back({request_id, taken});
  }
  if (!consumed.streams.empty()) Transmit(consumed);
}

void ClientConnection::CancelHere(const RequestId& request_id, std::optional<uint64_t> ticket) {
  auto found = open_.find(request_id);
  if (found == open_.end() || (ticket.has_value() && found->second.ticket != *ticket)) return;
  size_t unsent = std::erase_if(
      waiting_, [&](const Waiting& entry) { return entry.request.request_id == request_id; });
  if (unsent == 0) Transmit(CancelRequest{request_id});
  EndRequest(request_id, ErrorCode::kCancelled, "cancelled by the client");
}

void ClientConnection::EndRequest(const RequestId& request_id, ErrorCode code,
                                  const std::string& message) {
  auto found = open_.find(request_id);
  if (found == open_.end()) return;
  EventSink sink = std::move(found->second.sink);
  open_.erase(found);
  sink(ErrorOf(request_id, code, message));
}

void ClientConnection::FailAll(ErrorCode code, const std::string& message) {
  waiting_.clear();
  std::map<RequestId, Open> open = std::move(open_);
  open_.clear();
  std::deque<CapacitySink> queries = std::move(queries_);
  queries_.clear();
  queries_sent_ = 0;
  std::vector<WelcomeSink> welcome_sinks = std::move(welcome_sinks_);
  welcome_sinks_.clear();
  for (auto& [request_id, request] : open) request.sink(ErrorOf(request_id, code, message));
  for (CapacitySink& sink : queries) sink(Unavailable(message));
  for (WelcomeSink& sink : welcome_sinks) sink(Unavailable(message));
}

bool ClientConnection::AnythingOpen() const {
  return !open_.empty() || !queries_.empty() || !welcome_sinks_.empty();
}

void ClientConnection::BeginWait() {
  if (!AnythingOpen()) last_heard_ = MonotonicNow();
  if (hello_due_ && link_ != nullptr) SayHello();
}

Time ClientConnection::NextDeadline() const {
  Time next = link_ == nullptr ? reopen_at_ : kTimeMax;
  if (!AnythingOpen()) return next;
  next = std::min(next, last_heard_ + options_.timeout);
  if (welcome_.has_value()) {
    next = std::min(next, last_spoken_ + Duration{welcome_->keep_alive_ms} * kMillisecond);
    if (!waiting_.empty()) next = std::min(next, waiting_.front().until);
  }
  return next;
}

}  // namespace kvern
