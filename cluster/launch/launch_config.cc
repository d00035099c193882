#include "cluster/launch/launch_config.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "absl/strings/str_join.h"
#include "cluster/base/exit_codes.h"
#include "cluster/base/hardware_note.h"
#include "cluster/base/log.h"
#include "cluster/base/machine.h"
#include "cluster/base/option_ranges.h"
#include "cluster/base/variables.h"
#include "cluster/launch/child_process.h"
#include "cluster/net/socket.h"

namespace kvern {
namespace {

constexpr const char* kUsage = "kvern-launch --model PATH [--tp N] [--replicas N] [options]";
constexpr int64_t kMaxReplicas = 64;
constexpr int64_t kMaxTp = 64;
constexpr int64_t kMaxSeqLen = 1 << 24;  // no model allows more

using Check = Options::Check;

// An option whose value is checked by `check` and then passed on unchanged.
void Passed(Options& options, const std::string& name, const std::string& value_name,
            const std::string& help, std::vector<PassedOption>* target,
            Check check) {
  options.Custom(name, value_name, help, [=](std::string_view text) -> absl::Status {
    KVERN_RETURN_IF_ERROR(check(text));
    target->push_back({name, std::string(text)});
    return absl::OkStatus();
  });
}

absl::Status CheckText(std::string_view text) {
  return text.empty() ? InvalidArgument("'' is empty") : absl::OkStatus();
}
Check CheckSize(const SizeRange& range) {
  return [range](std::string_view text) { return ParseSize(text, range).status(); };
}
Check CheckTime(const TimeRange& range) {
  return [range](std::string_view text) { return ParseDuration(text, range).status(); };
}
// With the limits of the child that gets the option.
Check CheckCount(int64_t min, int64_t max) {
  return [=](std::string_view text) { return ParseInteger(text, min, max).status(); };
}

// As the child that gets the option would; it starts when the router has its ports already.
Check CheckOneOf(std::vector<std::string> allowed) {
  return [allowed = std::move(allowed)](std::string_view text) -> absl::Status {
    if (std::ranges::find(allowed, text) != allowed.end()) return absl::OkStatus();
    return InvalidArgument("'", ToAbsl(text), "', allowed: ", absl::StrJoin(allowed, ", "));
  };
}

void WorkerOptions(Options& options, LaunchConfig* config) {
  std::vector<PassedOption>* worker = &config->worker_options;
  Passed(options, "device", "TYPE", "cpu|cuda|emulated|auto (default auto: a GPU, else the CPU)",
         worker,
         [config, check = CheckOneOf({"cpu", "cuda", "emulated", "auto"})](std::string_view text) {
           config->on_gpus = text != "cpu";
           return check(text);
         });
  Passed(options, "kv-memory", "SIZE",
         "KV cache per rank (default: memory / 4 / ranks; cuda: what is free)", worker,
         CheckSize(kKvMemoryRange));
  Passed(options, "kv-blocks", "N", "KV cache per group in blocks of 16 tokens", worker,
         CheckCount(1, INT64_C(1) << 31));
  Passed(options, "kv-dtype", "TYPE", "auto|f32|bf16 (default auto: bf16)", worker,
         CheckOneOf({"auto", "f32", "bf16"}));
  Passed(options, "weights", "TYPE", "auto|f32|bf16|int8|int4 (default auto: as in the file)",
         worker, CheckOneOf({"auto", "f32", "bf16", "int8", "int4"}));
  Passed(options, "threads", "N", "threads per rank (default: cores / ranks)", worker,
         CheckCount(1, 1024));
  Passed(options, "max-batch-tokens", "N", "tokens computed in one step (default 512)", worker,
         CheckCount(1, 65536));
  options.Flag("batch-invariant", "same bytes in any batch; always so on the CPU",
               &config->batch_invariant);
}

void RouterOptions(Options& options, LaunchConfig* config) {
  std::vector<PassedOption>* router = &config->router_options;
  Passed(options, "default-max-tokens", "N", "max_tokens of a request without (default 256)",
         router, CheckCount(1, kMaxSeqLen));
  Passed(options, "default-ttft-deadline", "TIME", "longest wait for a first token (default 10s)",
         router, CheckTime(kTtftDeadlineRange));
  Passed(options, "chat-template", "NAME", "built-in template instead of the model's", router,
         CheckText);
  Passed(options, "queue-entries", "N", "most requests that may wait (default 1024)", router,
         CheckCount(1, 1 << 20));
  Passed(options, "queue-bytes", "SIZE", "most bytes of waiting requests (default 256MiB)", router,
         CheckSize(kQueueBytesRange));
  Passed(options, "queue-seconds", "N", "longest predicted wait, in seconds (default 60)", router,
         CheckCount(1, 86400));
  Passed(options, "join-timeout", "TIME",
         "longest join of a group's ranks (default 570s), if given also load", router,
         [config](std::string_view text) -> absl::Status {
           KVERN_ASSIGN_OR_RETURN(config->join_timeout, ParseDuration(text, kJoinTimeoutRange));
           return absl::OkStatus();
         });
  Passed(options, "tenants", "FILE", "JSON: weights, quotas and priorities of tenants", router,
         CheckText);
  Passed(options, "stream-window", "N", "tokens sent ahead of a stream's reader (default 1024)",
         router, CheckCount(16, kMaxSeqLen));
  Passed(options, "slow-reader-timeout", "TIME",
         "paused streams end if nothing is read (default 30s)", router,
         CheckTime(kSlowReaderRange));
  Passed(options, "client-buffer", "SIZE",
         "most bytes kept for a client's paused streams (default 16MiB)", router,
         CheckSize(kClientBufferRange));
}

[[noreturn]] void UsageError(const std::string& message) {
  std::fprintf(stderr, "kvern-launch: %s\n", message.c_str());
  std::exit(kUsageExit);
}

std::string OwnDirectory() {
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : self.parent_path().string();
}

void Append(std::vector<std::string>& argv, const std::vector<PassedOption>& options) {
  for (const PassedOption& option : options) {
    argv.push_back("--" + option.name);
    argv.push_back(option.value);
  }
}

// What the options must agree on, and the defaults that depend on how many ranks share this host.
void Complete(const Options& options, const std::vector<PassedOption>& both, LaunchConfig* config) {
  if (config->model.empty()) UsageError("--model: needed (see --help)");
  if (config->ready_fd >= 0 && fcntl(static_cast<int>(config->ready_fd), F_GETFD) < 0) {
    UsageError(absl::StrCat("--ready-fd: '", config->ready_fd, "' is not an open descriptor"));
  }
  int64_t ranks = config->tp * config->replicas;
  if (!options.Given("threads")) {
    config->worker_options.push_back({"threads", absl::StrCat(DefaultThreads(ranks))});
  }
  // The rest depends on what the worker finds to compute on.
  config->worker_options.push_back({"host-ranks", absl::StrCat(ranks)});
  for (const PassedOption& option : both) {
    config->router_options.push_back(option);
    config->worker_options.push_back(option);
  }
}

// Own log lines follow the options that the children get as well.
void StartLog(const std::vector<PassedOption>& both, LaunchConfig* config) {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  for (const PassedOption& option : both) {
    if (option.name == "log-level") level = *ParseLogLevel(option.value);
    if (option.name == "log-format") format = *ParseLogFormat(option.value);
  }
  config->json_log = format == LogFormat::kJson;
  InitLog("kvern-launch", level, format);
  WarnOfUnknownVariables();
}

}  // namespace

LaunchConfig ParseLaunchConfig(int argc, char** argv) {
  LaunchConfig config;
  std::vector<PassedOption> both;
  config.bin_directory = OwnDirectory();
  Options options("kvern-launch", kUsage);
  options.VersionNote(kHardwareNote);
  options.String("model", "PATH", "a GGUF file or a folder with config.json", &config.model);
  options.Count("tp", "N", "tensor-parallel ranks of a group", &config.tp, 1, kMaxTp);
  options.Count("replicas", "N", "groups", &config.replicas, 1, kMaxReplicas);
  WorkerOptions(options, &config);
  Passed(options, "max-seq-len", "N", "longest prompt + answer (default: the model's)", &both,
         CheckCount(2, kMaxSeqLen));
  Passed(options, "model-name", "NAME", "served name (default: from the model)", &both, CheckText);
  RouterOptions(options, &config);
  options.String("listen", "ENDPOINT", "for clients; port 0 picks one", &config.listen,
                 CheckLoopback);
  options.String("status", "HOST:PORT", "HTTP status; port 0 picks one", &config.status);
  options.Custom("ready-fd", "N", "where to write the ready line as JSON",
                 [&](std::string_view text) {
                   absl::StatusOr<int64_t> fd = ParseInteger(text, 0, 1 << 20);
                   if (fd.ok()) config.ready_fd = *fd;
                   return fd.status();
                 });
  options.String("ready-file", "PATH", "file that appears when ready", &config.ready_file);
  Passed(options, "log-level", "LEVEL", "debug, info, warning, error (default info)", &both,
         [](std::string_view text) { return ParseLogLevel(text).status(); });
  Passed(options, "log-format", "FORMAT", "text or json (default text)", &both,
         [](std::string_view text) { return ParseLogFormat(text).status(); });
  options.Exclusive("kv-memory", "kv-blocks");
  options.Exclusive("ready-fd", "ready-file");
  options.AlsoFromEnvironment();
  options.ParseOrExit(argc, argv);
  unsetenv("KVERN_READY_FILE");  // this program's to write, not the router's
  Complete(options, both, &config);
  StartLog(both, &config);
  return config;
}

std::string GroupName(int64_t index) { return absl::StrCat("group-", index); }

std::vector<std::string> RouterArguments(const LaunchConfig& config) {
  std::vector<std::string> argv = {config.bin_directory + "/kvern-router",
                                   "--model",
                                   config.model,
                                   "--listen",
                                   config.listen,
                                   "--worker-listen",
                                   "tcp://127.0.0.1:0",
                                   "--status",
                                   config.status,
                                   "--ready-fd",
                                   absl::StrCat(ChildProcess::kReadyFd),
                                   "--expect-groups",
                                   absl::StrCat(config.replicas)};
  Append(argv, config.router_options);
  return argv;
}

std::vector<std::string> WorkerArguments(const LaunchConfig& config, const RankPlace& place,
                                         const std::string& worker_endpoint) {
  std::vector<std::string> argv = {config.bin_directory + "/kvern-worker",
                                   "--model",
                                   config.model,
                                   "--router",
                                   worker_endpoint,
                                   "--group",
                                   place.group,
                                   "--group-incarnation",
                                   absl::StrCat(place.group_incarnation),
                                   "--rank",
                                   absl::StrCat(place.rank),
                                   "--world",
                                   absl::StrCat(config.tp)};
  if (config.on_gpus) {
    argv.push_back("--gpu-index");
    argv.push_back(absl::StrCat(place.group_index * config.tp + place.rank));
  }
  if (config.batch_invariant) argv.push_back("--batch-invariant");
  Append(argv, config.worker_options);
  return argv;
}

}  // namespace kvern
