// One rank of a group: its device, its shard of the weights, its KV blocks, its executor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "schemas/files/checkpoint.h"
#include "schemas/worker_messages.h"
#include "worker/comm/nccl/gpu_backend.h"
#include "worker/core/scheduler.h"
#include "worker/device/device.h"
#include "worker/engine/deferred_communicator.h"
#include "worker/engine/leader_port.h"
#include "worker/engine/model_executor.h"
#include "worker/engine/plan_channel.h"
#include "worker/model/decoder.h"
#include "worker/model/sampler.h"
#include "worker/model/weights.h"

namespace kvern {

struct RankConfig {
  uint32_t rank = 0;
  uint32_t world = 1;
  const GpuBackend* gpu = nullptr;  // null: the CPU
  int gpu_index = -1;               // of this host's GPUs; -1: the rank
  bool batch_invariant = false;     // the CPU always is
  int threads = 1;
  WeightChoice weights = WeightChoice::kAuto;
  DType kv_dtype = DType::kBf16;
  // Of this rank; used when kv_blocks is 0. 0: what a GPU has free beside weights and workspace,
  // but for a tenth of its memory.
  uint64_t kv_memory_bytes = 0;
  uint64_t kv_blocks = 0;
  uint32_t max_seq_len = 0;  // 0: the model's
  uint32_t max_batch_tokens = 512;
  // Steps that only decode are recorded where the device can. Not where several ranks of a process
  // have GPUs: recorded collectives of one process may wait for each other for ever (NCCL's
  // documentation, "Using NCCL with CUDA Graphs").
  bool graphs = true;
  // Of the group's leader. 0: one where the host computes, two where a GPU does, so that the host
  // plans and prepares a step while the one before it runs.
  uint32_t plans_in_flight = 0;
};

// Belongs to the rank's thread, which opens it, runs it and destroys it.
class Rank {
 public:
  // Allocates everything: device, weights, KV blocks, workspace. InvalidArgument for options that
  // do not go with the model, ResourceExhausted when memory is short.
  static absl::StatusOr<std::unique_ptr<Rank>> Open(const Checkpoint& checkpoint,
                                                    const RankConfig& config);

  // Leaves the group before it gives memory back: a GPU that waits for a lost peer would hold it.
  ~Rank();

  // What this rank tells the router of itself. Names (group, model, host, rendezvous) are the
  // caller's to fill in.
  const Join& join() const { return join_; }
  // Adds a phase that the caller has timed, in front of this rank's own.
  void AddPhase(std::string name, double seconds);

  // The ranks have met. Call once, before Run. GPUs of several ranks meet now, by the `comm_id` of
  // rank 0's Join. `timeout`: how long a collective may wait for its peers from now on.
  absl::Status SetCommunicator(std::unique_ptr<Communicator> comm, std::span<const uint8_t> comm_id,
                               Duration timeout);

  // Runs the group until it is told to stop (OK) or anything fails. `port` is rank 0's; null for
  // others, which call `between`, if there is one, after each of the leader's orders: an idle group
  // has four in its lease. Whatever ends this rank ends the group: its peers' collectives fail.
  absl::Status Run(const GroupStart& start, LeaderPort* port,
                   const std::function<void()>& between = nullptr);

 private:
  Rank(const Checkpoint& checkpoint, const RankConfig& config)
      : config_(config),
        model_(checkpoint.config()),
        comm_(static_cast<int>(config.rank), static_cast<int>(config.world)) {}

  absl::Status Allocate(const Checkpoint& checkpoint);
  absl::Status OpenDevice();
  absl::Status PlanShard(const Checkpoint& checkpoint, PlannedWeights& planned);
  absl::StatusOr<uint64_t> KvMemory();
  // Of `shape`, but for its blocks: as many as options and memory allow.
  absl::StatusOr<uint64_t> KvBlocks(const KvCacheShape& shape);
  absl::Status BoundKv();
  absl::Status CheckHostMemory() const;
  absl::Status AllocateKv();
  absl::Status AllocateWorkspace();
  absl::Status WarmUp();
  absl::Status RunLeader(const GroupStart& start, LeaderPort& port, PlanChannel& channel);
  uint32_t max_sample_rows() const;

  RankConfig config_;
  ModelConfig model_;
  std::unique_ptr<Device> device_;
  DeferredCommunicator comm_;         // ends before its device
  std::unique_ptr<Buffer> gathered_;  // for the communicator
  std::unique_ptr<ModelWeights> weights_;
  KvCacheShape kv_shape_;  // its blocks: at most so many
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<ModelExecutor> executor_;
  Join join_;
};

}  // namespace kvern
