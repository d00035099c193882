// A tensor-parallel group as threads of the test, or one rank of it, and golden cases read from
// JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "schemas/files/checkpoint.h"
#include "worker/comm/nccl/gpu_backend.h"
#include "worker/device/device.h"
#include "worker/model/decoder.h"
#include "worker/model/sampler.h"
#include "worker/model/weights.h"

namespace kvern {

struct GroupOptions {
  int world = 1;
  int threads = 1;                  // of each rank
  const GpuBackend* gpu = nullptr;  // null: the CPU
  bool batch_invariant = false;     // for GPUs
  bool graphs = true;               // for GPUs
  WeightChoice weights = WeightChoice::kAuto;
  DType kv = DType::kF32;
  int64_t max_tokens = 512;  // of a step
  int64_t kv_tokens = 4096;  // that the cache holds
};

// How Generate cuts and batches its prompts.
struct RunOptions {
  int64_t chunk = 512;    // prompt tokens of a sequence per step
  int steps = 0;          // tokens to draw greedily, at least 1
  int kept_logits = 1;    // of the first draws
  uint32_t logprobs = 0;  // K of the first draws' logprobs
};

struct Generated {
  std::vector<uint32_t> tokens;            // [steps]
  std::vector<std::vector<float>> logits;  // [kept_logits][vocab]
  std::vector<TokenLogprob> logprobs;      // [steps]
};

class ModelGroup {
 public:
  // Fails the current test and returns null when the model cannot be loaded.
  static std::unique_ptr<ModelGroup> Load(const std::string& path, const GroupOptions& options);
  static std::unique_ptr<ModelGroup> Load(absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint,
                                          const GroupOptions& options);
  // The one rank of the group that is this process's; `control` reaches the others, and `comm_id`
  // is what their GPUs meet by. What Generate returns has this rank's columns of the logits, and
  // the tokens if this is rank 0.
  static std::unique_ptr<ModelGroup> LoadOne(const std::string& path, const GroupOptions& options,
                                             std::unique_ptr<Communicator> control,
                                             std::span<const uint8_t> comm_id);

  // Computes all prompts in one continuous batch, oldest first under the token budget.
  std::vector<Generated> Generate(const std::vector<std::vector<uint32_t>>& prompts,
                                  const RunOptions& options);

  const ModelConfig& config() const { return checkpoint_->config(); }
  size_t weights_bytes(int rank) const;

 private:
  struct Rank {
    std::unique_ptr<Device> device;
    std::unique_ptr<Communicator> comm;
    std::unique_ptr<ModelWeights> weights;
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<Sampler> sampler;
    std::unique_ptr<KvCache> cache;
  };
  // Of `comms`, the other communicator of each rank that is this process's.
  static std::unique_ptr<ModelGroup> LoadRanks(
      absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint, const GroupOptions& options,
      std::span<const uint8_t> comm_id, std::vector<std::unique_ptr<Communicator>> comms);
  absl::Status LoadRank(Rank& rank);
  absl::Status RunRank(Rank& rank, const std::vector<std::vector<uint32_t>>& prompts,
                       const RunOptions& options, std::vector<Generated>& out);

  GroupOptions options_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<uint8_t> comm_id_;  // of GPUs
  std::vector<Rank> ranks_;
};

// A case of golden.json or logits.jsonl.
struct GoldenCase {
  std::string name;
  std::vector<uint32_t> ids;
  std::vector<float> last_logits;  // of the ids 0, stride, 2 * stride, ...
  size_t logit_stride = 1;
  struct Step {
    uint32_t id = 0;
    double logprob = 0;
    double gap = 0;
  };
  std::vector<Step> greedy;
  std::vector<std::pair<uint32_t, double>> top20;  // of smollm2
};

// The cases of tests/golden/tiny/NAME/golden.json.
std::vector<GoldenCase> TinyCases(const std::string& name);
// The cases of one file of tests/golden/tiny/llama_gqa_gguf.
std::vector<GoldenCase> GgufCases(const std::string& file);
// The cases of tests/golden/smollm2.
std::vector<GoldenCase> SmolLm2Cases();

// Where the real model lies: $KVERN_MODEL, or what tools/fetch_model has fetched.
std::string RealModelPath();

// Logits within `tolerance`, and the drawn tokens equal to the reference up to its first step whose
// gap is at most 1e-2 and where they differ.
void ExpectFollowsReference(const GoldenCase& golden, const Generated& generated, float tolerance);

}  // namespace kvern
