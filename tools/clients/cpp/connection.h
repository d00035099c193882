// The client's thread: the link, the open requests and their times. Internal to the library.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "cluster/net/poller.h"
#include "cluster/net/socket.h"
#include "schemas/client_messages.h"
#include "schemas/codec.h"
#include "tools/clients/cpp/client.h"
#include "tools/clients/cpp/link.h"

namespace kvern {

// How many tokens of a stream its reader has taken. Written by the reader.
struct StreamProgress {
  std::atomic<uint64_t> taken{0};
};

class ClientConnection {
 public:
  using WelcomeSink = std::function<void(absl::StatusOr<Welcome>)>;
  using CapacitySink = std::function<void(absl::StatusOr<CapacityReply>)>;

  static absl::StatusOr<std::shared_ptr<ClientConnection>> Start(const ClientOptions& options);
  ~ClientConnection();

  // Each hands its work to the thread; the sinks are called there, once (events: until the end).
  void AwaitWelcome(WelcomeSink sink);
  // Returns the request's ticket: ids may repeat, tickets do not. Without `progress` what the sink
  // was called with counts as taken.
  uint64_t Submit(GenerateRequest request, EventSink sink,
                  std::shared_ptr<StreamProgress> progress = nullptr);
  // The reader has taken so many more. Wakes the thread when that makes half a window.
  void Taken(const RequestId& request_id, uint64_t ticket, StreamProgress& progress,
             uint64_t tokens);
  // With a ticket only the request that has it, so that whoever was refused for an id that is open
  // does not end the one that has it.
  void Cancel(const RequestId& request_id, std::optional<uint64_t> ticket = std::nullopt);
  void QueryCapacity(CapacitySink sink);
  // Ends all that is open with kCancelled and then the thread. The second call waits only.
  void Stop();

 private:
  struct Open {
    EventSink sink;
    uint64_t ticket = 0;
    std::optional<GenerateRequest> unanswered;  // sent, and not accepted yet
    std::shared_ptr<StreamProgress> progress;
    bool sink_takes = false;  // else a reader that calls Taken
    uint64_t reported = 0;    // tokens, to the router
  };
  struct Waiting {
    GenerateRequest request;
    Time since = 0;  // when it was held back; 0: it waits for the welcome only
    Time until = 0;  // sent then at the latest
  };

  ClientConnection(ClientOptions options, std::unique_ptr<NetContext> context, WakeUp wake_up);

  // Runs `command` on the thread; at once, with false, if the thread has ended.
  void Post(std::function<void(bool running)> command);

  // ---- on the thread
  void Run();
  void RunCommands();
  void Wait();
  void Reopen();
  void SayHello();
  // The router does not know this client any more.
  void OnForgotten();
  // Receives for a while; true if there may be more.
  bool ReceiveSome();
  void OnMessage(const Frame& frame);
  void On(const Welcome& welcome);
  void On(const Accepted& accepted);
  void On(Deltas& deltas);
  void On(const RequestError& error);
  void On(const KeepAliveReply& reply);
  void On(CapacityReply& reply);
  void Lose(const std::string& why);
  // Ends all that was sent, as unavailable.
  void EndSent(const std::string& why);
  void KeepTime();
  void Transmit(const ClientMessage& message);
  void TransmitBytes(std::string bytes);
  void SubmitHere(GenerateRequest request, uint64_t ticket, EventSink sink,
                  std::shared_ptr<StreamProgress> progress);
  // Until when this request is held back now; 0: it is not.
  Time HoldUntil(const GenerateRequest& request) const;
  // Sends what waits and need not any more, in order.
  void SendWaiting();
  // Sent and not accepted, in the order they were sent.
  std::vector<RequestId> Unanswered() const;
  // What the router said it takes.
  void OnCredit(std::optional<uint32_t> credit);
  void OnRefusal(const RequestError& error);
  // Tells what was taken of a stream, or of all.
  void Report(const RequestId& request_id, uint64_t ticket);
  void ReportAll();
  void CancelHere(const RequestId& request_id, std::optional<uint64_t> ticket);
  void EndRequest(const RequestId& request_id, ErrorCode code, const std::string& message);
  void FailAll(ErrorCode code, const std::string& message);
  bool AnythingOpen() const;
  void BeginWait();
  Time NextDeadline() const;

  const ClientOptions options_;
  const Incarnation incarnation_;
  std::unique_ptr<NetContext> context_;
  WakeUp wake_up_;
  std::thread thread_;
  std::atomic<uint64_t> next_ticket_{0};
  // Tokens of a stream after which its credit is given back; 0: the router wants to hear of none.
  std::atomic<uint64_t> report_every_{0};

  std::mutex mutex_;
  std::vector<std::function<void(bool)>> commands_;  // guarded by mutex_
  bool ended_ = false;                               // guarded by mutex_

  // The rest is the thread's alone.
  bool stopping_ = false;
  std::unique_ptr<ClientLink> link_;
  bool link_failed_ = false;  // the socket itself said no: as good as broken
  Time reopen_at_ = 0;
  std::optional<Welcome> welcome_;  // of the present connection
  bool hello_due_ = false;  // the router refused the last one: the next request says it again
  int hellos_again_ = 0;    // on this connection, since the router took something
  Time last_heard_ = 0;
  Time last_spoken_ = 0;
  std::map<RequestId, Open> open_;  // sent, or waiting for the welcome
  std::deque<Waiting> waiting_;     // of these, not sent yet; in order
  Time hold_until_ = 0;             // new requests wait: the router takes none
  std::deque<CapacitySink> queries_;
  size_t queries_sent_ = 0;
  std::vector<WelcomeSink> welcome_sinks_;
};

}  // namespace kvern
