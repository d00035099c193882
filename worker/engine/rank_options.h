// The options of a rank that kvern-worker and kvern-run share, and their defaults.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/base/options.h"
#include "cluster/base/status.h"
#include "worker/engine/rank.h"

namespace kvern {

struct RankOptions {
  std::string model;
  std::string device = "auto";
  std::string kv_dtype = "auto";
  std::string weights = "auto";
  int64_t threads = 0;  // 0: cores / ranks
  uint64_t kv_memory_bytes = 0;
  int64_t kv_blocks = 0;
  int64_t max_seq_len = 0;  // 0: the model's
  int64_t max_batch_tokens = 512;
  bool batch_invariant = false;
};

// Registers --model, --device, --kv-memory, --kv-blocks, --kv-dtype, --weights, --threads,
// --max-seq-len, --max-batch-tokens, --batch-invariant.
void AddRankOptions(Options& options, RankOptions& target);

// What the options mean on a host that runs `ranks` ranks. InvalidArgument for an option that is
// missing, naming it.
absl::StatusOr<RankConfig> ToRankConfig(const RankOptions& options, int64_t ranks);

// Of --tp, where its ranks are threads, and of a rank's --gpu-index on a host that runs `ranks`:
// InvalidArgument when this machine has too few GPUs. Before any is opened, so that the option is
// named.
absl::Status CheckTp(const RankConfig& config, int64_t tp);
absl::Status CheckGpuIndex(const RankConfig& config, int64_t index, int64_t ranks);

}  // namespace kvern
