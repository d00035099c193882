// The C++ client of a Kvern service. One thread per Client owns the socket, says hello after each
// connection and speaks each second while requests are open; every method may be called from any
// thread. Each request gets its events in order and exactly one end: a Delta with usage, or a
// RequestError (kUnavailable when the connection broke or the router is silent).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "schemas/client_messages.h"

namespace kvern {

struct ClientOptions {
  std::string endpoint = "tcp://127.0.0.1:5570";
  Duration timeout = 30 * kSecond;  // of the router's silence, not of an answer
  std::string tenant;               // said once per connection; empty: the default one
  std::string name = "cpp";         // for the router's log
  // While the service says that it takes no more, new requests wait here, for as long as it said,
  // or until it takes some. One that would not be sent before its deadline does not wait: the
  // service answers it. Off: everything is sent at once.
  bool throttle = true;
};

using RequestEvent = std::variant<Accepted, Delta, RequestError>;

// True for the last event of a request.
bool IsEnd(const RequestEvent& event);

// Called on the client's thread: must be quick, must not throw (that ends the program) and must not
// call the Client's blocking methods.
// What it was called with counts as read; a RequestStream's events do when Next returns them.
using EventSink = std::function<void(RequestEvent)>;

// One choice of a whole answer.
struct ChoiceAnswer {
  std::string text;
  std::vector<uint32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

struct Answer {
  std::optional<RequestError> error;  // then the rest is what came before it
  uint64_t seed = 0;
  std::vector<ChoiceAnswer> choices;  // [n]
  Usage usage;

  // Adds what one event says; the choices must have their final number.
  void Add(const RequestEvent& event);
};

class ClientConnection;

// The events of one request for a thread that waits for them. Dropping it before its end cancels.
class RequestStream {
 public:
  ~RequestStream();
  RequestStream(const RequestStream&) = delete;
  RequestStream& operator=(const RequestStream&) = delete;

  const RequestId& request_id() const { return request_id_; }
  // Blocks for the next event; nothing after the end.
  std::optional<RequestEvent> Next();

 private:
  friend class Client;
  struct Inbox;
  RequestStream(std::shared_ptr<ClientConnection> connection, std::shared_ptr<Inbox> inbox)
      : connection_(std::move(connection)), inbox_(std::move(inbox)) {}

  std::shared_ptr<ClientConnection> connection_;
  std::shared_ptr<Inbox> inbox_;
  RequestId request_id_;
  uint64_t ticket_ = 0;  // ClientConnection's
  bool ended_ = false;
};

class Client {
 public:
  // Waits for the router's welcome. unavailable: nobody answered within the timeout. When nobody
  // has within the first second, `still_waiting` is called once, here.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options, const std::function<void()>& still_waiting = nullptr);
  // Cancels what is open; its sinks and streams get kCancelled.
  ~Client();

  // What the router said of itself at first.
  const Welcome& welcome() const { return welcome_; }

  // Sends a request; draws the request_id if it is zero. The sink, which
  // must not be empty, is called until the end's event.
  RequestId Start(GenerateRequest request, EventSink sink);
  std::unique_ptr<RequestStream> Generate(GenerateRequest request);
  Answer Complete(GenerateRequest request);

  // Ends a request here and in the service: its sink gets kCancelled. No effect on one that is
  // over.
  void Cancel(const RequestId& request_id);

  // Blocks of all groups.
  absl::StatusOr<CapacityReply> Capacity();

 private:
  Client(std::shared_ptr<ClientConnection> connection, Welcome welcome);

  std::shared_ptr<ClientConnection> connection_;
  Welcome welcome_;
};

}  // namespace kvern
