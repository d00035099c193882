#include "tools/clients/cpp/link.h"

#include <zmq.h>

#include <atomic>
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
  static std::atomic<uint64_t> next_name{0};
  std::string name = absl::StrCat("inproc://client-watch-", next_name++);
  if (zmq_socket_monitor(socket.handle(), name.c_str(), ZMQ_EVENT_DISCONNECTED) != 0) {
    return Unavailable("zmq_socket_monitor: ", zmq_strerror(zmq_errno()));
  }
  void* watch = zmq_socket(context.handle(), ZMQ_PAIR);
  int no_linger = 0;
  if (watch == nullptr || zmq_setsockopt(watch, ZMQ_LINGER, &no_linger, sizeof(no_linger)) != 0 ||
      zmq_connect(watch, name.c_str()) != 0) {
    absl::Status status = Unavailable("watching the connection: ", zmq_strerror(zmq_errno()));
    if (watch != nullptr) zmq_close(watch);
    return status;
  }
  return std::unique_ptr<ClientLink>(new ClientLink(std::move(socket), watch));
}

ClientLink::~ClientLink() {
  zmq_socket_monitor(socket_.handle(), nullptr, 0);
  zmq_close(watch_);
  int linger_ms = broken_ ? 0 : kLingerMs;
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

bool ClientLink::Broken() {
  // An event has two frames; that one came is all there is to know.
  Frame frame;
  while (zmq_msg_recv(frame.message(), watch_, ZMQ_DONTWAIT) >= 0) broken_ = true;
  return broken_;
}

}  // namespace kvern
