// kvern-run: inference without a service. JSON lines in, JSON lines out.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cluster/base/exit_codes.h"
#include "cluster/base/hardware_note.h"
#include "cluster/base/options.h"
#include "router/text/chat_template.h"
#include "tools/run/run_session.h"
#include "worker/engine/rank_options.h"

namespace kvern {
namespace {

struct CommandLine {
  RankOptions rank;
  int64_t tp = 1;
  int64_t default_max_tokens = 256;
  std::string chat_template;
};

[[noreturn]] void UsageError(const std::string& message) {
  std::fprintf(stderr, "kvern-run: %s\n", message.c_str());
  std::exit(kUsageExit);
}

CommandLine Parse(int argc, char** argv) {
  CommandLine line;
  Options options("kvern-run", "kvern-run --model PATH [options] < requests.jsonl > results.jsonl");
  options.VersionNote(kHardwareNote);
  options.Count("tp", "N", "tensor-parallel ranks, as threads of this process", &line.tp, 1,
                kMaxRanks);
  options.Count("default-max-tokens", "N", "max_tokens of a request without",
                &line.default_max_tokens, 1, kMaxSeqLen);
  options.String("chat-template", "NAME", "built-in template instead of the model's",
                 &line.chat_template,
                 [](std::string_view name) { return ChatTemplate::ByName(name).status(); });
  AddRankOptions(options, line.rank);
  options.Logging();
  options.ParseOrExit(argc, argv);
  return line;
}

absl::Status Run(const CommandLine& line, RunOptions options) {
  KVERN_ASSIGN_OR_RETURN(options.checkpoint, Checkpoint::Open(line.rank.model));
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<RunSession> session, RunSession::Open(options));
  return session->Run(STDIN_FILENO, stdout);
}

int Main(int argc, char** argv) {
  CommandLine line = Parse(argc, argv);
  absl::StatusOr<RankConfig> rank = ToRankConfig(line.rank, line.tp);
  if (!rank.ok()) UsageError(std::string(rank.status().message()));
  absl::Status enough_gpus = CheckTp(*rank, line.tp);
  if (!enough_gpus.ok()) UsageError(std::string(enough_gpus.message()));
  RunOptions options;
  options.rank = *rank;
  options.rank.world = static_cast<uint32_t>(line.tp);
  options.chat_template = line.chat_template;
  options.default_max_tokens = static_cast<uint32_t>(line.default_max_tokens);
  absl::Status status = Run(line, std::move(options));
  if (status.ok()) return 0;
  std::fprintf(stderr, "kvern-run: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) { return kvern::Main(argc, argv); }
