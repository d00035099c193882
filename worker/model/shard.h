// Which part of the model a rank holds. Heads are split as evenly as they go; feed-forward columns
// and vocabulary rows are then dealt so that the bytes per rank even out.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/capacity/kv_budget.h"
#include "schemas/files/model_config.h"

namespace kvern {

struct RankShard {
  ShardRange kv_heads;
  ShardRange q_heads;       // kv_heads * (num_heads / num_kv_heads)
  ShardRange intermediate;  // columns of gate and up, inputs of down; cut at multiples of `unit`
  ShardRange vocab;         // rows of embedding and output
};

// What the parts of a model take, in one unit of any size: bytes, so that these even out.
struct ShardCosts {
  std::vector<uint64_t> attention;  // of each rank's heads, all layers
  uint64_t column = 0;              // of one feed-forward column, all layers
  uint64_t row = 0;                 // of one vocabulary row
};

// In elements: for a model whose matrices have one format.
absl::StatusOr<ShardCosts> ElementCosts(const ModelConfig& config, uint32_t world);

// The shards of all ranks. `unit` is the granularity of quantised inputs (32) or 1; intermediate
// ranges are cut at its multiples. InvalidArgument naming field, value and limit when a cut is
// impossible.
absl::StatusOr<std::vector<RankShard>> ShardModel(const ModelConfig& config, uint32_t world,
                                                  uint32_t unit, const ShardCosts& costs);

}  // namespace kvern
