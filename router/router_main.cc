// kvern-router: the process that clients and workers talk to.
#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "cluster/base/check.h"
#include "cluster/base/exit_codes.h"
#include "cluster/base/log.h"
#include "cluster/base/machine.h"
#include "cluster/base/option_ranges.h"
#include "cluster/net/socket.h"
#include "router/announce.h"
#include "router/io/router_loop.h"
#include "router/io/startup_table.h"
#include "router/io/status_server.h"
#include "router/served_model.h"
#include "router/tenants_file.h"
#include "router/text/chat_template.h"
#include "schemas/files/model_config.h"

namespace kvern {
namespace {

// Less than a rank waits by itself, so that those who wait hear which ranks are absent.

struct Settings {
  ServedModelOptions model;
  std::string listen = "tcp://127.0.0.1:5570";
  std::string worker_listen = "tcp://127.0.0.1:0";
  std::string status = "127.0.0.1:5580";
  int64_t max_seq_len = 0;
  int64_t default_max_tokens = 256;
  int64_t queue_entries = 1024;
  uint64_t queue_bytes = 256ull << 20;
  int64_t queue_seconds = 60;
  Duration default_ttft_deadline = 10 * kSecond;
  Duration join_timeout = kJoinTimeoutRange.most;
  std::string tenants;
  int64_t stream_window = 1024;
  Duration slow_reader_timeout = 30 * kSecond;
  uint64_t client_buffer = 16ull << 20;
  int64_t expect_groups = 1;
  int64_t ready_fd = 0;  // -1: none
  std::string ready_file;
};

Settings ParseCommandLine(int argc, char** argv) {
  Settings settings;
  Options options("kvern-router",
                  "kvern-router --model PATH [--listen tcp://127.0.0.1:5570] [option]...");
  options.String("model", "PATH", "GGUF file or folder (its tokenizer and limits are read)",
                 &settings.model.path);
  options.String("model-name", "NAME", "served name (default: from the model)",
                 &settings.model.name);
  options.String("listen", "ENDPOINT", "where clients connect", &settings.listen, CheckLoopback);
  options.String("worker-listen", "ENDPOINT", "where workers connect", &settings.worker_listen,
                 CheckLoopback);
  options.String("status", "ADDRESS", "status server", &settings.status, CheckStatusAddress);
  options.Count("max-seq-len", "N", "longest prompt + answer (default: the model's)",
                &settings.max_seq_len, 2, kMaxSeqLen);
  options.Count("default-max-tokens", "N", "max_tokens of a request without",
                &settings.default_max_tokens, 1, kMaxSeqLen);
  options.Count("queue-entries", "N", "most requests that may wait", &settings.queue_entries, 1,
                1 << 20);
  options.Size("queue-bytes", "most bytes of waiting requests (default 256MiB)",
               &settings.queue_bytes, kQueueBytesRange);
  options.Count("queue-seconds", "N", "longest predicted wait, in seconds", &settings.queue_seconds,
                1, 86400);
  options.Time("join-timeout", "from a group's first rank that joins to its last (default 570s)",
               &settings.join_timeout, kJoinTimeoutRange);
  options.String("tenants", "FILE", "JSON: weights, quotas and priorities of tenants",
                 &settings.tenants);
  options.Time("default-ttft-deadline", "longest wait for a first token (default 10s)",
               &settings.default_ttft_deadline, kTtftDeadlineRange);
  options.Count("stream-window", "N", "tokens sent ahead of a stream's reader",
                &settings.stream_window, 16, kMaxSeqLen);
  options.Time("slow-reader-timeout", "paused streams end if nothing is read (default 30s)",
               &settings.slow_reader_timeout, kSlowReaderRange);
  options.Size("client-buffer", "most bytes kept for a client's paused streams (default 16MiB)",
               &settings.client_buffer, kClientBufferRange);
  options.String("chat-template", "NAME", "built-in template instead of the model's",
                 &settings.model.chat_template,
                 [](std::string_view name) { return ChatTemplate::ByName(name).status(); });
  options.Count("expect-groups", "N", "ready when so many groups are live", &settings.expect_groups,
                1, 4096);
  options.Count("ready-fd", "N", "open descriptor that gets the addresses, then {\"ready\":true}",
                &settings.ready_fd, 0, 1 << 20);
  options.String("ready-file", "PATH", "file that appears when ready", &settings.ready_file);
  options.Logging();
  options.AlsoFromEnvironment();
  options.ParseOrExit(argc, argv);
  auto usage_error = [](const std::string& message) {
    std::fprintf(stderr, "kvern-router: %s\n", message.c_str());
    std::exit(kUsageExit);
  };
  if (settings.model.path.empty()) usage_error("--model: needed (see --help)");
  if (!options.Given("ready-fd")) settings.ready_fd = -1;
  if (settings.ready_fd >= 0 && fcntl(static_cast<int>(settings.ready_fd), F_GETFD) < 0) {
    usage_error(absl::StrCat("--ready-fd: '", settings.ready_fd, "' is not an open descriptor"));
  }
  settings.model.max_seq_len = static_cast<uint32_t>(settings.max_seq_len);
  return settings;
}

// Each client is a descriptor, and the usual soft limit of 1,024 is meant for programs that use
// select().
void AllowManyDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

uint64_t DrawRandom() {
  uint64_t value = 0;
  KVERN_CHECK_EQ(getrandom(&value, sizeof(value), 0), static_cast<ssize_t>(sizeof(value)));
  return value == 0 ? 1 : value;  // 0 means "not said".
}

// Else every request that leaves max_tokens to the service would never fit.
absl::Status CheckLimits(const Settings& settings, const ServedModel& model) {
  if (settings.default_max_tokens < int64_t{model.max_seq_len}) return absl::OkStatus();
  return InvalidArgument("--default-max-tokens: ", settings.default_max_tokens,
                         ", allowed: below the longest prompt + answer, ", model.max_seq_len);
}

RouterConfig ConfigOf(const Settings& settings, const ServedModel& model) {
  RouterConfig config;
  config.model = model.name;
  config.has_tokenizer = model.tokenizer.has_value();
  config.max_seq_len = model.max_seq_len;
  config.vocab_size = model.vocab_size;
  config.eos_ids = model.eos_ids;
  config.default_max_tokens = static_cast<uint32_t>(settings.default_max_tokens);
  config.default_ttft_deadline = settings.default_ttft_deadline;
  config.queue_entries = static_cast<uint32_t>(settings.queue_entries);
  config.queue_bytes = settings.queue_bytes;
  config.queue_wait_max = settings.queue_seconds * kSecond;
  config.stream_window = static_cast<uint32_t>(settings.stream_window);
  config.join_timeout = settings.join_timeout;
  config.slow_reader_timeout = settings.slow_reader_timeout;
  config.client_buffer_bytes = settings.client_buffer;
  config.router_incarnation = DrawRandom();
  return config;
}

// Blocks SIGTERM and SIGINT in this and all later threads; they are read from the descriptor.
absl::StatusOr<int> TakeSignals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0) return ErrnoStatus("sigprocmask", errno);
  int fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus("signalfd", errno);
  return fd;
}

// The first signal drains, the second ends the process. One that kvern-launch passes on is queued
// (sigqueue), and is never a second: whoever ends all processes of a service at once, as systemd
// does, has sent it here, too.
class SignalCounter {
 public:
  SignalCounter(int fd, RouterLoop* loop) : fd_(fd), loop_(loop) {}

  void Read() {
    signalfd_siginfo info;
    while (read(fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      bool passed_on = info.ssi_code == SI_QUEUE;
      if (!passed_on && count_++ > 0) _exit(1);
      loop_->BeginDrain();
    }
  }

 private:
  int fd_;
  RouterLoop* loop_;
  int count_ = 0;
};

// Prints each new group's table, and says when all are there.
class GroupWatcher {
 public:
  GroupWatcher(const Settings& settings, uint32_t max_seq_len, Announcer* announcer)
      : expected_(static_cast<size_t>(settings.expect_groups)),
        max_seq_len_(max_seq_len),
        announcer_(announcer) {}

  void Look(const RouterStatus& status) {
    size_t live = 0;
    for (const GroupStatus& group : status.groups) {
      if (!group.live || group.ranks.empty()) continue;
      if (!group.draining) ++live;
      Incarnation& printed = printed_[group.name];
      if (printed == group.ranks[0].group_incarnation) continue;
      printed = group.ranks[0].group_incarnation;
      ShowStartupTable(group, max_seq_len_);
    }
    if (announced_ || live < expected_) return;
    announced_ = true;
    absl::Status status_of_ready = announcer_->Ready();
    if (!status_of_ready.ok()) {
      Log(LogLevel::kWarning, "ready_not_announced", {{"error", status_of_ready.message()}});
    }
  }

 private:
  size_t expected_;
  uint32_t max_seq_len_;
  Announcer* announcer_;
  std::map<std::string, Incarnation> printed_;
  bool announced_ = false;
};

// What is wrong, of all that can be looked at before anything is served, in one line.
class Mistakes {
 public:
  void Add(const absl::Status& status) {
    if (status.ok()) return;
    absl::StrAppend(&text_, text_.empty() ? "" : "; ", status.message());
  }
  absl::Status status() const { return text_.empty() ? absl::OkStatus() : InvalidArgument(text_); }

 private:
  std::string text_;
};

struct Bound {
  std::unique_ptr<RouterPorts> ports;
  std::unique_ptr<StatusServer> status_server;
};

absl::StatusOr<Bound> Bind(const Settings& settings, NetContext& context, Announcer& announcer) {
  Bound bound;
  KVERN_ASSIGN_OR_RETURN(bound.ports,
                         RouterPorts::Bind(context, settings.listen, settings.worker_listen));
  KVERN_ASSIGN_OR_RETURN(bound.status_server,
                         StatusServer::Start(settings.status, bound.ports->status_source()));
  KVERN_RETURN_IF_ERROR(announcer.Bound(
      {bound.ports->endpoint(), bound.ports->worker_endpoint(), bound.status_server->address()}));
  return bound;
}

absl::StatusOr<std::unique_ptr<ServedModel>> LoadModel(const Settings& settings) {
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> model, LoadServedModel(settings.model));
  KVERN_RETURN_IF_ERROR(CheckLimits(settings, *model));
  return model;
}

absl::StatusOr<std::vector<TenantConfig>> LoadTenants(const Settings& settings) {
  if (settings.tenants.empty()) return std::vector<TenantConfig>();
  absl::StatusOr<std::vector<TenantConfig>> read = ReadTenantsFile(settings.tenants);
  if (!read.ok()) return InvalidArgument("--tenants: ", read.status().message());
  return read;
}

absl::Status RunRouter(const Settings& settings) {
  Mistakes mistakes;
  absl::StatusOr<std::vector<TenantConfig>> tenants = LoadTenants(settings);
  mistakes.Add(tenants.status());
  Announcer announcer(static_cast<int>(settings.ready_fd), settings.ready_file);
  mistakes.Add(announcer.Check());
  AllowManyDescriptors();
  KVERN_ASSIGN_OR_RETURN(int signals, TakeSignals());
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<NetContext> context, NetContext::Create());
  // Everything is bound before the model is read, so that workers can start loading meanwhile; not
  // where nothing will be served.
  absl::StatusOr<Bound> bound = absl::UnknownError("");
  if (mistakes.status().ok()) {
    bound = Bind(settings, *context, announcer);
    mistakes.Add(bound.status());
  }
  absl::StatusOr<std::unique_ptr<ServedModel>> model = LoadModel(settings);
  mistakes.Add(model.status());
  if (!mistakes.status().ok()) return mistakes.status();

  RouterConfig config = ConfigOf(settings, **model);
  config.tenants = *std::move(tenants);
  RouterLoop loop(config, DrawRandom(), (*model)->Text(), bound->ports.get());
  SignalCounter signal_counter(signals, &loop);
  loop.Watch(signals, [&] { signal_counter.Read(); });
  GroupWatcher watcher(settings, config.max_seq_len, &announcer);
  loop.OnGroupLive([&](const RouterStatus& status) { watcher.Look(status); });
  loop.OnGroupJoining(
      [&](const GroupJoining& start) { announcer.Joining(start.group, start.incarnation); });
  loop.OnGroupGivenUp([&](const GroupGivenUp& start) {
    announcer.GivenUp(start.group, start.incarnation, start.reason);
  });
  Log(LogLevel::kInfo, "router_started",
      {{"model", config.model},
       {"listen", bound->ports->endpoint()},
       {"workers", bound->ports->worker_endpoint()},
       {"status", bound->status_server->address()}});
  return loop.Run();
}

int Main(int argc, char** argv) {
  Settings settings = ParseCommandLine(argc, argv);
  KeepFreedMemory();
  absl::Status status = RunRouter(settings);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kvern-router: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) { return kvern::Main(argc, argv); }
