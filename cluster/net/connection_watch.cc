#include "cluster/net/connection_watch.h"

#include <zmq.h>

#include <atomic>
#include <cerrno>
#include <string>

namespace kvern {

absl::StatusOr<std::unique_ptr<ConnectionWatch>> ConnectionWatch::Create(NetContext& context,
                                                                         const Socket& socket) {
  static std::atomic<uint64_t> next_name{0};
  std::string endpoint = absl::StrCat("inproc://connection-watch-", next_name++);
  if (zmq_socket_monitor(socket.handle(), endpoint.c_str(), ZMQ_EVENT_DISCONNECTED) != 0) {
    return ErrnoStatus("zmq_socket_monitor", errno);
  }
  void* events = zmq_socket(context.handle(), ZMQ_PAIR);
  if (events == nullptr) return ErrnoStatus("zmq_socket(PAIR)", errno);
  std::unique_ptr<ConnectionWatch> watch(new ConnectionWatch(socket.handle(), events));
  int no_linger = 0;
  zmq_setsockopt(events, ZMQ_LINGER, &no_linger, sizeof(no_linger));
  if (zmq_connect(events, endpoint.c_str()) != 0) {
    return ErrnoStatus(absl::StrCat("connecting to ", endpoint), errno);
  }
  return watch;
}

ConnectionWatch::~ConnectionWatch() {
  zmq_socket_monitor(watched_, nullptr, 0);
  zmq_close(events_);
}

bool ConnectionWatch::Broken() {
  // An event is two frames; that one came is all there is to know.
  Frame frame;
  while (zmq_msg_recv(frame.message(), events_, ZMQ_DONTWAIT) >= 0) broken_ = true;
  return broken_;
}

}  // namespace kvern
