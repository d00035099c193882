// The roofline of one engine step: the time that memory and arithmetic allow, whichever is longer.
// Used by the simulator's executor and by capacity planning. Integers in and out.
// Source of the model: Williams, Waterman, Patterson, "Roofline", CACM 2009.
#pragma once

#include <cstdint>

#include "cluster/base/time.h"

namespace kvern {

// What a step of this model moves and computes, over all ranks of a group.
struct ModelCost {
  uint64_t parameters = 0;          // that take part in a token
  uint64_t weight_bytes = 0;        // read once per step
  uint64_t kv_bytes_per_token = 0;  // read per token of context and sequence
  uint32_t layers = 0;
  uint32_t query_heads = 0;
  uint32_t head_dim = 0;
};

// What the ranks of a group reach together.
struct DeviceCost {
  uint64_t bytes_per_second = 0;  // of device memory, reached
  uint64_t flops_per_second = 0;  // reached
  Duration step_overhead = 0;     // launch, collectives, host
};

// What one step does. Add() one row of a plan after the other.
struct StepWork {
  uint64_t tokens = 0;         // computed
  uint64_t context_pairs = 0;  // sum over the tokens computed of the tokens before each
  uint64_t kv_tokens = 0;      // sum over the sequences of the tokens in their KV after the step

  // `count` tokens of one sequence, from position `start`.
  void Add(uint64_t start, uint64_t count);
};

// overhead + max(bytes / bandwidth, FLOPs / rate), in nanoseconds, rounded up.
//   bytes = weight_bytes + kv_tokens * kv_bytes_per_token
//   FLOPs = 2 * parameters * tokens + 4 * layers * query_heads * head_dim * context_pairs
// REQUIRES: both rates > 0.
Duration StepTime(const ModelCost& model, const DeviceCost& device, const StepWork& work);

// Llama 3 8B in bf16, KV in bf16.
ModelCost Llama3Of8B();
// An NVIDIA H100 SXM (data sheet: 3.35 TB/s, 989 TFLOP/s dense bf16) at 80 % of its bandwidth and
// 50 % of its FLOP/s, with 3 ms per step. `ranks` of them have `ranks` times both.
DeviceCost H100(uint32_t ranks);

}  // namespace kvern
