#include "tools/clients/cpp/link.h"

#include <zmq.h>

#include <utility>

#include "schemas/codec.h"

namespace kvern {
namespace {

// Messages that may wait in the socket, each way.
constexpr int kQueue = 10'000;
// The last words (cancellations) of a client that leaves.
constexpr int kLingerMs = 500;

}  // namespace

absl::StatusOr<std::unique_ptr<ClientLink>> ClientLink::Open(NetContext& context,
                                                             const std::string& endpoint) {
  SocketOptions options;
  options.max_message_bytes = static_cast<int64_t>(kMaxRouterToClientBytes);
  options.send_queue = kQueue;
  options.receive_queue = kQueue;
  options.linger_ms = kLingerMs;
  KVERN_ASSIGN_OR_RETURN(DealerSocket socket, DealerSocket::Connect(context, endpoint, options));
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<ConnectionWatch> watch,
                         ConnectionWatch::Create(context, socket));
  return std::unique_ptr<ClientLink>(new ClientLink(std::move(socket), std::move(watch)));
}

ClientLink::~ClientLink() {
  int linger_ms = watch_->Broken() ? 0 : kLingerMs;
  watch_.reset();  // before the socket that it watches
  zmq_setsockopt(socket_.handle(), ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
}

absl::Status ClientLink::Send(std::string body) {
  outbox_.push_back(std::move(body));
  return Flush();
}

absl::Status ClientLink::Flush() {
  while (!outbox_.empty()) {
    KVERN_ASSIGN_OR_RETURN(SendResult sent, socket_.Send(outbox_.front()));
    if (sent != SendResult::kSent) break;
    outbox_.pop_front();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ClientLink::Receive(Frame* frame) {
  while (true) {
    KVERN_ASSIGN_OR_RETURN(ReceiveResult received, socket_.Receive(frame));
    if (received != ReceiveResult::kMalformed) return received == ReceiveResult::kMessage;
  }
}

}  // namespace kvern
