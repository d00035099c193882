// kvern-worker: one rank of a group as a process. Started by kvern-launch, or by Slurm, Kubernetes
// or ssh. It ends when its group ends: by the router's drain (exit 0), or by any error (exit 1). A
// SIGTERM to any rank asks the router to drain the group; a second one, or one before the group was
// started, ends the rank at once, as the system does.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cluster/base/clock.h"
#include "cluster/base/exit_codes.h"
#include "cluster/base/hardware_note.h"
#include "cluster/base/log.h"
#include "cluster/base/options.h"
#include "cluster/net/socket.h"
#include "schemas/files/model_name.h"
#include "worker/comm/local.h"
#include "worker/comm/shm.h"
#include "worker/engine/leave_signal.h"
#include "worker/engine/rank.h"
#include "worker/engine/rank_link.h"
#include "worker/engine/rank_options.h"
#include "worker/engine/worker_place.h"

namespace kvern {
namespace {

// All ranks of a group load at the same time; large models take minutes.
constexpr Duration kStartTimeout = 600 * kSecond;
// Between GroupStart and the last rank's arrival: every rank is up by then.
constexpr Duration kMeetTimeout = 30 * kSecond;

constexpr int64_t kMaxHostRanks = 4096;  // what kvern-launch starts at most

struct WorkerConfig {
  RankOptions rank_options;
  RankConfig rank_config;  // what they mean
  WorkerPlace place;
  std::string group = "group-0";
  int64_t group_incarnation = 0;  // 0: the router's to choose
  int64_t host_ranks = 0;         // 0: the group's
  std::string model_name;
};

[[noreturn]] void UsageError(const std::string& message) {
  std::fprintf(stderr, "kvern-worker: %s\n", message.c_str());
  std::exit(kUsageExit);
}

void Complete(WorkerConfig& config) {
  absl::Status placed =
      CompletePlace([](const char* name) { return std::getenv(name); }, config.place);
  if (!placed.ok()) UsageError(std::string(placed.message()));
  const int64_t on_host = config.host_ranks > 0 ? config.host_ranks : config.place.world;
  absl::StatusOr<RankConfig> rank = ToRankConfig(config.rank_options, on_host);
  if (!rank.ok()) UsageError(std::string(rank.status().message()));
  absl::Status has_gpu = CheckGpuIndex(*rank, config.place.gpu_index, on_host);
  if (!has_gpu.ok()) UsageError(std::string(has_gpu.message()));
  config.rank_config = *rank;
  config.rank_config.gpu_index = static_cast<int>(config.place.gpu_index);
  config.rank_config.rank = static_cast<uint32_t>(config.place.rank);
  config.rank_config.world = static_cast<uint32_t>(config.place.world);
}

WorkerConfig ParseCommandLine(int argc, char** argv) {
  WorkerConfig config;
  Options options("kvern-worker",
                  "kvern-worker --router tcp://… --model PATH [--rank R --world N --group NAME]");
  options.VersionNote(kHardwareNote);
  options.AlsoFromEnvironment();
  options.String("router", "ENDPOINT",
                 "the router's for workers (default: MASTER_ADDR, MASTER_PORT)",
                 &config.place.router, CheckEndpoint);
  options.Custom("rank", "R", "this rank (default: RANK and the like, or 0)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(config.place.rank, ParseInteger(text, 0, kMaxRanks - 1));
                   return absl::OkStatus();
                 });
  options.Custom("world", "N", "ranks of the group (default: WORLD_SIZE and the like, or 1)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(config.place.world, ParseInteger(text, 1, kMaxRanks));
                   return absl::OkStatus();
                 });
  options.String("group", "NAME", "the group's name", &config.group);
  options.Count("group-incarnation", "N",
                "the same for all ranks of one start of the group (0: the router counts)",
                &config.group_incarnation, 0, INT64_MAX);
  options.Custom(
      "gpu-index", "N", "this rank's of the host's GPUs (default: LOCAL_RANK or the rank)",
      [&](std::string_view text) -> absl::Status {
        KVERN_ASSIGN_OR_RETURN(config.place.gpu_index, ParseInteger(text, 0, kMaxGpuIndex));
        return absl::OkStatus();
      });
  options.Count("host-ranks", "N",
                "ranks that share this host, of all groups (0: those of this group)",
                &config.host_ranks, 1, kMaxHostRanks);
  options.String("model-name", "NAME", "served name (empty: the file's)", &config.model_name);
  AddRankOptions(options, config.rank_options);
  options.Logging();
  options.ParseOrExit(argc, argv);
  Complete(config);
  return config;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// How this rank will find its peers.
struct Meeting {
  std::unique_ptr<ShmHost> host;  // rank 0 of several
};

absl::StatusOr<std::unique_ptr<Communicator>> Meet(const WorkerConfig& config, Meeting& meeting,
                                                   const GroupStart& start) {
  if (config.place.world == 1) return std::move(NewLocalGroup(1)[0]);
  if (meeting.host != nullptr) return meeting.host->Accept(kMeetTimeout);
  return ConnectShm(start.rendezvous, static_cast<int>(config.place.rank),
                    static_cast<int>(config.place.world), kMeetTimeout);
}

absl::StatusOr<std::unique_ptr<Rank>> OpenRank(const WorkerConfig& config) {
  Time start = MonotonicNow();
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(config.rank_options.model));
  double seconds = static_cast<double>(MonotonicNow() - start) / 1e9;
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, Rank::Open(*checkpoint, config.rank_config));
  rank->AddPhase("open", seconds);
  return rank;
}

absl::Status RunWorker(const WorkerConfig& config, std::unique_ptr<RankLink>& link) {
  // First, so that the connection stands when everything is loaded.
  KVERN_ASSIGN_OR_RETURN(link, RankLink::Connect(config.place.router));
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, OpenRank(config));
  Meeting meeting;
  Join join = rank->join();
  if (config.place.world > 1 && config.place.rank == 0) {
    KVERN_ASSIGN_OR_RETURN(meeting.host, ShmHost::Listen(static_cast<int>(config.place.world)));
    join.rendezvous = meeting.host->rendezvous();
  }
  join.group = config.group;
  join.group_incarnation = static_cast<Incarnation>(config.group_incarnation);
  join.model =
      config.model_name.empty() ? ModelNameOf(config.rank_options.model) : config.model_name;
  join.host = HostName();
  join.pid = static_cast<uint32_t>(getpid());
  KVERN_RETURN_IF_ERROR(link->SendJoin(join));
  KVERN_ASSIGN_OR_RETURN(GroupStart start, link->AwaitStart(kStartTimeout));
  if (join.group_incarnation != 0 && start.group_incarnation != join.group_incarnation) {
    return Internal("the router started incarnation ", start.group_incarnation, ", this is ",
                    join.group_incarnation);
  }
  // Before, nothing runs that a drain could finish.
  KVERN_RETURN_IF_ERROR(LeaveSignal::Install());
  link->PassOnLeaveSignal(start.group_incarnation);
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> comm, Meet(config, meeting, start));
  // A rank that is late by the lease has cost the group its place already; the sooner it is new.
  KVERN_RETURN_IF_ERROR(
      rank->SetCommunicator(std::move(comm), start.comm_id, start.lease_ms * kMillisecond));
  Log(LogLevel::kInfo, "rank_started",
      {{"group", config.group}, {"rank", config.place.rank}, {"kv_blocks", start.kv_blocks}});
  return rank->Run(start, config.place.rank == 0 ? link.get() : nullptr,
                   [&] { link->SayIfToldToLeave(); });
}

int Main(int argc, char** argv) {
  WorkerConfig config = ParseCommandLine(argc, argv);
  std::unique_ptr<RankLink> link;
  absl::Status status = RunWorker(config, link);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kvern-worker: %s rank %d: %s\n", config.group.c_str(),
               static_cast<int>(config.place.rank), std::string(status.message()).c_str());
  return link != nullptr && link->broken() ? kRouterGoneExit : 1;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) { return kvern::Main(argc, argv); }
