#include "tests/bench/gpu/attention_bench.h"

#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/bench/gpu/gpu_timer.h"

namespace kvern::gpu {
namespace {

// A step of `batch` sequences that each add `tokens` behind `context` cached ones.
struct Shape {
  int32_t batch = 1;
  int32_t context = 0;
  int32_t tokens = 1;
  int32_t q_heads = 32;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;
};

// What one shape needs on the device. Caches take turns, so that none is found in the GPU's own
// caches by the time it is read again.
class AttentionStep {
 public:
  static constexpr size_t kCoolingBytes = size_t{512} << 20;

  absl::Status Prepare(const Shape& shape, bool smoke);
  cudaError_t Enqueue(int i) {
    args_.layer = i % args_.pages.layers;
    return LaunchAttention(args_, nullptr);
  }
  double KvBytes(const Shape& shape) const {
    return 2.0 * shape.batch * shape.kv_heads * shape.head_dim * 2 *
           static_cast<double>(shape.context + shape.tokens);
  }

 private:
  absl::Status Plan(const Shape& shape);

  AttentionArgs args_;
  std::vector<AttentionSequence> sequences_;
  DeviceMemory q_, out_, pages_, tables_, narrow_, wide_, merges_, counts_, workspace_;
};

absl::Status AttentionStep::Prepare(const Shape& shape, bool smoke) {
  const int32_t blocks_each = (shape.context + shape.tokens + kPageTokens - 1) / kPageTokens;
  const int32_t blocks = blocks_each * shape.batch;
  const size_t layer_bytes = static_cast<size_t>(blocks) * 2 * kPageTokens * 2 *
                             static_cast<size_t>(shape.kv_heads * shape.head_dim);
  const size_t layers = smoke ? 1 : std::max<size_t>(1, kCoolingBytes / layer_bytes);
  args_.pages.layers = static_cast<int32_t>(std::min<size_t>(layers, 64));
  args_.pages.kv_heads = shape.kv_heads;
  args_.pages.head_dim = shape.head_dim;
  args_.q_heads = shape.q_heads;
  std::vector<uint32_t> tables(static_cast<size_t>(blocks));
  std::iota(tables.begin(), tables.end(), 0u);
  std::shuffle(tables.begin(), tables.end(), std::mt19937(1));
  for (int32_t i = 0; i < shape.batch; ++i) {
    sequences_.push_back({i * shape.tokens, shape.context, shape.tokens, i * blocks_each});
  }
  const size_t row_bytes = static_cast<size_t>(shape.batch * shape.tokens) *
                           static_cast<size_t>(shape.q_heads * shape.head_dim) * 2;
  args_.q_stride = args_.out_stride = int64_t{shape.q_heads} * shape.head_dim;
  KVERN_ASSIGN_OR_RETURN(q_, AllocateRandom(row_bytes));
  KVERN_ASSIGN_OR_RETURN(out_, AllocateZero(row_bytes));
  KVERN_ASSIGN_OR_RETURN(pages_,
                         AllocateRandom(layer_bytes * static_cast<size_t>(args_.pages.layers)));
  KVERN_ASSIGN_OR_RETURN(tables_, CopyOf(tables));
  args_.q = static_cast<const Bf16*>(q_.get());
  args_.out = static_cast<Bf16*>(out_.get());
  args_.pages.data = pages_.get();
  args_.block_tables = static_cast<const uint32_t*>(tables_.get());
  return Plan(shape);
}

absl::Status AttentionStep::Plan(const Shape& shape) {
  cudaDeviceProp device{};
  KVERN_RETURN_IF_ERROR(Checked(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties"));
  AttentionBudget budget;
  budget.blocks = 4 * device.multiProcessorCount;
  budget.max_slots = 4 * budget.blocks;
  AttentionPlan plan;
  PlanAttention(sequences_, shape.q_heads, shape.kv_heads, budget, &plan);
  const auto count = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  const std::vector<AttentionCounts> counts = {
      {count(plan.narrow), count(plan.wide), count(plan.merges), 0}};
  KVERN_ASSIGN_OR_RETURN(narrow_, CopyOf(plan.narrow));
  KVERN_ASSIGN_OR_RETURN(wide_, CopyOf(plan.wide));
  KVERN_ASSIGN_OR_RETURN(merges_, CopyOf(plan.merges));
  KVERN_ASSIGN_OR_RETURN(counts_, CopyOf(counts));
  KVERN_ASSIGN_OR_RETURN(
      workspace_, AllocateZero(std::max<size_t>(
                      16, AttentionWorkspaceBytes(plan.slots, shape.q_heads, shape.head_dim))));
  args_.narrow = static_cast<const AttentionItem*>(narrow_.get());
  args_.wide = static_cast<const AttentionItem*>(wide_.get());
  args_.merges = static_cast<const AttentionMerge*>(merges_.get());
  args_.counts = static_cast<const AttentionCounts*>(counts_.get());
  args_.narrow_blocks = count(plan.narrow) * shape.kv_heads;
  args_.wide_blocks = count(plan.wide) * shape.kv_heads;
  args_.merge_blocks = count(plan.merges) * shape.q_heads;
  args_.workspace = static_cast<float*>(workspace_.get());
  args_.workspace_slots = plan.slots;
  return absl::OkStatus();
}

Finding Given(const Shape& shape) {
  return {shape.tokens == 1 ? "attention_decode" : "attention_prefill",
          {{"batch", absl::StrCat(shape.batch)},
           {"context", absl::StrCat(shape.context)},
           {"tokens", absl::StrCat(shape.tokens)},
           {"q_heads", absl::StrCat(shape.q_heads)},
           {"kv_heads", absl::StrCat(shape.kv_heads)},
           {"head_dim", absl::StrCat(shape.head_dim)}}};
}

absl::Status Measure(const Shape& shape, bool smoke, const DeviceLimits& limits, Report& report) {
  AttentionStep step;
  KVERN_RETURN_IF_ERROR(step.Prepare(shape, smoke));
  const Effort effort = smoke ? Effort{0, 1} : Effort{};
  KVERN_ASSIGN_OR_RETURN(double seconds,
                         SecondsPerCall(effort, [&](int i) { return step.Enqueue(i); }));
  Finding finding = Given(shape);
  finding.values.emplace_back("us", Number(seconds * 1e6));
  if (shape.tokens == 1) {
    const double rate = step.KvBytes(shape) / seconds;
    finding.values.emplace_back("GB/s", Number(rate * 1e-9));
    finding.values.emplace_back(
        "share_of_copy", Number(limits.bytes_per_second > 0 ? rate / limits.bytes_per_second : 0));
  } else {
    const double keys = shape.context + (shape.tokens + 1) / 2.0;
    const double rate =
        4.0 * shape.batch * shape.tokens * keys * shape.q_heads * shape.head_dim / seconds;
    finding.values.emplace_back("TFLOP/s", Number(rate * 1e-12));
    finding.values.emplace_back(
        "share_of_product",
        Number(limits.flops_per_second > 0 ? rate / limits.flops_per_second : 0));
  }
  report.Add(finding);
  return absl::OkStatus();
}

std::vector<Shape> Shapes(bool smoke) {
  if (smoke) return {{2, 40, 1, 4, 2, 64}, {1, 300, 1, 4, 1, 128}, {1, 16, 20, 4, 2, 64}};
  std::vector<Shape> shapes;
  for (auto [q_heads, kv_heads] : {std::pair{32, 8}, std::pair{64, 8}, std::pair{32, 32}}) {
    for (int32_t batch : {1, 8, 64}) {
      for (int32_t context : {1024, 4096, 16384, 65536}) {
        if (int64_t{batch} * context > 1 << 20) continue;
        shapes.push_back({batch, context - 1, 1, q_heads, kv_heads, 128});
      }
    }
  }
  for (int32_t context : {0, 2048, 16384}) {
    for (int32_t tokens : {512, 2048}) shapes.push_back({1, context, tokens, 32, 8, 128});
  }
  shapes.push_back({8, 2047, 1, 32, 8, 64});
  return shapes;
}

}  // namespace

void BenchAttention(bool smoke, const DeviceLimits& limits, Report& report) {
  for (const Shape& shape : Shapes(smoke)) {
    absl::Status measured = Measure(shape, smoke, limits, report);
    if (!measured.ok()) report.Failed(Given(shape), std::string(measured.message()));
  }
}

}  // namespace kvern::gpu
