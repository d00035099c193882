// A router of a few lines on real sockets, and what tests of the C++ client ask it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/base/check.h"
#include "cluster/net/poller.h"
#include "cluster/net/socket.h"
#include "schemas/codec.h"
#include "tools/clients/cpp/client.h"

namespace kvern {

// Answers every message by `answer`, on its own thread.
class SmallRouter {
 public:
  using Reply = std::function<void(const RouterToClient&)>;
  using Answer = std::function<void(const ClientMessage&, const Reply&)>;

  explicit SmallRouter(Answer answer, const std::string& endpoint = "tcp://127.0.0.1:0")
      : answer_(std::move(answer)),
        context_(*NetContext::Create()),
        socket_(Bind(*context_, endpoint)),
        stop_(*WakeUp::Create()),
        thread_([this] { Run(); }) {}
  ~SmallRouter() {
    stopping_ = true;
    stop_.Notify();
    thread_.join();
  }

  const std::string& endpoint() const { return socket_.endpoint(); }

 private:
  static RouterSocket Bind(NetContext& context, const std::string& endpoint) {
    SocketOptions options;
    options.max_message_bytes = 1 << 20;
    options.send_queue = 1'000'000;  // Never full: this router does not wait for its peers.
    while (true) {                   // The port of the router before may not be free yet.
      absl::StatusOr<RouterSocket> socket = RouterSocket::Bind(context, endpoint, options);
      if (socket.ok()) return std::move(*socket);
      std::this_thread::yield();
    }
  }

  void Run() {
    Poller poller;
    poller.Add(socket_);
    poller.AddFd(stop_.fd());
    while (!stopping_) {
      KVERN_CHECK(poller.Wait(kTimeMax).ok());
      std::string peer;
      Frame frame;
      while (*socket_.Receive(&peer, &frame) == ReceiveResult::kMessage) {
        Decoded<ClientMessage> decoded = DecodeClientMessage(frame.bytes());
        auto send = [&](const RouterToClient& reply) {
          std::string body = EncodeRouterToClient(reply, 5);
          // A client may go while it is answered.
          KVERN_CHECK(*socket_.Send(peer, body) != SendResult::kWouldBlock);
        };
        if (decoded.ok()) {
          answer_(decoded.message, send);
        } else {
          KVERN_CHECK(decoded.failure == DecodeFailure::kOutOfRange) << decoded.error;
          send(RequestError{decoded.request_id, ErrorCode::kInvalidArgument, decoded.error, {}});
        }
      }
    }
  }

  Answer answer_;
  std::unique_ptr<NetContext> context_;
  RouterSocket socket_;
  WakeUp stop_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

inline Deltas DeltaOf(const RequestId& id, uint32_t choice, uint32_t position, bool last) {
  Delta delta;
  delta.request_id = id;
  delta.choice = choice;
  delta.position = position;
  delta.token_ids = {position};
  delta.text = std::to_string(position);
  if (last) {
    delta.finish_reason = FinishReason::kLength;
    delta.usage.emplace().completion_tokens = position + 1;
  }
  return {{delta}};
}

// max_tokens tokens for each request; "hang" gets one and no end, "endless" all and no end.
inline void Serve(const ClientMessage& message, const SmallRouter::Reply& reply) {
  if (std::holds_alternative<Hello>(message)) {
    Welcome welcome;
    welcome.router_incarnation = 5;
    welcome.model = "small";
    welcome.keep_alive_ms = 20;
    reply(welcome);
  } else if (std::holds_alternative<KeepAlive>(message)) {
    reply(KeepAliveReply{});
  } else if (std::holds_alternative<CapacityQuery>(message)) {
    reply(CapacityReply{16, {{"group-0", "small", 9, 3, 1, {}}}});
  } else if (const GenerateRequest* request = std::get_if<GenerateRequest>(&message)) {
    reply(Accepted{request->request_id, 77, 2, {}});
    if (request->prompt == "doubled") {
      RequestError error{request->request_id, ErrorCode::kInvalidArgument, "already in use", {}};
      error.details.still_open = true;
      reply(error);
    }
    bool hang = request->prompt == "hang";
    uint32_t tokens = hang ? 1 : *request->max_tokens;
    for (uint32_t i = 0; i < tokens; ++i) {
      bool ends = !hang && request->prompt != "endless";
      reply(DeltaOf(request->request_id, 0, i, ends && i + 1 == tokens));
    }
  }
}

inline std::unique_ptr<Client> ConnectTo(const std::string& endpoint,
                                         Duration timeout = 20 * kSecond) {
  ClientOptions options;
  options.endpoint = endpoint;
  options.timeout = timeout;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
  KVERN_CHECK(client.ok()) << client.status().ToString();
  return std::move(*client);
}

inline GenerateRequest Ask(const std::string& prompt, uint32_t max_tokens = 3) {
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  return request;
}

// What a router heard of one kind, for a thread that waits for it.
class Heard {
 public:
  void Add(uint64_t what) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(what);
    added_.notify_all();
  }
  // Blocks until so many were heard; returns them.
  std::vector<uint64_t> Await(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    added_.wait(lock, [&] { return all_.size() >= count; });
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<uint64_t> all_;
};

// Ends a stream by `end` after its first tokens and returns its last event.
inline RequestError LastWords(Client& client, const std::function<void(const RequestId&)>& end) {
  std::unique_ptr<RequestStream> stream = client.Generate(Ask("hang"));
  bool begun = false;
  while (std::optional<RequestEvent> event = stream->Next()) {
    if (const RequestError* error = std::get_if<RequestError>(&*event)) return *error;
    if (std::holds_alternative<Delta>(*event) && !begun) end(stream->request_id());
    begun = begun || std::holds_alternative<Delta>(*event);
  }
  return {};
}

}  // namespace kvern
