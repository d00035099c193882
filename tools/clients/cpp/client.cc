#include "tools/clients/cpp/client.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "cluster/base/check.h"
#include "tools/clients/cpp/connection.h"

namespace kvern {
namespace {

RequestId DrawRequestId() {
  RequestId id;
  while (id.IsZero()) {
    uint64_t words[2];
    KVERN_CHECK(getrandom(words, sizeof(words), 0) == sizeof(words));
    id = {words[0], words[1]};
  }
  return id;
}

// Draws the id if there is none.
RequestId NameRequest(GenerateRequest& request) {
  if (request.request_id.IsZero()) request.request_id = DrawRequestId();
  return request.request_id;
}

}  // namespace

bool IsEnd(const RequestEvent& event) {
  const Delta* delta = std::get_if<Delta>(&event);
  return std::holds_alternative<RequestError>(event) ||
         (delta != nullptr && delta->usage.has_value());
}

void Answer::Add(const RequestEvent& event) {
  if (const Accepted* accepted = std::get_if<Accepted>(&event)) {
    seed = accepted->seed;
  } else if (const RequestError* failed = std::get_if<RequestError>(&event)) {
    error = *failed;
  } else {
    const Delta& delta = std::get<Delta>(event);
    if (delta.choice >= choices.size()) return;  // Nobody asked for it.
    ChoiceAnswer& choice = choices[delta.choice];
    choice.text += delta.text.value_or("");
    choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    choice.logprobs.insert(choice.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    if (delta.finish_reason != FinishReason::kNone) {
      choice.finish_reason = delta.finish_reason;
      choice.stop_reason = delta.stop_reason;
    }
    if (delta.usage.has_value()) usage = *delta.usage;
  }
}

// Filled by the client's thread, emptied by the stream's.
struct RequestStream::Inbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::shared_ptr<StreamProgress> progress = std::make_shared<StreamProgress>();
  std::deque<RequestEvent> events;
};

RequestStream::~RequestStream() {
  if (!ended_) connection_->Cancel(request_id_, ticket_);
}

std::optional<RequestEvent> RequestStream::Next() {
  if (ended_) return std::nullopt;
  std::unique_lock<std::mutex> lock(inbox_->mutex);
  inbox_->arrived.wait(lock, [&] { return !inbox_->events.empty(); });
  RequestEvent event = std::move(inbox_->events.front());
  inbox_->events.pop_front();
  ended_ = IsEnd(event);
  lock.unlock();
  const Delta* delta = std::get_if<Delta>(&event);
  if (delta != nullptr && !ended_) {
    connection_->Taken(request_id_, ticket_, *inbox_->progress, delta->token_ids.size());
  }
  return event;
}

Client::Client(std::shared_ptr<ClientConnection> connection, Welcome welcome)
    : connection_(std::move(connection)), welcome_(std::move(welcome)) {}

Client::~Client() { connection_->Stop(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options, const std::function<void()>& still_waiting) {
  KVERN_ASSIGN_OR_RETURN(std::shared_ptr<ClientConnection> connection,
                         ClientConnection::Start(options));
  auto promise = std::make_shared<std::promise<absl::StatusOr<Welcome>>>();
  connection->AwaitWelcome(
      [promise](absl::StatusOr<Welcome> welcome) { promise->set_value(std::move(welcome)); });
  std::future<absl::StatusOr<Welcome>> arrived = promise->get_future();
  if (still_waiting != nullptr &&
      arrived.wait_for(std::chrono::seconds(1)) == std::future_status::timeout) {
    still_waiting();
  }
  KVERN_ASSIGN_OR_RETURN(Welcome welcome, arrived.get());
  return std::unique_ptr<Client>(new Client(std::move(connection), std::move(welcome)));
}

RequestId Client::Start(GenerateRequest request, EventSink sink) {
  KVERN_CHECK(sink != nullptr) << "Client::Start: the sink is empty";
  RequestId request_id = NameRequest(request);
  connection_->Submit(std::move(request), std::move(sink));
  return request_id;
}

std::unique_ptr<RequestStream> Client::Generate(GenerateRequest request) {
  auto inbox = std::make_shared<RequestStream::Inbox>();
  std::unique_ptr<RequestStream> stream(new RequestStream(connection_, inbox));
  stream->request_id_ = NameRequest(request);
  auto sink = [inbox](RequestEvent event) {
    std::lock_guard<std::mutex> lock(inbox->mutex);
    inbox->events.push_back(std::move(event));
    inbox->arrived.notify_one();
  };
  stream->ticket_ = connection_->Submit(std::move(request), std::move(sink), inbox->progress);
  return stream;
}

Answer Client::Complete(GenerateRequest request) {
  Answer answer;
  answer.choices.resize(std::min(request.n, kMaxChoices));  // more are refused
  std::unique_ptr<RequestStream> stream = Generate(std::move(request));
  while (std::optional<RequestEvent> event = stream->Next()) answer.Add(*event);
  return answer;
}

void Client::Cancel(const RequestId& request_id) { connection_->Cancel(request_id); }

absl::StatusOr<CapacityReply> Client::Capacity() {
  auto promise = std::make_shared<std::promise<absl::StatusOr<CapacityReply>>>();
  connection_->QueryCapacity(
      [promise](absl::StatusOr<CapacityReply> reply) { promise->set_value(std::move(reply)); });
  return promise->get_future().get();
}

}  // namespace kvern
