// A DEALER as the benches' clients and workers use it: with its own context, as if it were a
// process of its own, and a poller.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/base/check.h"
#include "cluster/base/time.h"
#include "cluster/net/poller.h"
#include "cluster/net/socket.h"
#include "schemas/codec.h"

namespace kvern {

// Generous: what is measured must not run into them.
inline SocketOptions BenchSocketLimits() {
  SocketOptions options;
  options.max_message_bytes = 64 << 20;
  options.send_queue = options.receive_queue = 1 << 16;
  options.linger_ms = 1000;
  return options;
}

struct Dealer {
  explicit Dealer(const std::string& endpoint)
      : context(std::move(NetContext::Create().value())),
        socket(DealerSocket::Connect(*context, endpoint, BenchSocketLimits()).value()) {
    poller.Add(socket);
  }
  void Send(std::string body) { KVERN_CHECK(socket.Send(body).value() == SendResult::kSent); }
  // Waits at most `timeout`; false: nothing came.
  bool Receive(Frame* frame, Duration timeout = kTimeMax) {
    while (socket.Receive(frame, &attached).value() == ReceiveResult::kNothing) {
      if (timeout == 0) return false;
      KVERN_CHECK(poller.Wait(timeout).ok());
      if (timeout != kTimeMax) timeout = 0;
    }
    return true;
  }
  Decoded<RouterToWorker> Decode(const Frame& frame) const {
    std::vector<Bytes> prompts;
    for (const Frame& prompt : attached) prompts.push_back(prompt.bytes());
    return DecodeRouterToWorkerInParts(frame.bytes(), prompts);
  }

  std::unique_ptr<NetContext> context;
  DealerSocket socket;
  std::vector<Frame> attached;  // to the frame that was received last
  Poller poller;
};

}  // namespace kvern
