// A rank's weights in device memory, read from a checkpoint: only this rank's share of the file,
// and the rest of rows of which a part is not worth a read of its own (matrix_loader.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/status.h"
#include "schemas/files/checkpoint.h"
#include "worker/device/device.h"
#include "worker/model/shard.h"

namespace kvern {

// --weights: the format in memory. kAuto keeps the file's own (F32, F16 -> f32; BF16 -> bf16; Q8_0
// -> int8; Q4_* -> int4).
enum class WeightChoice : uint8_t { kAuto, kF32, kBf16, kInt8, kInt4 };

struct LayerWeights {
  std::unique_ptr<Buffer> input_norm;  // float32 [H]
  std::unique_ptr<Matrix> qkv;         // [(Q + 2 KV) * D, H]
  std::unique_ptr<Buffer> qkv_bias;    // float32 or null
  std::unique_ptr<Matrix> out;         // [H, Q * D]
  std::unique_ptr<Buffer> out_bias;    // on rank 0 only, so that the sum adds it once
  std::unique_ptr<Buffer> post_norm;   // float32 [H]
  std::unique_ptr<Matrix> gate_up;     // [2 F, H]
  std::unique_ptr<Buffer> gate_up_bias;
  std::unique_ptr<Matrix> down;       // [H, F]
  std::unique_ptr<Buffer> down_bias;  // on rank 0 only
};

struct ModelWeights {
  ModelConfig config;
  RankShard shard;
  int rank = 0;
  int world = 1;
  std::unique_ptr<Matrix> embedding;   // [V, H], vocabulary rows of this rank
  std::unique_ptr<Matrix> output;      // [V, H]; null when tied: use the embedding
  std::unique_ptr<Buffer> final_norm;  // float32 [H]
  std::vector<LayerWeights> layers;
  std::unique_ptr<Buffer> rope_cos;  // float32 [max_seq_len, D / 2]
  std::unique_ptr<Buffer> rope_sin;
  uint32_t max_seq_len = 0;  // positions of the rope tables, and of block tables

  const Matrix& output_matrix() const { return output ? *output : *embedding; }
  size_t bytes() const;  // of everything above, as allocated
  size_t rope_bytes()
      const;  // of it, the rope tables: they grow with max_seq_len, not with the file
};

// Weights whose memory is asked for, and how to read them into it once it is there. The checkpoint
// and the device outlive both.
struct PlannedWeights {
  std::unique_ptr<ModelWeights> weights;
  std::function<absl::Status()> fill;  // call once, while `weights` lives
};

// Of rank `rank` of `world`. `max_seq_len`: of the longest sequence that the rank will compute (at
// most the model's); the rope tables have no more positions.
absl::StatusOr<PlannedWeights> PlanWeights(const Checkpoint& checkpoint, WeightChoice choice,
                                           int rank, int world, uint32_t max_seq_len,
                                           Device& device);

// The same, with memory of their own, and filled.
absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const Checkpoint& checkpoint,
                                                          WeightChoice choice, int rank, int world,
                                                          uint32_t max_seq_len, Device& device);

}  // namespace kvern
