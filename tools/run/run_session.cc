#include "tools/run/run_session.h"

#include <unistd.h>

#include <random>
#include <utility>

#include "cluster/base/check.h"
#include "cluster/base/clock.h"
#include "router/io/text_filters.h"
#include "tools/run/run_request.h"

namespace kvern {
namespace {

// Lines that are read but not answered: enough to fill any batch, and bounded.
constexpr size_t kMaxOpen = 1024;
constexpr size_t kMaxOpenBytes = 256u << 20;
// Nothing is late here: no deadline of the router comes within the lifetime of a process.
constexpr Duration kNever = int64_t{365} * 24 * 3600 * kSecond;
constexpr Duration kGroupLease = 24 * 3600 * kSecond;
// How often an idle leader proves itself to its ranks, times four.
constexpr uint32_t kRankLeaseMs = 10000;
constexpr PeerId kClient = 1;
constexpr PeerId kFirstRank = 2;
constexpr uint64_t kIdHigh = 1;  // of all request ids; the low half is the line's number

uint64_t DrawSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunSession>> RunSession::Open(const RunOptions& options) {
  KVERN_ASSIGN_OR_RETURN(WakeUp wake, WakeUp::Create());
  std::unique_ptr<RunSession> session(new RunSession(options, std::move(wake)));
  KVERN_RETURN_IF_ERROR(session->OpenText());
  KVERN_RETURN_IF_ERROR(session->OpenGroup());
  session->StartRouter();
  KVERN_RETURN_IF_ERROR(session->Perform());
  return session;
}

RunSession::~RunSession() = default;

absl::Status RunSession::OpenText() {
  const TokenizerData* data = options_.checkpoint->tokenizer();
  if (data == nullptr) {
    if (options_.chat_template.empty()) return absl::OkStatus();
    return InvalidArgument("--chat-template: the model has no tokenizer");
  }
  KVERN_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(*data));
  filters_ = MakeTextFilters(&*tokenizer_);
  absl::StatusOr<ChatTemplate> chat =
      ChatTemplate::Choose(options_.chat_template, tokenizer_->chat_template());
  if (!options_.chat_template.empty() && !chat.ok()) {
    return InvalidArgument("--chat-template: ", chat.status().message());
  }
  text_pool_ = std::make_unique<TextPool>(&*tokenizer_, std::move(chat), &wake_);
  return text_pool_->Start(/*threads=*/1);
}

absl::Status RunSession::OpenGroup() {
  auto sink = [this](WorkerToRouter message) {
    std::lock_guard lock(mutex_);
    from_group_.push_back(std::move(message));
    wake_.Notify();
  };
  auto ended = [this](absl::Status status) {
    std::lock_guard lock(mutex_);
    group_end_ = std::move(status);
    wake_.Notify();
  };
  KVERN_ASSIGN_OR_RETURN(group_, LocalGroup::Open(options_.checkpoint, options_.rank, sink, ended));
  return absl::OkStatus();
}

void RunSession::StartRouter() {
  const ModelConfig& model = options_.checkpoint->config();
  const std::vector<Join>& joins = group_->joins();
  RouterConfig config;
  config.model = "local";
  config.has_tokenizer = tokenizer_.has_value();
  config.max_seq_len = joins[0].max_seq_len;
  config.vocab_size = model.vocab_size;
  config.eos_ids = model.eos_ids;
  config.default_max_tokens = options_.default_max_tokens;
  config.default_ttft_deadline = kNever;
  config.queue_wait_max = kNever;
  config.queue_entries = kMaxOpen;
  config.queue_bytes = 2 * kMaxOpenBytes;
  config.client_lease = kNever;
  config.group_lease = kGroupLease;
  router_ = std::make_unique<Router>(config, DrawSeed(), filters_.get());
  now_ = MonotonicNow();
  Step(ClientSaid{kClient, Hello{}});
  for (Join join : joins) {
    join.group = "local";
    join.group_incarnation = 1;
    join.model = config.model;
    PeerId peer = kFirstRank + join.rank;
    Step(WorkerSaid{peer, std::move(join)});
  }
}

absl::Status RunSession::Run(int input, std::FILE* output) {
  LineSource lines(input, kMaxRunLineBytes);
  show_progress_ = isatty(STDERR_FILENO) == 1;
  started_ = MonotonicNow();
  while (true) {
    KVERN_RETURN_IF_ERROR(Wait(lines));
    now_ = MonotonicNow();
    wake_.Clear();
    TakeLines(lines);
    KVERN_RETURN_IF_ERROR(TakeGroupMessages());
    TakeTexts();
    if (now_ >= router_->NextDeadline()) Step(Tick{});
    KVERN_RETURN_IF_ERROR(Perform());
    KVERN_RETURN_IF_ERROR(WriteFinished(output));
    bool over = lines.at_end() && answers_.empty();
    ShowProgress(over);
    if (over) return absl::OkStatus();
  }
}

bool RunSession::HasRoom() const {
  return answers_.size() < kMaxOpen && open_bytes_ < kMaxOpenBytes;
}

absl::Status RunSession::Wait(LineSource& lines) {
  Poller poller;
  poller.AddFd(wake_.fd());
  bool reading = HasRoom() && !lines.at_end();
  size_t input = reading ? poller.AddFd(lines.fd()) : 0;
  Time deadline = router_->NextDeadline();
  Duration timeout = deadline == kTimeMax ? kTimeMax : std::max<Duration>(0, deadline - now_);
  KVERN_RETURN_IF_ERROR(poller.Wait(timeout));
  if (reading && poller.Ready(input)) return lines.Read();
  return absl::OkStatus();
}

void RunSession::TakeLines(LineSource& lines) {
  while (HasRoom()) {
    std::optional<LineSource::Line> line = lines.Next();
    if (!line) return;
    bool blank = !line->too_long && line->text.find_first_not_of(" \t\r") == std::string::npos;
    if (!blank) TakeLine(*line);
  }
}

void RunSession::TakeLine(const LineSource::Line& line) {
  answers_.push_back(std::make_unique<Answer>());
  Answer& answer = *answers_.back();
  GenerateRequest request;
  bool good = ParseRunLine(line, request, answer);
  open_bytes_ += answer.input_bytes;
  if (!good) return;
  request.request_id = {kIdHigh, first_ + answers_.size()};  // the first line's is 1
  Step(ClientSaid{kClient, std::move(request)});
}

absl::Status RunSession::TakeGroupMessages() {
  std::vector<WorkerToRouter> messages;
  std::optional<absl::Status> end;
  {
    std::lock_guard lock(mutex_);
    messages.swap(from_group_);
    end = group_end_;
  }
  for (WorkerToRouter& message : messages) Step(WorkerSaid{kFirstRank, std::move(message)});
  if (end) return end->ok() ? Internal("the ranks ended on their own") : *end;
  return absl::OkStatus();
}

void RunSession::TakeTexts() {
  if (text_pool_ == nullptr) return;
  for (Tokenized& text : text_pool_->Take()) {
    Answer& answer = Find(text.request_id);
    if (answer.echo_prompt) answer.prompt = text.ids;
    Step(std::move(text));
  }
}

absl::Status RunSession::Perform() {
  router_->Flush(now_, effects_);
  for (Tokenize& job : effects_.tokenize) text_pool_->Submit(std::move(job));
  for (const RequestId& id : effects_.withdrawn) text_pool_->Withdraw(id);
  for (ToClient& each : effects_.to_clients) Deliver(std::move(each.message));
  for (ToWorker& each : effects_.to_workers) {
    KVERN_RETURN_IF_ERROR(DeliverToRank(each.worker, std::move(each.message)));
  }
  effects_.Clear();
  return absl::OkStatus();
}

Answer& RunSession::Find(const RequestId& id) {
  KVERN_CHECK(id.high == kIdHigh && id.low > first_ && id.low <= first_ + answers_.size());
  return *answers_[id.low - first_ - 1];
}

void RunSession::Deliver(RouterToClient message) {
  if (const auto* accepted = std::get_if<Accepted>(&message)) {
    Find(accepted->request_id).seed = accepted->seed;
  } else if (auto* deltas = std::get_if<Deltas>(&message)) {
    for (Delta& delta : deltas->deltas) {
      tokens_ += delta.token_ids.size();
      Find(delta.request_id).Add(std::move(delta));
    }
  } else if (auto* error = std::get_if<RequestError>(&message)) {
    Find(error->request_id).error = std::move(*error);
  }
}

absl::Status RunSession::DeliverToRank(PeerId peer, RouterToWorker message) {
  if (auto* commands = std::get_if<Commands>(&message)) {
    group_->Push(std::move(*commands));
  } else if (auto* refused = std::get_if<JoinRefused>(&message)) {
    return Internal("the group was refused: ", refused->reason);
  } else if (peer == kFirstRank) {
    GroupStart start = std::get<GroupStart>(message);
    start.lease_ms = kRankLeaseMs;
    group_->Start(start);
  }
  return absl::OkStatus();
}

absl::Status RunSession::WriteFinished(std::FILE* output) {
  bool any = false;
  while (!answers_.empty() && answers_.front()->done()) {
    const Answer& answer = *answers_.front();
    std::string line = ResultLine(answer) + "\n";
    std::fwrite(line.data(), 1, line.size(), output);
    open_bytes_ -= answer.input_bytes;
    answers_.pop_front();
    ++first_;
    ++written_;
    any = true;
  }
  if (any && std::fflush(output) != 0) return ErrnoStatus("writing the results", errno);
  return absl::OkStatus();
}

void RunSession::ShowProgress(bool last) {
  constexpr Duration kEvery = 200 * kMillisecond;
  if (!show_progress_ || (!last && now_ - last_progress_ < kEvery)) return;
  last_progress_ = now_;
  double seconds = static_cast<double>(now_ - started_) / 1e9;
  std::fprintf(stderr, "\r%llu answered, %zu open, %llu tokens, %.1f tokens/s   %s",
               static_cast<unsigned long long>(written_), answers_.size(),
               static_cast<unsigned long long>(tokens_),
               seconds > 0 ? static_cast<double>(tokens_) / seconds : 0.0, last ? "\n" : "");
}

}  // namespace kvern
