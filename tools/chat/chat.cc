#include "tools/chat/chat.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/base/clock.h"

namespace kvern {
namespace {

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Later than any router that is there accepts a request, sooner than a person doubts.
constexpr int kSilenceMs = 1000;
// Of what is no command.
constexpr size_t kShownBytes = 40;

void PrintError(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

}  // namespace

absl::StatusOr<std::unique_ptr<Chat>> Chat::Create(std::unique_ptr<Client> client,
                                                   const ChatOptions& options, int interrupts) {
  KVERN_ASSIGN_OR_RETURN(WakeUp arrived, WakeUp::Create());
  return std::unique_ptr<Chat>(
      new Chat(std::move(client), options, interrupts, std::move(arrived)));
}

Chat::Chat(std::unique_ptr<Client> client, const ChatOptions& options, int interrupts,
           WakeUp arrived)
    : options_(options),
      interrupts_(interrupts),
      inbox_(std::make_shared<Inbox>(std::move(arrived))),
      client_(std::move(client)) {
  BeginAfresh();
}

void Chat::BeginAfresh() {
  messages_.clear();
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
}

GenerateRequest Chat::Request() const {
  GenerateRequest request;
  request.messages = messages_;
  request.max_tokens = options_.max_tokens;
  request.seed = options_.seed;
  request.ttft_deadline_ms = options_.ttft_deadline_ms;
  if (options_.temperature.has_value()) request.sampling.temperature = *options_.temperature;
  return request;
}

bool Chat::Ask(const std::string& question) {
  messages_.push_back({"user", question});
  AnswerTimes times;
  Answer answer = Stream(Request(), &times);
  const std::string& text = answer.choices[0].text;
  if (options_.json) {
    Print(AnswerJson(answer) + "\n");
  } else if (!text.empty() && !text.ends_with('\n')) {
    Print("\n");
  }
  if (answer.error.has_value()) {
    PrintError("kvern-chat: " + ErrorLine(*answer.error));
    // A conversation only grows: what came too late once does so for ever.
    if (answer.error->code == ErrorCode::kDeadlineExceeded) {
      PrintError(
          "kvern-chat: --ttft-deadline TIME waits longer; in a conversation /new begins afresh");
    }
  }
  std::string summary = SummaryLine(answer, times, options_.max_tokens);
  if (!summary.empty()) PrintError(summary);
  if (!answer.error.has_value()) {
    messages_.push_back({"assistant", text});
    return true;
  }
  messages_.pop_back();  // Without an answer the question would stand alone.
  return false;
}

bool Chat::Converse() {
  bool at_terminal = isatty(STDIN_FILENO) == 1;
  bool good = true;
  while (true) {
    if (at_terminal) std::fputs("> ", stderr);
    std::optional<std::string> line = ReadLine();
    if (!line.has_value()) break;
    if (line->empty()) continue;
    good = line->starts_with('/') ? Command(*line) : Ask(*line);
  }
  if (at_terminal) std::fputs("\n", stderr);
  return good;
}

bool Chat::Command(const std::string& line) {
  if (line == "/new") {
    BeginAfresh();
    return true;
  }
  bool known = line == "/help";
  if (!known) {
    PrintError(absl::StrCat("kvern-chat: '", Printable(line.substr(0, kShownBytes)),
                            "' is no command and was not asked"));
  }
  PrintError(
      "  /new    forgets the conversation, all but --system\n"
      "  /help   shows this\n"
      "Ctrl-C cancels an answer; at the prompt it leaves, as the end of the input does. A "
      "question\n"
      "that begins with / is asked with a blank before it.");
  return known;
}

Answer Chat::Stream(GenerateRequest request, AnswerTimes* times) {
  Answer answer;
  answer.choices.resize(1);
  times->sent = MonotonicNow();
  RequestId request_id = client_->Start(std::move(request), [inbox = inbox_](RequestEvent event) {
    std::lock_guard<std::mutex> lock(inbox->mutex);
    inbox->events.push_back(std::move(event));
    inbox->arrived.Notify();
  });
  int silence_ms = kSilenceMs;
  while (true) {
    pollfd polled[2] = {{inbox_->arrived.fd(), POLLIN, 0}, {interrupts_, POLLIN, 0}};
    if (poll(polled, 2, silence_ms) == 0) {
      PrintError(absl::StrCat("kvern-chat: the router at ", options_.endpoint,
                              " has not accepted the question yet; Ctrl-C gives up (request ",
                              request_id.ToString(), ")"));
    }
    silence_ms = -1;
    if (Interrupted()) client_->Cancel(request_id);
    inbox_->arrived.Clear();
    std::deque<RequestEvent> events;
    {
      std::lock_guard<std::mutex> lock(inbox_->mutex);
      events.swap(inbox_->events);
    }
    for (const RequestEvent& event : events) {
      Show(event, times);
      answer.Add(event);
      if (IsEnd(event)) return answer;
    }
  }
}

void Chat::Show(const RequestEvent& event, AnswerTimes* times) const {
  const Delta* delta = std::get_if<Delta>(&event);
  if (delta == nullptr) return;
  if (!delta->token_ids.empty()) {
    times->last_token = MonotonicNow();
    if (times->first_token == 0) {
      times->first_token = times->last_token;
      times->first_tokens = delta->token_ids.size();
    }
  }
  if (options_.json || !delta->text.has_value()) return;
  Print(isatty(STDOUT_FILENO) == 1 ? Printable(*delta->text) : *delta->text);
}

std::optional<std::string> Chat::ReadLine() {
  while (true) {
    size_t newline = input_.find('\n');
    if (newline != std::string::npos) {
      std::string line = input_.substr(0, newline);
      input_.erase(0, newline + 1);
      return line;
    }
    if (input_ended_) {
      if (input_.empty()) return std::nullopt;
      return std::exchange(input_, std::string());
    }
    pollfd polled[2] = {{STDIN_FILENO, POLLIN, 0}, {interrupts_, POLLIN, 0}};
    poll(polled, 2, -1);
    if (Interrupted()) return std::nullopt;
    if (polled[0].revents == 0) continue;
    char buffer[4096];
    ssize_t got = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (got <= 0) {
      input_ended_ = true;
    } else {
      input_.append(buffer, static_cast<size_t>(got));
    }
  }
}

bool Chat::Interrupted() const {
  signalfd_siginfo info;
  bool any = false;
  while (read(interrupts_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) any = true;
  return any;
}

}  // namespace kvern
