#include "cluster/net/socket.h"

#include <arpa/inet.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <future>

#include "cluster/base/check.h"
#include "cluster/base/threads.h"

namespace kvern {
namespace {

// A handshake that takes longer is a stranger who holds a connection open.
constexpr int kHandshakeMs = 500;
// Hosts that vanished are found by TCP: 15 s of silence, then three questions. ZeroMQ's own
// heartbeats are not used: libzmq (4.3.5, too) aborts the process when one is due on a connection
// that broke while its input was stopped by a full queue (stream_engine_base.cpp, out_event), which
// is what a busy client that is killed leaves behind. Frozen processes are found by leases.
constexpr int kKeepAliveIdleSeconds = 15;
constexpr int kKeepAliveEverySeconds = 5;
constexpr int kKeepAliveCount = 3;
constexpr int kReconnectMs = 20;
constexpr int kReconnectMaxMs = 1000;
constexpr int kBacklog = 1024;

absl::Status ZmqStatus(std::string_view action) {
  int error = zmq_errno();
  return Unavailable(ToAbsl(action), ": ", zmq_strerror(error));
}

// The port of "tcp://host:port". ZeroMQ itself takes 99999 for 34463; "*" is its other name for 0.
bool HasPort(std::string_view endpoint) {
  std::string_view text = endpoint.substr(endpoint.rfind(':') + 1);
  uint16_t port = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return text == "*" || (error == std::errc() && stop == text.data() + text.size());
}

absl::Status NoPort(std::string_view endpoint) {
  return InvalidArgument("'", ToAbsl(endpoint), "': its port is not a number from 0 to 65535");
}

constexpr char kEndpoints[] = ", allowed: tcp://HOST:PORT, ipc://PATH";

// ThreadSanitizer does not see the order in which ZeroMQ, which is not instrumented, hands a
// message from thread to thread.
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
void HandOver(void* owner) { __tsan_release(owner); }
void TakeOver(void* owner) { __tsan_acquire(owner); }
#else
void HandOver(void*) {}
void TakeOver(void*) {}
#endif

void FreeString(void*, void* hint) {
  TakeOver(hint);
  delete static_cast<std::string*>(hint);
}

void LetGo(void*, void* hint) {
  TakeOver(hint);
  delete static_cast<std::shared_ptr<const void>*>(hint);
}

// Smaller bodies are copied into the message: cheaper than an allocation for its bookkeeping.
constexpr size_t kCopyBytes = 1024;

void FillMessage(std::string& body, zmq_msg_t* message) {
  if (body.size() <= kCopyBytes) {
    KVERN_CHECK_EQ(zmq_msg_init_size(message, body.size()), 0) << "out of memory";
    std::memcpy(zmq_msg_data(message), body.data(), body.size());
    body.clear();
    return;
  }
  auto* owner = new std::string(std::move(body));
  char* const data = owner->data();
  const size_t size = owner->size();
  HandOver(owner);
  KVERN_CHECK_EQ(zmq_msg_init_data(message, data, size, FreeString, owner), 0) << "out of memory";
}

int SendFlags(bool more) { return more ? ZMQ_DONTWAIT | ZMQ_SNDMORE : ZMQ_DONTWAIT; }

// libzmq ends the process when it gets no thread for its own two, with the first socket.
absl::Status CheckThreads() {
  std::promise<void> tried;  // both are there at once
  absl::StatusOr<std::thread> first = StartThread([done = tried.get_future()] { done.wait(); });
  absl::StatusOr<std::thread> second = StartThread([] {});
  tried.set_value();
  if (first.ok()) first->join();
  if (second.ok()) second->join();
  KVERN_RETURN_IF_ERROR(first.status());
  return second.status();
}

}  // namespace

std::shared_ptr<const void> Frame::Share() {
  const std::byte* before = bytes().data();
  auto shared = std::make_shared<Frame>(std::move(*this));
  KVERN_CHECK(shared->bytes().data() == before) << "the bytes lie within the frame";
  return shared;
}

absl::StatusOr<std::unique_ptr<NetContext>> NetContext::Create() {
  KVERN_RETURN_IF_ERROR(CheckThreads());
  void* handle = zmq_ctx_new();
  if (handle == nullptr) return ZmqStatus("zmq_ctx_new");
  return std::unique_ptr<NetContext>(new NetContext(handle));
}

NetContext::~NetContext() {
  while (zmq_ctx_term(handle_) != 0 && zmq_errno() == EINTR) {
  }
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  Close();
  handle_ = other.handle_;
  other.handle_ = nullptr;
  return *this;
}

void Socket::Close() {
  if (handle_ != nullptr) zmq_close(handle_);
  handle_ = nullptr;
}

absl::Status Socket::Set(int option, int value, std::string_view name) {
  if (zmq_setsockopt(handle_, option, &value, sizeof(value)) == 0) return absl::OkStatus();
  return ZmqStatus(absl::StrCat("socket option ", ToAbsl(name), " = ", value));
}

absl::StatusOr<Socket> Socket::Open(NetContext& context, int type, const SocketOptions& options) {
  KVERN_CHECK(options.max_message_bytes > 0) << "every socket has a limit";
  Socket socket(zmq_socket(context.handle(), type));
  if (socket.handle_ == nullptr) return ZmqStatus("zmq_socket");
  struct Setting {
    int option;
    int value;
    std::string_view name;
  };
  const Setting settings[] = {
      {ZMQ_LINGER, options.linger_ms, "LINGER"},
      {ZMQ_SNDHWM, options.send_queue, "SNDHWM"},
      {ZMQ_RCVHWM, options.receive_queue, "RCVHWM"},
      {ZMQ_HANDSHAKE_IVL, kHandshakeMs, "HANDSHAKE_IVL"},
      {ZMQ_TCP_KEEPALIVE, 1, "TCP_KEEPALIVE"},
      {ZMQ_TCP_KEEPALIVE_IDLE, kKeepAliveIdleSeconds, "TCP_KEEPALIVE_IDLE"},
      {ZMQ_TCP_KEEPALIVE_INTVL, kKeepAliveEverySeconds, "TCP_KEEPALIVE_INTVL"},
      {ZMQ_TCP_KEEPALIVE_CNT, kKeepAliveCount, "TCP_KEEPALIVE_CNT"},
      {ZMQ_RECONNECT_IVL, kReconnectMs, "RECONNECT_IVL"},
      {ZMQ_RECONNECT_IVL_MAX, kReconnectMaxMs, "RECONNECT_IVL_MAX"},
      {ZMQ_BACKLOG, kBacklog, "BACKLOG"},
  };
  for (const Setting& setting : settings) {
    KVERN_RETURN_IF_ERROR(socket.Set(setting.option, setting.value, setting.name));
  }
  int64_t max_bytes = options.max_message_bytes;
  if (zmq_setsockopt(socket.handle_, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes)) != 0) {
    return ZmqStatus("socket option MAXMSGSIZE");
  }
  return socket;
}

absl::StatusOr<bool> Socket::ReceiveFrame(Frame* frame) {
  for (;;) {
    if (zmq_msg_recv(frame->message(), handle_, ZMQ_DONTWAIT) >= 0) return true;
    if (zmq_errno() == EAGAIN) return false;
    if (zmq_errno() != EINTR) return ZmqStatus("zmq_msg_recv");
  }
}

absl::Status Socket::DropRest() {
  Frame frame;
  do {
    KVERN_ASSIGN_OR_RETURN(bool received, ReceiveFrame(&frame));
    // ZeroMQ hands over whole messages, so the rest is there.
    KVERN_CHECK(received) << "half a message";
  } while (zmq_msg_more(frame.message()) != 0);
  return absl::OkStatus();
}

absl::StatusOr<bool> Socket::SendBody(std::string& body, bool more) {
  zmq_msg_t message;
  FillMessage(body, &message);
  for (;;) {
    if (zmq_msg_send(&message, handle_, SendFlags(more)) >= 0) return true;
    int error = zmq_errno();
    if (error == EINTR) continue;
    if (error == EAGAIN) {  // The caller keeps the body.
      body.assign(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    }
    absl::Status status = ZmqStatus("zmq_msg_send");
    zmq_msg_close(&message);
    if (error == EAGAIN) return false;
    return status;
  }
}

absl::StatusOr<bool> Socket::SendShared(const SharedBytes& shared, bool more) {
  zmq_msg_t message;
  // ZeroMQ only reads what it sends.
  auto* data = const_cast<std::byte*>(shared.bytes.data());
  auto* owner = new std::shared_ptr<const void>(shared.owner);
  HandOver(owner);
  KVERN_CHECK_EQ(zmq_msg_init_data(&message, data, shared.bytes.size(), LetGo, owner), 0)
      << "out of memory";
  for (;;) {
    if (zmq_msg_send(&message, handle_, SendFlags(more)) >= 0) return true;
    int error = zmq_errno();
    if (error == EINTR) continue;
    absl::Status status = ZmqStatus("zmq_msg_send");
    zmq_msg_close(&message);
    if (error == EAGAIN) return false;
    return status;
  }
}

absl::Status CheckLoopback(std::string_view endpoint) {
  if (endpoint.starts_with("ipc://")) return absl::OkStatus();
  if (!endpoint.starts_with("tcp://")) {
    return InvalidArgument("'", ToAbsl(endpoint), "', allowed: tcp://127.0.0.1:PORT, ipc://PATH");
  }
  std::string_view host_port = endpoint.substr(6);
  size_t colon = host_port.rfind(':');
  std::string address(host_port.substr(0, colon));
  in_addr parsed{};
  if (colon != std::string_view::npos && inet_pton(AF_INET, address.c_str(), &parsed) == 1 &&
      (ntohl(parsed.s_addr) >> 24) == 127) {
    return HasPort(endpoint) ? absl::OkStatus() : NoPort(endpoint);
  }
  return FailedPrecondition("'", ToAbsl(endpoint),
                            "' is not a loopback address with a port, allowed: tcp://127.0.0.1:PORT"
                            " (other addresses need keys, which are not there yet)");
}

absl::Status CheckEndpoint(std::string_view endpoint) {
  bool tcp = endpoint.starts_with("tcp://");
  if (tcp && endpoint.rfind(':') > 6)
    return HasPort(endpoint) ? absl::OkStatus() : NoPort(endpoint);
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6) return absl::OkStatus();
  return InvalidArgument("'", ToAbsl(endpoint), "'", kEndpoints);
}

absl::StatusOr<RouterSocket> RouterSocket::Bind(NetContext& context, const std::string& endpoint,
                                                const SocketOptions& options) {
  KVERN_RETURN_IF_ERROR(CheckLoopback(endpoint));
  KVERN_RETURN_IF_ERROR(CheckIpcFile(endpoint));
  KVERN_ASSIGN_OR_RETURN(Socket socket, Open(context, ZMQ_ROUTER, options));
  RouterSocket router(std::move(socket), endpoint);
  // Without it a message to a full or unknown peer is dropped without a word.
  KVERN_RETURN_IF_ERROR(router.Set(ZMQ_ROUTER_MANDATORY, 1, "ROUTER_MANDATORY"));
  if (zmq_bind(router.handle_, endpoint.c_str()) != 0) {
    return ZmqStatus(absl::StrCat("cannot listen on ", endpoint));
  }
  char actual[256];
  size_t size = sizeof(actual);
  if (zmq_getsockopt(router.handle_, ZMQ_LAST_ENDPOINT, actual, &size) != 0 || size == 0) {
    return ZmqStatus("socket option LAST_ENDPOINT");
  }
  router.endpoint_.assign(actual, size - 1);
  router.file_ = IpcFile(router.endpoint_);
  return router;
}

absl::StatusOr<SendResult> RouterSocket::Send(std::string_view routing_id, std::string& body,
                                              std::span<const SharedBytes> attached) {
  for (;;) {
    if (zmq_send(handle_, routing_id.data(), routing_id.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0) {
      break;
    }
    int error = zmq_errno();
    if (error == EAGAIN) return SendResult::kWouldBlock;
    if (error == EHOSTUNREACH) return SendResult::kUnreachable;
    if (error != EINTR) return ZmqStatus("zmq_send");
  }
  // The queue has room: that was asked with the routing id.
  KVERN_ASSIGN_OR_RETURN(bool sent, SendBody(body, !attached.empty()));
  KVERN_CHECK(sent) << "a ROUTER took a routing id and not the body";
  for (const SharedBytes& frame : attached) {
    KVERN_ASSIGN_OR_RETURN(sent, SendShared(frame, &frame != &attached.back()));
    KVERN_CHECK(sent) << "a ROUTER took a body and not what is attached";
  }
  return SendResult::kSent;
}

absl::StatusOr<ReceiveResult> RouterSocket::Receive(std::string* routing_id, Frame* body) {
  KVERN_ASSIGN_OR_RETURN(bool received, ReceiveFrame(body));
  if (!received) return ReceiveResult::kNothing;
  routing_id->assign(body->text());
  if (zmq_msg_more(body->message()) == 0) return ReceiveResult::kMalformed;
  KVERN_ASSIGN_OR_RETURN(received, ReceiveFrame(body));
  KVERN_CHECK(received) << "half a message";
  if (zmq_msg_more(body->message()) == 0) return ReceiveResult::kMessage;
  KVERN_RETURN_IF_ERROR(DropRest());
  return ReceiveResult::kMalformed;
}

absl::StatusOr<DealerSocket> DealerSocket::Connect(NetContext& context, const std::string& endpoint,
                                                   const SocketOptions& options) {
  KVERN_RETURN_IF_ERROR(CheckEndpoint(endpoint));
  KVERN_ASSIGN_OR_RETURN(Socket socket, Open(context, ZMQ_DEALER, options));
  if (zmq_connect(socket.handle(), endpoint.c_str()) != 0) {
    return InvalidArgument("cannot connect to '", endpoint, "': ", zmq_strerror(zmq_errno()),
                           kEndpoints);
  }
  return DealerSocket(std::move(socket));
}

absl::StatusOr<SendResult> DealerSocket::Send(std::string& body) {
  KVERN_ASSIGN_OR_RETURN(bool sent, SendBody(body));
  return sent ? SendResult::kSent : SendResult::kWouldBlock;
}

absl::StatusOr<ReceiveResult> DealerSocket::Receive(Frame* body, std::vector<Frame>* attached) {
  if (attached != nullptr) attached->clear();
  KVERN_ASSIGN_OR_RETURN(bool received, ReceiveFrame(body));
  if (!received) return ReceiveResult::kNothing;
  if (zmq_msg_more(body->message()) == 0) return ReceiveResult::kMessage;
  if (attached == nullptr) {
    KVERN_RETURN_IF_ERROR(DropRest());
    return ReceiveResult::kMalformed;
  }
  do {
    KVERN_ASSIGN_OR_RETURN(received, ReceiveFrame(&attached->emplace_back()));
    KVERN_CHECK(received) << "half a message";
  } while (zmq_msg_more(attached->back().message()) != 0);
  return ReceiveResult::kMessage;
}

}  // namespace kvern
