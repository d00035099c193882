// kvern-chat: talks to a running service. Everything but the command line is in chat.cc.
#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "cluster/base/option_ranges.h"
#include "cluster/net/socket.h"
#include "tools/chat/chat.h"

namespace kvern {
namespace {

constexpr TimeRange kTimeouts{kMillisecond, 24 * 3600 * kSecond};

struct CommandLine {
  ClientOptions client;
  ChatOptions chat;
  std::string prompt;
};

template <typename Number>
absl::Status ParseNumber(std::string_view text, std::string_view what, Number* number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error == std::errc() && end == text.data() + text.size()) return absl::OkStatus();
  return InvalidArgument("'", ToAbsl(text), "' is not ", ToAbsl(what));
}

CommandLine Parse(int argc, char** argv) {
  CommandLine line;
  line.client.name = "kvern-chat";
  Options options("kvern-chat", "kvern-chat [--endpoint ENDPOINT] [--prompt TEXT] [options]");
  options.String("endpoint", "ENDPOINT", "of the router", &line.client.endpoint, CheckEndpoint);
  options.String("prompt", "TEXT",
                 "one question; without, a conversation on stdin (see /help there)", &line.prompt);
  options.String("system", "TEXT", "how the model is to behave", &line.chat.system);
  options.Custom("max-tokens", "N", "longest answer (default: the service's)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(int64_t value, ParseInteger(text, 1, UINT32_MAX));
                   line.chat.max_tokens = static_cast<uint32_t>(value);
                   return absl::OkStatus();
                 });
  options.Custom("temperature", "T", "0: always the likeliest token (default 1)",
                 [&](std::string_view text) -> absl::Status {
                   std::string what = absl::StrCat("a number from 0 to ", kMaxTemperature);
                   float value = 0;
                   KVERN_RETURN_IF_ERROR(ParseNumber(text, what, &value));
                   if (!(value >= 0 && value <= kMaxTemperature)) {
                     return InvalidArgument("'", ToAbsl(text), "' is not ", what);
                   }
                   line.chat.temperature = value;
                   return absl::OkStatus();
                 });
  options.Custom("seed", "N", "of the random choices (default: drawn)",
                 [&](std::string_view text) -> absl::Status {
                   uint64_t value = 0;
                   KVERN_RETURN_IF_ERROR(ParseNumber(text, "a whole number below 2^64", &value));
                   line.chat.seed = value;
                   return absl::OkStatus();
                 });
  options.Custom("ttft-deadline", "TIME", "longest wait for a first token (default: the service's)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(Duration value, ParseDuration(text, kTtftDeadlineRange));
                   line.chat.ttft_deadline_ms = static_cast<uint32_t>(value / kMillisecond);
                   return absl::OkStatus();
                 });
  options.Time("timeout", "longest silence of the router that is waited for (default 30s)",
               &line.client.timeout, kTimeouts);
  options.Flag("json", "answers as JSON lines, not streamed", &line.chat.json);
  options.ParseOrExit(argc, argv);
  return line;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "kvern-chat: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Run(int argc, char** argv) {
  CommandLine line = Parse(argc, argv);
  line.chat.endpoint = line.client.endpoint;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(line.client, [&] {
    std::fprintf(stderr, "kvern-chat: no router answers at %s yet; trying for %g s (--timeout)\n",
                 line.client.endpoint.c_str(), static_cast<double>(line.client.timeout) / kSecond);
  });
  if (!client.ok()) return Fail(client.status());
  // Only now: while nobody answers, Ctrl-C simply ends the program.
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  sigprocmask(SIG_BLOCK, &interrupt, nullptr);
  int interrupts = signalfd(-1, &interrupt, SFD_CLOEXEC | SFD_NONBLOCK);
  if (interrupts < 0) return Fail(ErrnoStatus("signalfd", errno));
  absl::StatusOr<std::unique_ptr<Chat>> chat =
      Chat::Create(std::move(*client), line.chat, interrupts);
  if (!chat.ok()) return Fail(chat.status());
  bool good = line.prompt.empty() ? (*chat)->Converse() : (*chat)->Ask(line.prompt);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) { return kvern::Run(argc, argv); }
