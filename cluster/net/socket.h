// ZeroMQ sockets as this system uses them: one ROUTER for each kind of peer, one DEALER on the
// other side, messages of one frame, or of a body and frames attached to it, sends that never
// block. Thin RAII over the C API of libzmq.
//
// Every socket has limits set (message size, queues, handshake time, TCP keep-alive): what they are
// by default is unlimited. A socket belongs to one thread; it may move to another with a fence
// between.
#pragma once

#include <zmq.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/net/ipc_file.h"

namespace kvern {

// The one ZeroMQ context of a process. Thread-safe. Outlives its sockets; its destructor waits
// until they are closed and their linger time is over.
class NetContext {
 public:
  static absl::StatusOr<std::unique_ptr<NetContext>> Create();
  ~NetContext();
  NetContext(const NetContext&) = delete;
  NetContext& operator=(const NetContext&) = delete;

  void* handle() const { return handle_; }

 private:
  explicit NetContext(void* handle) : handle_(handle) {}
  void* handle_;
};

// One received frame; its bytes stay where ZeroMQ put them.
class Frame {
 public:
  Frame() { zmq_msg_init(&message_); }
  ~Frame() { zmq_msg_close(&message_); }
  Frame(Frame&& other) noexcept : Frame() { zmq_msg_move(&message_, &other.message_); }
  Frame& operator=(Frame&& other) noexcept {
    zmq_msg_move(&message_, &other.message_);
    return *this;
  }

  std::span<const std::byte> bytes() const {
    auto* message = const_cast<zmq_msg_t*>(&message_);
    return {static_cast<const std::byte*>(zmq_msg_data(message)), zmq_msg_size(message)};
  }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes().data()), bytes().size()};
  }
  zmq_msg_t* message() { return &message_; }

  // Moves the frame to where it lasts as long as somebody holds the result; this one is empty then.
  // Its bytes stay where they were. REQUIRES: more than 64 bytes (fewer may lie within the frame).
  std::shared_ptr<const void> Share();

 private:
  zmq_msg_t message_;
};

// Bytes that are sent from where they lie. `owner` keeps them there, and lets go on any thread.
struct SharedBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

enum class SendResult {
  kSent,         // in the peer's queue; it may still be lost with the connection
  kWouldBlock,   // the peer's queue is full; nothing was sent
  kUnreachable,  // ROUTER: nobody has this routing id (any more); nothing was sent
};

enum class ReceiveResult {
  kMessage,
  kNothing,    // no message waits
  kMalformed,  // one was dropped that had another number of frames
};

struct SocketOptions {
  int64_t max_message_bytes = 0;  // of a received frame; the peer that sends more is cut off
  int send_queue = 1000;          // messages, for each peer
  int receive_queue = 1000;       // messages, for each peer
  int linger_ms = 0;              // how long closing waits for what was not yet sent
};

// What both kinds of socket do.
class Socket {
 public:
  Socket(Socket&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { Close(); }

  void* handle() const { return handle_; }

 protected:
  explicit Socket(void* handle) : handle_(handle) {}

  // A socket of ZeroMQ's `type` with every limit set.
  static absl::StatusOr<Socket> Open(NetContext& context, int type, const SocketOptions& options);
  absl::Status Set(int option, int value, std::string_view name);

  // Receives one frame without blocking. False: none waits.
  absl::StatusOr<bool> ReceiveFrame(Frame* frame);
  // Reads the rest of a message that has too many frames.
  absl::Status DropRest();
  // Sends a frame, the last one unless there is `more`. False: it would block, and `body` is as
  // before.
  absl::StatusOr<bool> SendBody(std::string& body, bool more = false);
  // Likewise, without a copy.
  absl::StatusOr<bool> SendShared(const SharedBytes& shared, bool more);

  void* handle_ = nullptr;

 private:
  void Close();
};

// Binds and talks to many peers, each known by a routing id that ZeroMQ gives it. A routing id is
// not an identity: after a reconnect the same process has another one.
class RouterSocket : public Socket {
 public:
  // `endpoint`: tcp://127.0.0.1:PORT (0: any free port) or ipc://PATH. failed_precondition: another
  // address than loopback, or a file at PATH that is no socket. unavailable: the port or PATH is
  // taken. What a killed process left at PATH is replaced; the socket's end removes its own.
  static absl::StatusOr<RouterSocket> Bind(NetContext& context, const std::string& endpoint,
                                           const SocketOptions& options);

  // With the real port.
  const std::string& endpoint() const { return endpoint_; }

  // Never blocks. `body` is moved from only when sent. Each of `attached` is a frame behind it.
  absl::StatusOr<SendResult> Send(std::string_view routing_id, std::string& body,
                                  std::span<const SharedBytes> attached = {});

  // Never blocks. With kMalformed `routing_id` is who sent it.
  absl::StatusOr<ReceiveResult> Receive(std::string* routing_id, Frame* body);

 private:
  RouterSocket(Socket socket, std::string endpoint)
      : Socket(std::move(socket)), endpoint_(std::move(endpoint)) {}
  std::string endpoint_;
  IpcFile file_;
};

// Connects to one RouterSocket, and again whenever the connection breaks; a message that was in
// flight then is lost without notice.
class DealerSocket : public Socket {
 public:
  // Returns before the connection stands. invalid_argument: not an endpoint.
  static absl::StatusOr<DealerSocket> Connect(NetContext& context, const std::string& endpoint,
                                              const SocketOptions& options);

  // Never blocks; messages wait until the connection stands. `body` is moved from only when sent.
  // Never kUnreachable.
  absl::StatusOr<SendResult> Send(std::string& body);

  // Never blocks. Without a place for what is attached, more than one frame is kMalformed.
  absl::StatusOr<ReceiveResult> Receive(Frame* body, std::vector<Frame>* attached = nullptr);

 private:
  explicit DealerSocket(Socket socket) : Socket(std::move(socket)) {}
};

// OK for ipc:// and for tcp:// with an address in 127.0.0.0/8; else why not.
absl::Status CheckLoopback(std::string_view endpoint);

// InvalidArgument unless it can be connected to: tcp://HOST:PORT or ipc://PATH.
absl::Status CheckEndpoint(std::string_view endpoint);

}  // namespace kvern
