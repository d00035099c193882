// A paged cache with shuffled blocks, NaN wherever no token lies, and steps of attention over it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/cuda/device_memory.h"

namespace kvern::gpu {

struct AttentionShape {
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  KvType type = KvType::kBf16;
};

// Tokens [start, start + count) of sequence `id`.
struct Chunk {
  size_t id = 0;
  int32_t start = 0;
  int32_t count = 0;
};

class AttentionCase {
 public:
  static constexpr int32_t kLayers = 2;
  static constexpr int32_t kLayer = 1;

  // lengths: tokens of each sequence that are in the cache.
  AttentionCase(const AttentionShape& shape, const std::vector<int32_t>& lengths, uint64_t seed);

  // One step: these chunks, in this order. Returns [sum of counts][Q * D], rows of the chunks in
  // order. `blocks`: how many blocks each launch gets, 0: one per item and head.
  std::vector<Bf16> Run(const std::vector<Chunk>& chunks, const AttentionBudget& budget,
                        int32_t blocks = 0) const;
  // The same by reference::Attention.
  std::vector<double> Expected(const std::vector<Chunk>& chunks) const;

  // Sequence `id` gets equal keys and values whose sums over splits 0 and 1 cancel, so that the
  // order in which splits are added shows in the first bits of the result.
  void MakeOrderMatter(size_t id);

  // The blocks of the sequences lie in `far` from now on, which must outlive this.
  // REQUIRES: at most as many as `far` has, each of far->block_bytes.
  void MoveTo(const FarBlocks& far);
  // Of a block.
  size_t block_bytes() const {
    const auto elements = static_cast<size_t>(kLayers * 2 * shape_.kv_heads * 16 * shape_.head_dim);
    return elements * (shape_.type == KvType::kBf16 ? sizeof(Bf16) : sizeof(float));
  }

  const AttentionShape& shape() const { return shape_; }
  size_t row_elements() const { return static_cast<size_t>(shape_.q_heads * shape_.head_dim); }

 private:
  struct Sequence {
    int32_t length = 0;
    size_t table = 0;                            // first entry in block_tables_
    std::vector<float> q;                        // [length][Q * D], bf16 values
    std::vector<std::vector<float>> key, value;  // per KV head [length * D], bf16 values
  };

  size_t CacheIndex(uint32_t block, int32_t kv, int32_t head, int32_t token) const;
  void Fill(const Sequence& sequence, std::vector<float>* cache) const;

  AttentionShape shape_;
  std::vector<Sequence> sequences_;
  std::vector<uint32_t> block_tables_;
  std::vector<float> cache_;
  void* far_ = nullptr;  // where the cache lies instead
};

inline size_t AttentionCase::CacheIndex(uint32_t block, int32_t kv, int32_t head,
                                        int32_t token) const {
  const auto at = static_cast<int64_t>(block) * kLayers + kLayer;
  const int64_t run = (at * 2 + kv) * shape_.kv_heads + head;
  return static_cast<size_t>((run * kPageTokens + token) * shape_.head_dim);
}

inline AttentionCase::AttentionCase(const AttentionShape& shape,
                                    const std::vector<int32_t>& lengths, uint64_t seed)
    : shape_(shape) {
  Rng rng(seed);
  size_t blocks = 0;
  for (int32_t length : lengths) blocks += static_cast<size_t>((length + 15) / 16);
  // Block ids in random order, with some that nobody has.
  std::vector<uint32_t> ids(blocks + 3);
  std::iota(ids.begin(), ids.end(), 0u);
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[rng.Below(i)]);
  block_tables_.assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(blocks));
  const auto dim = static_cast<size_t>(shape.head_dim);
  cache_.assign(ids.size() * kLayers * 2 * static_cast<size_t>(shape.kv_heads) * 16 * dim,
                std::numeric_limits<float>::quiet_NaN());
  size_t table = 0;
  for (int32_t length : lengths) {
    Sequence sequence;
    sequence.length = length;
    sequence.table = table;
    table += static_cast<size_t>((length + 15) / 16);
    const auto tokens = static_cast<size_t>(length);
    // Large enough that weights are far from equal.
    sequence.q = Widened(Rounded(RandomRow(rng, tokens * row_elements(), 3)));
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      sequence.key.push_back(RandomRow(rng, tokens * dim, 1));
      sequence.value.push_back(RandomRow(rng, tokens * dim, 1));
    }
    Fill(sequence, &cache_);
    for (auto* rows : {&sequence.key, &sequence.value}) {
      for (auto& row : *rows) row = Widened(Rounded(row));
    }
    sequences_.push_back(std::move(sequence));
  }
}

inline void AttentionCase::Fill(const Sequence& sequence, std::vector<float>* cache) const {
  const auto dim = static_cast<size_t>(shape_.head_dim);
  for (int32_t token = 0; token < sequence.length; ++token) {
    const uint32_t block = block_tables_[sequence.table + static_cast<size_t>(token / 16)];
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const auto from = static_cast<ptrdiff_t>(static_cast<size_t>(token) * dim);
      for (int32_t kv = 0; kv < 2; ++kv) {
        const auto& rows = kv == 0 ? sequence.key : sequence.value;
        const auto begin = rows[static_cast<size_t>(head)].begin() + from;
        std::copy(begin, begin + shape_.head_dim,
                  cache->begin() + static_cast<ptrdiff_t>(CacheIndex(block, kv, head, token % 16)));
      }
    }
  }
}

inline void AttentionCase::MakeOrderMatter(size_t id) {
  Sequence& sequence = sequences_[id];
  const auto split = static_cast<size_t>(kSplitTokens * shape_.head_dim);
  for (auto& keys : sequence.key) std::fill(keys.begin(), keys.end(), 0.0f);
  for (auto& values : sequence.value) {
    ASSERT_GT(values.size(), 2 * split);
    for (size_t i = 0; i < split; ++i) {
      values[i] = ToFloat(ToBf16(values[i] * 8192));
      values[split + i] = -values[i];
    }
  }
  Fill(sequence, &cache_);
}

inline void AttentionCase::MoveTo(const FarBlocks& far) {
  ASSERT_LE(block_tables_.size(), far.ids().size());
  const std::vector<Bf16> rounded = Rounded(cache_);
  const bool bf16 = shape_.type == KvType::kBf16;
  const auto* cache = bf16 ? reinterpret_cast<const char*>(rounded.data())
                           : reinterpret_cast<const char*>(cache_.data());
  for (size_t i = 0; i < block_tables_.size(); ++i) {
    far.Write(i, cache + block_tables_[i] * block_bytes());
    block_tables_[i] = far.ids()[i];
  }
  far_ = far.get();
}

// Work lists on the device, with stale entries behind them as a graph's buffers have.
struct DeviceLists {
  explicit DeviceLists(AttentionPlan plan)
      : counts({{static_cast<int32_t>(plan.narrow.size()), static_cast<int32_t>(plan.wide.size()),
                 static_cast<int32_t>(plan.merges.size()), 0}}),
        narrow(Padded(plan.narrow)),
        wide(Padded(plan.wide)),
        merges(Padded(plan.merges)) {}

  template <typename T>
  static std::vector<T> Padded(std::vector<T> list) {
    std::array<unsigned char, sizeof(T)> bytes;
    bytes.fill(0x7f);
    const T stale = std::bit_cast<T>(bytes);
    list.insert(list.end(), 2, stale);
    return list;
  }

  DeviceArray<AttentionCounts> counts;
  DeviceArray<AttentionItem> narrow;
  DeviceArray<AttentionItem> wide;
  DeviceArray<AttentionMerge> merges;
};

inline std::vector<Bf16> AttentionCase::Run(const std::vector<Chunk>& chunks,
                                            const AttentionBudget& budget, int32_t blocks) const {
  std::vector<AttentionSequence> step;
  std::vector<float> q;
  int32_t rows = 0;
  const auto width = static_cast<ptrdiff_t>(row_elements());
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = sequences_[chunk.id];
    step.push_back({rows, chunk.start, chunk.count, static_cast<int32_t>(sequence.table)});
    rows += chunk.count;
    q.insert(q.end(), sequence.q.begin() + chunk.start * width,
             sequence.q.begin() + (chunk.start + chunk.count) * width);
  }
  AttentionPlan plan;
  PlanAttention(step, shape_.q_heads, shape_.kv_heads, budget, &plan);
  EXPECT_LE(plan.slots, budget.max_slots);
  const DeviceLists lists(plan);
  const DeviceArray<Bf16> device_q(Rounded(q));
  const DeviceArray<Bf16> out(q.size(), Bf16{0x7fff});
  const DeviceArray<float> cache_f32(cache_);
  const DeviceArray<Bf16> cache_bf16(Rounded(cache_));
  const DeviceArray<uint32_t> tables(block_tables_);
  const size_t workspace_bytes =
      AttentionWorkspaceBytes(budget.max_slots, shape_.q_heads, shape_.head_dim);
  const DeviceArray<float> workspace(workspace_bytes / 4, std::numeric_limits<float>::quiet_NaN());
  AttentionArgs args;
  args.q = device_q.get();
  args.q_stride = width;
  args.out = out.get();
  args.out_stride = width;
  args.q_heads = shape_.q_heads;
  args.layer = kLayer;
  args.pages = {cache_f32.get(), shape_.type, kLayers, shape_.kv_heads, shape_.head_dim};
  if (shape_.type == KvType::kBf16) args.pages.data = cache_bf16.get();
  if (far_ != nullptr) args.pages.data = far_;
  args.block_tables = tables.get();
  args.narrow = lists.narrow.get();
  args.wide = lists.wide.get();
  args.merges = lists.merges.get();
  args.counts = lists.counts.get();
  const auto Blocks = [&](size_t count) {
    const auto all = static_cast<int32_t>(count) * shape_.kv_heads;
    return blocks == 0 ? all : blocks;
  };
  args.narrow_blocks = Blocks(plan.narrow.size());
  args.wide_blocks = Blocks(plan.wide.size());
  args.merge_blocks = Blocks(plan.merges.size());
  args.workspace = workspace.get();
  args.workspace_slots = budget.max_slots;
  EXPECT_EQ(LaunchAttention(args, nullptr), cudaSuccess);
  return out.Read();
}

inline std::vector<double> AttentionCase::Expected(const std::vector<Chunk>& chunks) const {
  const auto dim = static_cast<ptrdiff_t>(shape_.head_dim);
  const auto Row = [dim](const std::vector<float>& rows, ptrdiff_t index) {
    return std::vector<double>(rows.begin() + index * dim, rows.begin() + (index + 1) * dim);
  };
  std::vector<double> out;
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = sequences_[chunk.id];
    for (int32_t token = chunk.start; token < chunk.start + chunk.count; ++token) {
      for (int32_t head = 0; head < shape_.q_heads; ++head) {
        const auto kv_head = static_cast<size_t>(head / (shape_.q_heads / shape_.kv_heads));
        std::vector<std::vector<double>> keys, values;
        for (int32_t seen = 0; seen <= token; ++seen) {
          keys.push_back(Row(sequence.key[kv_head], seen));
          values.push_back(Row(sequence.value[kv_head], seen));
        }
        const auto row =
            reference::Attention(Row(sequence.q, token * shape_.q_heads + head), keys, values);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
  }
  return out;
}

}  // namespace kvern::gpu
