// One conversation at a terminal or in a script: questions in, streamed answers out.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/net/poller.h"
#include "tools/chat/summary.h"
#include "tools/clients/cpp/client.h"

namespace kvern {

struct ChatOptions {
  std::string endpoint;  // for what is said of the router
  std::string system;    // empty: none
  std::optional<uint32_t> max_tokens;
  std::optional<float> temperature;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> ttft_deadline_ms;  // absent: the service's
  bool json = false;
};

class Chat {
 public:
  // `interrupts` is a signalfd of SIGINT, which is blocked in every thread.
  static absl::StatusOr<std::unique_ptr<Chat>> Create(std::unique_ptr<Client> client,
                                                      const ChatOptions& options, int interrupts);

  // One question, one answer. True if the answer came to its end.
  bool Ask(const std::string& question);
  // Reads questions from stdin until its end or Ctrl-C; lines that begin with / are
  // commands.
  // True if the last answer came to its end.
  bool Converse();

 private:
  Chat(std::unique_ptr<Client> client, const ChatOptions& options, int interrupts, WakeUp arrived);

  // Filled by the client's thread.
  struct Inbox {
    explicit Inbox(WakeUp wake_up) : arrived(std::move(wake_up)) {}
    WakeUp arrived;
    std::mutex mutex;
    std::deque<RequestEvent> events;
  };

  // A line that begins with /. True if there is such a command.
  bool Command(const std::string& line);
  // As at the start: of what was said only the system message is left.
  void BeginAfresh();
  GenerateRequest Request() const;
  // Streams the answer to `request`; Ctrl-C cancels it. Says so if the router is slow to accept it.
  Answer Stream(GenerateRequest request, AnswerTimes* times);
  void Show(const RequestEvent& event, AnswerTimes* times) const;
  // A line of stdin; nothing at its end or after Ctrl-C.
  std::optional<std::string> ReadLine();
  // True if Ctrl-C was pressed since the last call.
  bool Interrupted() const;

  ChatOptions options_;
  int interrupts_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<ChatMessage> messages_;
  std::string input_;
  bool input_ended_ = false;
  std::unique_ptr<Client> client_;
};

}  // namespace kvern
