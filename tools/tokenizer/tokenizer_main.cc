// kvern-tokenizer: a model's tokenizer and chat template by hand, JSON lines in and out.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "cluster/base/exit_codes.h"
#include "cluster/base/options.h"
#include "router/text/chat_template.h"
#include "router/text/tokenizer.h"
#include "schemas/files/checkpoint.h"
#include "tools/tokenizer/tokenizer_lines.h"

namespace kvern {
namespace {

struct Config {
  std::string model;
  std::string chat_template;
};

// Exits 2 like any other usage error.
[[noreturn]] void UsageError(std::string_view message) {
  std::fprintf(stderr, "kvern-tokenizer: %.*s\n", static_cast<int>(message.size()), message.data());
  std::exit(kUsageExit);
}

TokenizerLines::Command ParseCommandLine(int argc, char** argv, Config* config) {
  Options options("kvern-tokenizer",
                  "kvern-tokenizer encode|decode|chat --model PATH < lines.jsonl > answers.jsonl\n"
                  "  encode: {\"text\"|\"bytes_b64\", \"parse_special\": false, \"add_special\": "
                  "false} -> {\"ids\"}\n"
                  "  decode: {\"ids\", \"skip_special\": false} -> {\"text\", \"bytes_b64\"}\n"
                  "  chat:   {\"messages\", \"add_generation_prompt\": true} -> {\"prompt\", "
                  "\"ids\"}");
  options.String("model", "PATH", "a GGUF file", &config->model);
  options.Custom("chat-template", "NAME", "instead of the model's own: chatml or smollm2",
                 [config](std::string_view name) -> absl::Status {
                   KVERN_RETURN_IF_ERROR(ChatTemplate::ByName(name).status());
                   config->chat_template = name;
                   return absl::OkStatus();
                 });
  std::vector<std::string> words;
  options.ParseOrExit(argc, argv, &words);
  if (words.size() != 1) UsageError("one command is needed, allowed: encode, decode, chat");
  absl::StatusOr<TokenizerLines::Command> command = TokenizerLines::ParseCommand(words[0]);
  if (!command.ok()) UsageError(ToStd(command.status().message()));
  if (config->model.empty()) UsageError("--model: missing");
  return *command;
}

absl::StatusOr<Tokenizer> OpenTokenizer(const std::string& path) {
  KVERN_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(path));
  if (checkpoint->tokenizer() == nullptr) return InvalidArgument("the model has no tokenizer");
  return Tokenizer::Create(*checkpoint->tokenizer());
}

// Of the call that failed last.
int Failed(const char* stream) {
  std::fprintf(stderr, "kvern-tokenizer: %s: %s\n", stream, std::strerror(errno));
  return 1;
}

int Main(int argc, char** argv) {
  Config config;
  const TokenizerLines::Command command = ParseCommandLine(argc, argv, &config);
  absl::StatusOr<Tokenizer> tokenizer = OpenTokenizer(config.model);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "kvern-tokenizer: --model: %s: %s\n", config.model.c_str(),
                 std::string(tokenizer.status().message()).c_str());
    return 1;
  }
  const TokenizerLines lines(
      &*tokenizer, ChatTemplate::Choose(config.chat_template, tokenizer->chat_template()));
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    // Flushed each time: whoever talks line by line through a pipe waits for this answer.
    if (!(std::cout << lines.Answer(command, line) << std::endl)) return Failed("stdout");
  }
  return std::cin.bad() ? Failed("stdin") : 0;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) { return kvern::Main(argc, argv); }
