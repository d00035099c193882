// The operations that touch the KV cache.
#include <algorithm>
#include <cstring>

#include "cluster/base/check.h"
#include "worker/device/cpu/cpu_ops.h"

namespace kvern {
namespace {

// Where one layer of one kind (keys or values) lies in a block, in elements.
struct CacheView {
  explicit CacheView(const KvCacheShape& shape)
      : head(static_cast<int64_t>(kBlockSize) * shape.head_dim),
        kind(shape.kv_heads * head),
        layer(2 * kind),
        block(shape.num_layers * layer) {}
  int64_t head;   // Stride from head to head,
  int64_t kind;   // from keys to values,
  int64_t layer;  // from layer to layer,
  int64_t block;  // from block to block.
};

static_assert(cpu::kPageTokens == kBlockSize);

char* At(KvCache& cache, int64_t element) {
  return static_cast<char*>(cache.data()) +
         static_cast<size_t>(element) * SizeOf(cache.shape().dtype);
}

int64_t RowsOf(const cpu::AttentionRows& item) { return item.tokens * item.group; }

// Multiplications of an item, about.
int64_t CostOf(const cpu::AttentionRows& item) {
  return 2 * RowsOf(item) * (item.start + item.tokens) * item.head_dim;
}

int64_t NumSplits(const cpu::AttentionRows& item) {
  return (item.start + item.tokens + cpu::kSplitTokens - 1) / cpu::kSplitTokens;
}

// Cuts a step into items: some tokens of one sequence against one KV head.
void ListItems(Tensor q, int64_t q_heads, const BatchLayout& layout, int64_t layer,
               const KvCache& cache, Tensor out, std::vector<cpu::AttentionRows>& items) {
  const KvCacheShape& shape = cache.shape();
  const CacheView view(shape);
  const int64_t group = q_heads / shape.kv_heads;
  const int64_t tokens_per_item = cpu::kMaxAttentionRows / group;
  const char* base = static_cast<const char*>(const_cast<KvCache&>(cache).data());
  items.clear();
  for (const BatchSequence& sequence : layout.sequences) {
    for (int64_t first = 0; first < sequence.count; first += tokens_per_item) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        cpu::AttentionRows item;
        const int64_t row = sequence.first_row + first;
        item.q = q.f32() + row * q.stride + head * group * shape.head_dim;
        item.q_stride = q.stride;
        item.out = out.f32() + row * out.stride + head * group * shape.head_dim;
        item.out_stride = out.stride;
        item.start = sequence.start + first;
        item.tokens = std::min(tokens_per_item, sequence.count - first);
        item.group = group;
        item.head_dim = shape.head_dim;
        item.pages =
            base + static_cast<size_t>(layer * view.layer + head * view.head) * SizeOf(shape.dtype);
        item.bf16 = shape.dtype == DType::kBf16;
        item.page_stride = view.block;
        item.value_offset = view.kind;
        item.block_table = sequence.block_table.data();
        items.push_back(item);
      }
    }
  }
}

// What the parts of a round take, of items whose splits are shared out among threads. The others
// wait for the next round, so that it does not grow with the context.
constexpr size_t kRoundBytes = size_t{1} << 20;

}  // namespace

void CpuOps::RopeAndStoreKv(Tensor qkv, const RopeTable& rope, const Batch& batch, int64_t layer,
                            KvCache& cache, Tensor q) {
  const KvCacheShape& shape = cache.shape();
  const CacheView view(shape);
  const int64_t dim = shape.head_dim;
  const int64_t q_heads = q.cols / dim;
  KVERN_CHECK_EQ(qkv.cols, (q_heads + 2 * shape.kv_heads) * dim);
  KVERN_CHECK(q.data == qkv.data && q.stride == qkv.stride) << "q is not the columns of qkv";
  KVERN_CHECK(layer >= 0 && layer < shape.num_layers) << "layer " << layer;
  const auto store = [&](const float* x, int64_t element) {
    if (shape.dtype == DType::kBf16) {
      rows_.to_bf16(x, dim, reinterpret_cast<uint16_t*>(At(cache, element)));
    } else {
      std::memcpy(At(cache, element), x, static_cast<size_t>(dim) * sizeof(float));
    }
  };
  for (const BatchSequence& sequence : static_cast<const CpuBatch&>(batch).layout().sequences) {
    KVERN_CHECK_LE(sequence.start + sequence.count,
                   static_cast<int64_t>(sequence.block_table.size() * kBlockSize));
    ForRows(sequence.count, qkv.cols * 2, [&](int64_t i) {
      const int64_t position = sequence.start + i;
      float* row = qkv.f32() + (sequence.first_row + i) * qkv.stride;
      const float* cos = rope.cos + position * (dim / 2);
      const float* sin = rope.sin + position * (dim / 2);
      for (int64_t head = 0; head < q_heads + shape.kv_heads; ++head) {
        rows_.rope(row + head * dim, cos, sin, dim / 2);
      }
      const uint32_t block = sequence.block_table[static_cast<size_t>(position / kBlockSize)];
      KVERN_CHECK_LT(static_cast<int64_t>(block), shape.num_blocks);
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const int64_t element = block * view.block + layer * view.layer + head * view.head +
                                position % kBlockSize * dim;
        const float* key = row + (q_heads + head) * dim;
        store(key, element);
        store(key + shape.kv_heads * dim, element + view.kind);
      }
    });
  }
}

void CpuOps::Attention(Tensor q, const Batch& batch, int64_t layer, const KvCache& cache,
                       Tensor out) {
  const KvCacheShape& shape = cache.shape();
  const int64_t q_heads = q.cols / shape.head_dim;
  KVERN_CHECK(q_heads % shape.kv_heads == 0 && q_heads <= cpu::kMaxAttentionRows * shape.kv_heads)
      << q_heads << " query heads, " << shape.kv_heads << " KV heads";
  KVERN_CHECK(q.cols == q_heads * shape.head_dim && out.cols == q.cols)
      << q.cols << ", " << out.cols << " columns";
  ListItems(q, q_heads, static_cast<const CpuBatch&>(batch).layout(), layer, cache, out,
            attention_items_);
  int64_t splits = 0;
  int64_t cost = 0;
  for (const cpu::AttentionRows& item : attention_items_) {
    splits += NumSplits(item);
    cost += CostOf(item);
  }
  // Few items with many splits leave threads idle unless the splits are shared out too.
  const auto items = static_cast<int64_t>(attention_items_.size());
  if (items < 4 * pool_.threads() && pool_.threads() > 1 && splits > items) {
    AttendSplitItems(attention_items_);
  } else {
    AttendWholeItems(attention_items_, cost >= kWorthThreads);
  }
}

void CpuOps::AttendWholeItems(const std::vector<cpu::AttentionRows>& items, bool parallel) {
  if (items.empty()) return;
  const int64_t dim = items[0].head_dim;
  const size_t scratch_floats = cpu::AttentionScratchFloats(dim);
  const size_t partial_floats = cpu::PartialFloats(cpu::kMaxAttentionRows, dim);
  const size_t thread_floats = scratch_floats + 2 * partial_floats;
  float* memory = Scratch(attention_scratch_, thread_floats * static_cast<size_t>(pool_.threads()));
  const auto attend = [&](int thread, int64_t i) {
    const cpu::AttentionRows& item = items[static_cast<size_t>(i)];
    float* mine = memory + thread_floats * static_cast<size_t>(thread);
    const auto total = cpu::PartialIn(mine + scratch_floats, RowsOf(item));
    const auto next = cpu::PartialIn(mine + scratch_floats + partial_floats, RowsOf(item));
    attention_.split(item, 0, mine, total);
    for (int64_t split = 1; split < NumSplits(item); ++split) {
      attention_.split(item, split, mine, next);
      attention_.merge(RowsOf(item), dim, next, total);
    }
    attention_.finish(item, total);
  };
  const auto count = static_cast<int64_t>(items.size());
  if (parallel) {
    // Later tokens see more: the longest items first, so that threads end together.
    pool_.Items(count, [&](int thread, int64_t i) { attend(thread, count - 1 - i); });
  } else {
    for (int64_t i = 0; i < count; ++i) attend(0, i);
  }
}

void CpuOps::AttendSplitItems(const std::vector<cpu::AttentionRows>& items) {
  const int64_t dim = items[0].head_dim;
  struct Part {
    const cpu::AttentionRows* item;
    int64_t split;
    cpu::AttentionPartial partial;
  };
  std::vector<Part> parts;
  int64_t most_rows = 0;
  for (const cpu::AttentionRows& item : items) {
    most_rows = std::max(most_rows, RowsOf(item));
    for (int64_t split = 0; split < NumSplits(item); ++split) parts.push_back({&item, split, {}});
  }
  const size_t floats = cpu::PartialFloats(most_rows, dim);
  const size_t enough = 2 * static_cast<size_t>(pool_.threads());  // for all threads
  const size_t round = std::min(parts.size(), std::max(enough, kRoundBytes / 4 / floats));
  // In front of those of a round: what an item has come to that goes on in the next one.
  float* memory = Scratch(attention_partials_, floats * (round + 1));
  const size_t scratch_floats = cpu::AttentionScratchFloats(dim);
  float* scratch =
      Scratch(attention_scratch_, scratch_floats * static_cast<size_t>(pool_.threads()));
  for (size_t begin = 0; begin < parts.size(); begin += round) {
    const size_t end = std::min(begin + round, parts.size());
    for (size_t i = begin; i < end; ++i) {
      float* place = memory + floats * (1 + i - begin);
      parts[i].partial = cpu::PartialIn(place, RowsOf(*parts[i].item));
    }
    pool_.Items(static_cast<int64_t>(end - begin), [&](int thread, int64_t i) {
      const Part& part = parts[begin + static_cast<size_t>(i)];
      attention_.split(*part.item, part.split,
                       scratch + scratch_floats * static_cast<size_t>(thread), part.partial);
    });
    float* total = memory;
    for (size_t i = begin; i < end; ++i) {
      const cpu::AttentionRows& item = *parts[i].item;
      float* place = memory + floats * (1 + i - begin);
      if (parts[i].split == 0) {
        total = place;  // every row sees the first key
      } else {
        attention_.merge(RowsOf(item), dim, parts[i].partial, cpu::PartialIn(total, RowsOf(item)));
      }
      if (parts[i].split + 1 == NumSplits(item)) {
        attention_.finish(item, cpu::PartialIn(total, RowsOf(item)));
      }
    }
    if (total != memory) std::copy_n(total, floats, memory);
  }
}

void CpuOps::CopyBlocks(std::span<const std::pair<uint32_t, uint32_t>> from_to, KvCache& cache) {
  const CacheView view(cache.shape());
  for (const auto& [from, to] : from_to) {
    KVERN_CHECK_LT(static_cast<int64_t>(std::max(from, to)), cache.shape().num_blocks);
    if (from == to) continue;
    std::memcpy(At(cache, to * view.block), At(cache, from * view.block),
                cache.shape().BlockBytes());
  }
}

}  // namespace kvern
