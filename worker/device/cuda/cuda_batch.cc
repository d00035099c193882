#include "worker/device/cuda/cuda_batch.h"

#include <algorithm>
#include <cstring>

#include "cluster/base/check.h"

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

static_assert(gpu::kPageTokens == kBlockSize);

// Attention blocks that fill a multiprocessor.
constexpr int32_t kBlocksPerProcessor = 4;
// Partial results of long items that are shared out; 1024 of 32 heads of 128 are 17 MB.
constexpr int32_t kMaxSlots = 1024;
// A block of the merge kernel takes about this many values.
constexpr int64_t kMergeValues = 512;

int32_t AtMost(int64_t wanted, int64_t most) {
  return static_cast<int32_t>(std::min(wanted, most));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Batch>> CudaBatch::Create(CudaContext& context, DeviceArena& arena,
                                                         const BatchLimits& limits) {
  const std::string unsupported =
      gpu::AttentionUnsupported(limits.head_dim, limits.q_heads, limits.kv_heads);
  if (!unsupported.empty()) return InvalidArgument("attention on a GPU: ", unsupported);
  KVERN_CHECK(limits.tokens > 0 && limits.tokens <= INT32_MAX && limits.logit_rows >= 0 &&
              limits.block_entries > 0);
  if (limits.block_entries > INT32_MAX) {
    return InvalidArgument("steps of ", limits.tokens, " tokens on a GPU: block tables of ",
                           limits.block_entries, " entries, allowed: ", INT32_MAX,
                           " (fewer tokens in one step, or shorter sequences)");
  }
  std::unique_ptr<CudaBatch> batch(new CudaBatch(context, limits));
  KVERN_RETURN_IF_ERROR(batch->Allocate(arena));
  return std::unique_ptr<Batch>(std::move(batch));
}

CudaBatch::CudaBatch(CudaContext& context, const BatchLimits& limits)
    : context_(context), limits_(limits), max_slots_(kMaxSlots) {}

void CudaBatch::LayOut() {
  const auto tokens = static_cast<size_t>(limits_.tokens);
  const size_t items = tokens + static_cast<size_t>(max_slots_);
  const auto take = [this](size_t bytes) {
    const size_t begin = places_.total;
    places_.total += (bytes + 63) / 64 * 64;
    return begin;
  };
  places_.counts = take(sizeof(gpu::AttentionCounts));
  places_.token_ids = take(tokens * sizeof(uint32_t));
  places_.positions = take(tokens * sizeof(uint32_t));
  places_.slots = take(tokens * sizeof(int64_t));
  places_.logit_rows = take(std::max(tokens, static_cast<size_t>(limits_.logit_rows)) * 4);
  places_.narrow = take(items * sizeof(gpu::AttentionItem));
  places_.wide = take(items * sizeof(gpu::AttentionItem));
  places_.merges = take(tokens * sizeof(gpu::AttentionMerge));
  places_.block_tables = take(static_cast<size_t>(limits_.block_entries) * sizeof(uint32_t));
}

absl::Status CudaBatch::Allocate(DeviceArena& arena) {
  LayOut();
  KVERN_ASSIGN_OR_RETURN(tables_, StepInput::Create(context_, arena, places_.total));
  KVERN_ASSIGN_OR_RETURN(workspace_, arena.LayOut(gpu::AttentionWorkspaceBytes(
                                         max_slots_, limits_.q_heads, limits_.head_dim)));
  return absl::OkStatus();
}

absl::Status CudaBatch::Load(const BatchLayout& layout, int64_t padded_rows) {
  const auto tokens = static_cast<int64_t>(layout.token_ids.size());
  const auto wanted = static_cast<int64_t>(layout.logit_rows.size());
  rows_ = padded_rows > 0 ? padded_rows : tokens;
  logit_count_ = padded_rows > 0 ? padded_rows : wanted;
  KVERN_CHECK(tokens <= rows_ && rows_ <= limits_.tokens && wanted <= logit_count_)
      << tokens << " tokens, " << rows_ << " rows";
  context_.Enter();
  KVERN_RETURN_IF_ERROR(tables_->Begin());
  FillRows(layout);
  FillTables(layout);
  PlanWork(layout, padded_rows > 0);
  const auto& [counts, ids, positions, slots, logits, narrow, wide, merges, tables, total] =
      places_;
  tables_->Send(counts, narrow);
  tables_->Send(narrow, plan_.narrow.size() * sizeof(gpu::AttentionItem));
  tables_->Send(wide, plan_.wide.size() * sizeof(gpu::AttentionItem));
  tables_->Send(merges, plan_.merges.size() * sizeof(gpu::AttentionMerge));
  tables_->Send(tables, block_entries_ * sizeof(uint32_t));
  tables_->Sent();
  return context_.status();
}

absl::Status CudaBatch::SetTokenIds(const BatchLayout& layout) {
  KVERN_CHECK_LE(static_cast<int64_t>(layout.token_ids.size()), rows_);
  context_.Enter();
  KVERN_RETURN_IF_ERROR(tables_->Again());
  std::copy(layout.token_ids.begin(), layout.token_ids.end(), Host<uint32_t>(places_.token_ids));
  tables_->Send(places_.token_ids, layout.token_ids.size() * sizeof(uint32_t));
  tables_->Sent();
  return context_.status();
}

// Token ids, positions, cache slots and logit rows. Rows that pad: token 0 at position 0, stored
// nowhere.
void CudaBatch::FillRows(const BatchLayout& layout) {
  auto* ids = Host<uint32_t>(places_.token_ids);
  auto* positions = Host<uint32_t>(places_.positions);
  auto* slots = Host<int64_t>(places_.slots);
  auto* logits = Host<int32_t>(places_.logit_rows);
  const size_t tokens = layout.token_ids.size();
  std::copy(layout.token_ids.begin(), layout.token_ids.end(), ids);
  std::copy(layout.positions.begin(), layout.positions.end(), positions);
  for (const BatchSequence& sequence : layout.sequences) {
    KVERN_CHECK_LE(sequence.start + sequence.count,
                   static_cast<int64_t>(sequence.block_table.size() * kBlockSize));
    for (int64_t i = 0; i < sequence.count; ++i) {
      const int64_t position = sequence.start + i;
      const auto block = int64_t{sequence.block_table[static_cast<size_t>(position / kBlockSize)]};
      slots[sequence.first_row + i] = block * kBlockSize + position % kBlockSize;
    }
  }
  const size_t pads = static_cast<size_t>(rows_) - tokens;
  std::fill_n(ids + tokens, pads, 0u);
  std::fill_n(positions + tokens, pads, 0u);
  std::fill_n(slots + tokens, pads, int64_t{-1});
  size_t count = 0;
  for (const int64_t row : layout.logit_rows) logits[count++] = static_cast<int32_t>(row);
  std::fill(logits + count, logits + logit_count_, 0);
}

void CudaBatch::FillTables(const BatchLayout& layout) {
  auto* tables = Host<uint32_t>(places_.block_tables);
  block_entries_ = 0;
  sequences_.clear();
  for (const BatchSequence& sequence : layout.sequences) {
    // Only what the sequence has filled or fills now.
    const auto used =
        static_cast<size_t>((sequence.start + sequence.count + kBlockSize - 1) / kBlockSize);
    KVERN_CHECK_LE(block_entries_ + used, static_cast<size_t>(limits_.block_entries));
    std::copy_n(sequence.block_table.begin(), used, tables + block_entries_);
    sequences_.push_back(
        {static_cast<int32_t>(sequence.first_row), static_cast<int32_t>(sequence.start),
         static_cast<int32_t>(sequence.count), static_cast<int32_t>(block_entries_)});
    block_entries_ += used;
  }
}

void CudaBatch::PlanWork(const BatchLayout& layout, bool padded) {
  const auto q_heads = static_cast<int32_t>(limits_.q_heads);
  const auto kv_heads = static_cast<int32_t>(limits_.kv_heads);
  const int32_t full = kBlocksPerProcessor * context_.properties().multiProcessorCount;
  gpu::PlanAttention(sequences_, q_heads, kv_heads, {full, max_slots_}, &plan_);
  KVERN_CHECK(plan_.narrow.size() <= layout.token_ids.size() + static_cast<size_t>(max_slots_) &&
              plan_.wide.size() <= layout.token_ids.size() + static_cast<size_t>(max_slots_) &&
              plan_.merges.size() <= layout.token_ids.size());
  std::copy(plan_.narrow.begin(), plan_.narrow.end(), Host<gpu::AttentionItem>(places_.narrow));
  std::copy(plan_.wide.begin(), plan_.wide.end(), Host<gpu::AttentionItem>(places_.wide));
  std::copy(plan_.merges.begin(), plan_.merges.end(), Host<gpu::AttentionMerge>(places_.merges));
  *Host<gpu::AttentionCounts>(places_.counts) = {static_cast<int32_t>(plan_.narrow.size()),
                                                 static_cast<int32_t>(plan_.wide.size()),
                                                 static_cast<int32_t>(plan_.merges.size()), 0};
  const int64_t merge_unit =
      std::max<int64_t>(1, limits_.q_heads * limits_.head_dim / kMergeValues);
  if (padded) {
    // A recorded step serves other lists than this one: blocks for all that may be listed.
    narrow_blocks_ = full;
    wide_blocks_ = full;
    merge_blocks_ = AtMost(rows_ * merge_unit, full);
    return;
  }
  const auto blocks = [&](size_t items) {
    return AtMost(static_cast<int64_t>(items) * kv_heads, int64_t{1} << 20);
  };
  narrow_blocks_ = blocks(plan_.narrow.size());
  wide_blocks_ = blocks(plan_.wide.size());
  merge_blocks_ = AtMost(static_cast<int64_t>(plan_.merges.size()) * merge_unit, int64_t{1} << 20);
}

}  // namespace kvern::inline KVERN_GPU_BUILD
