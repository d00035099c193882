// The router in production: sockets, text pool and clock around the pure core. One turn: wait, read
// what came, step the core, flush it once, send.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/base/machine.h"
#include "cluster/net/poller.h"
#include "cluster/net/socket.h"
#include "router/core/router.h"
#include "router/io/log_limiter.h"
#include "router/io/metrics.h"
#include "router/io/port.h"
#include "router/io/questions.h"
#include "router/io/text_pool.h"

namespace kvern {

// What turns text into tokens and back; all null without a tokenizer.
struct RouterText {
  const Tokenizer* tokenizer = nullptr;        // outlives the loop
  const TextFilterFactory* filters = nullptr;  // outlives the loop
  absl::StatusOr<ChatTemplate> chat_template = absl::UnknownError("");
  size_t threads = 1;
};

// What is bound before the model is known: the sockets, and the way in for other threads. Messages
// that come before the loop runs wait in the sockets.
class RouterPorts {
 public:
  // `context` outlives the ports. Endpoints as RouterSocket::Bind.
  static absl::StatusOr<std::unique_ptr<RouterPorts>> Bind(NetContext& context,
                                                           const std::string& listen,
                                                           const std::string& worker_listen);

  // With the real ports.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& worker_endpoint() const { return worker_endpoint_; }

  // For the status server; thread-safe.
  StatusSource* status_source() { return &questions_; }

 private:
  friend class RouterLoop;
  RouterPorts(RouterSocket clients, RouterSocket workers, WakeUp wake);

  std::string endpoint_;
  std::string worker_endpoint_;
  RouterSocket clients_;  // move into the loop
  RouterSocket workers_;
  WakeUp wake_;
  Questions questions_;
};

// Belongs to the thread that calls Run, but for what says otherwise.
class RouterLoop {
 public:
  // `ports` outlives the loop and serves one. `seed` feeds the draws of the router.
  RouterLoop(const RouterConfig& config, uint64_t seed, RouterText text, RouterPorts* ports);
  ~RouterLoop();

  // Called during Run when `fd` is readable. REQUIRES: before Run.
  void Watch(int fd, std::function<void()> readable);
  // Called during Run after a group became live. REQUIRES: before Run.
  void OnGroupLive(std::function<void(const RouterStatus&)> callback) {
    on_group_live_ = std::move(callback);
  }

  // Called during Run when the first rank of a start has joined. REQUIRES: before Run.
  void OnGroupJoining(std::function<void(const GroupJoining&)> callback) {
    on_group_joining_ = std::move(callback);
  }

  // Called during Run when a start of a group is given up. REQUIRES: before Run.
  void OnGroupGivenUp(std::function<void(const GroupGivenUp&)> callback) {
    on_group_given_up_ = std::move(callback);
  }

  // Serves until drained or stopped. An error: the sockets failed, or there are no threads to
  // tokenise.
  absl::Status Run();

  // Admits nothing new; Run returns when what runs has finished. From a callback of Run.
  void BeginDrain() { Step(kvern::BeginDrain{}); }

  // Ends Run at once. Thread-safe.
  void Stop();

 private:
  absl::Status Turn();
  Duration WaitTime() const;
  // The turn has begun this much later than the last.
  void NoteAbsence(Duration since_last, Duration waited_for);
  absl::Status ReadClients();
  absl::Status ReadWorkers();
  void ReadTexts();
  void AnswerQuestions();
  void Step(RouterEvent event) { router_.Step(now_, std::move(event), effects_); }
  absl::Status EndTurn();
  absl::Status Perform();
  void WriteNotes();
  // A line that strangers can cause.
  void LogLimited(const std::string& kind, LimitedLine line, uint32_t burst = 1);
  void WriteHeldLines(Time now);
  bool StepLost();
  RouterStatus TakeStatus();
  StatusSnapshot MakeSnapshot();

  absl::Status RefuseClient(const std::string& routing_id, const Decoded<ClientMessage>& decoded);
  absl::Status RefuseWorker(const std::string& routing_id, const Decoded<WorkerToRouter>& decoded);

  const RouterConfig config_;
  Router router_;
  RouterEffects effects_;
  Port clients_;
  Port workers_;
  WakeUp& wake_;
  Questions& questions_;
  size_t text_threads_ = 0;
  std::unique_ptr<TextPool> text_pool_;  // null without a tokenizer
  Poller poller_;
  std::vector<std::pair<size_t, std::function<void()>>> watched_;  // by index in the poller
  std::function<void(const RouterStatus&)> on_group_live_;
  std::function<void(const GroupJoining&)> on_group_joining_;
  std::function<void(const GroupGivenUp&)> on_group_given_up_;

  Time now_ = 0;
  Hearing heard_;  // up to the last turns that found the sockets empty
  Time next_sample_ = 0;
  bool more_to_read_ = false;  // a socket had more than a turn reads
  bool group_went_live_ = false;
  std::atomic<bool> stop_ = false;
  RouterDistributions distributions_;
  BadMessages bad_client_messages_;
  BadMessages bad_worker_messages_;
  LogLimiter log_limiter_;
  FreedMemory freed_memory_;
  std::string routing_id_;  // of the message being read
  Frame frame_;
};

}  // namespace kvern
