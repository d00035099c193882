#include "cluster/capacity/step_cost.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {
namespace {

__extension__ using Wide = unsigned __int128;

Duration TimeFor(Wide amount, uint64_t per_second) {
  return static_cast<Duration>((amount * kSecond + per_second - 1) / per_second);
}

}  // namespace

void StepWork::Add(uint64_t start, uint64_t count) {
  tokens += count;
  if (count > 0) context_pairs += count * start + count * (count - 1) / 2;
  kv_tokens += start + count;
}

Duration StepTime(const ModelCost& model, const DeviceCost& device, const StepWork& work) {
  KVERN_CHECK(device.bytes_per_second > 0);
  KVERN_CHECK(device.flops_per_second > 0);
  Wide bytes = model.weight_bytes + Wide{work.kv_tokens} * model.kv_bytes_per_token;
  Wide per_pair = Wide{4} * model.layers * model.query_heads * model.head_dim;
  Wide flops = Wide{2} * model.parameters * work.tokens + per_pair * work.context_pairs;
  return device.step_overhead +
         std::max(TimeFor(bytes, device.bytes_per_second), TimeFor(flops, device.flops_per_second));
}

ModelCost Llama3Of8B() {
  ModelCost model;
  model.parameters = 8'030'000'000;
  model.weight_bytes = 2 * model.parameters;
  model.layers = 32;
  model.query_heads = 32;
  model.head_dim = 128;
  model.kv_bytes_per_token = 2ull * 32 * 8 * 128 * 2;  // K and V, layers, KV heads, head_dim, bf16
  return model;
}

DeviceCost H100(uint32_t ranks) {
  DeviceCost device;
  device.bytes_per_second = 3'350'000'000'000 / 100 * 80 * ranks;
  device.flops_per_second = 989'000'000'000'000 / 100 * 50 * ranks;
  device.step_overhead = 3 * kMillisecond;
  return device;
}

}  // namespace kvern
