#include "worker/device/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>

#include "cluster/base/check.h"
#include "worker/device/cpu/cpu_matrix.h"

namespace kvern {
namespace {

const BatchLayout& LayoutOf(const Batch& batch) {
  return static_cast<const CpuBatch&>(batch).layout();
}

void CheckF32(const Tensor& x) {
  KVERN_CHECK(x.dtype == DType::kF32 && x.stride >= x.cols)
      << "stride " << x.stride << ", columns " << x.cols;
}

bool IsQuantised(const cpu::PackedMatrix& w) {
  return w.packing == cpu::Packing::kInt8 || w.packing == cpu::Packing::kInt4;
}

float* Row(const Tensor& x, int64_t row) { return x.f32() + row * x.stride; }

}  // namespace

absl::StatusOr<std::unique_ptr<Batch>> CpuBatch::Create(const BatchLimits& limits) {
  const int64_t dim = limits.head_dim;
  if (dim <= 0 || dim % 2 != 0 || dim > cpu::kMaxHeadDim) {
    return InvalidArgument("attention on the CPU: head_dim is ", dim, ", must be even and at most ",
                           cpu::kMaxHeadDim);
  }
  const int64_t kv_heads = limits.kv_heads;
  if (kv_heads <= 0 || limits.q_heads <= 0 || limits.q_heads % kv_heads != 0) {
    return InvalidArgument("attention on the CPU: ", limits.q_heads, " query heads on ", kv_heads,
                           " KV heads: must be a positive multiple");
  }
  const int64_t group = limits.q_heads / kv_heads;
  if (group > cpu::kMaxAttentionRows) {
    return InvalidArgument("attention on the CPU: num_attention_heads / num_key_value_heads is ",
                           group, ", the limit is ", cpu::kMaxAttentionRows);
  }
  return std::make_unique<CpuBatch>();
}

absl::Status CpuBatch::Load(const BatchLayout& layout, int64_t padded_rows) {
  KVERN_CHECK_EQ(padded_rows, 0);
  layout_ = &layout;
  return absl::OkStatus();
}

const BatchLayout& CpuBatch::layout() const {
  KVERN_CHECK(layout_ != nullptr) << "a batch is used before Load";
  return *layout_;
}

CpuOps::CpuOps(cpu::Isa isa, ThreadPool& pool)
    : pool_(pool),
      matmul_(cpu::MatMulFor(isa)),
      rows_(cpu::RowsFor(isa)),
      attention_(cpu::AttentionFor(isa)),
      sampling_(cpu::SamplingFor(isa)) {}

void CpuOps::ForRows(int64_t rows, int64_t cost, const std::function<void(int64_t)>& body) {
  if (rows * cost < kWorthThreads) {
    for (int64_t row = 0; row < rows; ++row) body(row);
    return;
  }
  pool_.Ranges(rows, 1, [&](int, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

float* CpuOps::Scratch(AlignedMemory& memory, size_t floats) {
  const size_t bytes = floats * sizeof(float);
  if (memory.bytes() < bytes) {
    memory = AlignedMemory();  // Gives the old one back first.
    auto fresh = AlignedMemory::Allocate(bytes + bytes / 2);
    KVERN_CHECK(fresh.ok()) << "scratch memory: " << fresh.status().ToString();
    memory = std::move(fresh).value();
  }
  return reinterpret_cast<float*>(memory.data());
}

void CpuOps::Embed(const Batch& batch, const Matrix& table, int64_t vocab_begin, Tensor out) {
  CheckF32(out);
  const cpu::PackedMatrix& packed = static_cast<const CpuMatrix&>(table).packed();
  const std::vector<uint32_t>& ids = LayoutOf(batch).token_ids;
  KVERN_CHECK_EQ(out.cols, packed.k);
  KVERN_CHECK_LE(static_cast<int64_t>(ids.size()), out.rows);
  ForRows(static_cast<int64_t>(ids.size()), packed.k * 4, [&](int64_t t) {
    const int64_t row = static_cast<int64_t>(ids[static_cast<size_t>(t)]) - vocab_begin;
    if (row >= 0 && row < packed.n) {
      cpu::UnpackRow(packed, row, Row(out, t));
    } else {
      std::fill_n(Row(out, t), packed.k, 0.0f);
    }
  });
}

void CpuOps::RmsNorm(Tensor x, const float* weight, float eps, Tensor out) {
  CheckF32(x);
  CheckF32(out);
  KVERN_CHECK_EQ(x.rows, out.rows);
  ForRows(x.rows, x.cols,
          [&](int64_t t) { rows_.rms_norm(nullptr, Row(x, t), weight, eps, x.cols, Row(out, t)); });
}

void CpuOps::AddRmsNorm(Tensor delta, Tensor x, const float* weight, float eps, Tensor out) {
  CheckF32(delta);
  CheckF32(x);
  CheckF32(out);
  KVERN_CHECK(x.rows == out.rows && x.rows == delta.rows) << x.rows << " rows";
  ForRows(x.rows, x.cols, [&](int64_t t) {
    rows_.rms_norm(Row(delta, t), Row(x, t), weight, eps, x.cols, Row(out, t));
  });
}

CpuOps::ThreadScratch CpuOps::WeightScratch(const cpu::PackedMatrix& w) {
  ThreadScratch made;
  made.stride = matmul_.weight_scratch(w.packing, w.k);
  const size_t floats = made.stride * static_cast<size_t>(pool_.threads());
  if (floats > 0) made.base = Scratch(weight_scratch_, floats);
  return made;
}

CpuOps::RowCopies CpuOps::NewRowCopies(Tensor x, const cpu::PackedMatrix& w) {
  RowCopies made;
  made.rows.rows = x.rows;
  made.rows.tile_rows = matmul_.tile_rows(x.rows);
  made.tiles = cpu::NumTiles(x.rows, made.rows.tile_rows);
  const int64_t padded_rows = made.tiles * made.rows.tile_rows;
  const int64_t copies = made.tiles == 1 ? pool_.threads() : 1;
  if (matmul_.reads_in_place(w.packing, x.rows)) {
    made.rows.values = x.f32();
  } else {
    made.value_stride = padded_rows * w.k;
    made.values = Scratch(packed_values_, static_cast<size_t>(copies * made.value_stride));
  }
  if (IsQuantised(w)) {
    made.sum_stride = padded_rows * (w.k / cpu::kGroup);
    made.sums = Scratch(packed_sums_, static_cast<size_t>(copies * made.sum_stride));
  }
  return made;
}

cpu::PackedRows CpuOps::RowCopies::Copy(int64_t i) const {
  cpu::PackedRows copy = rows;
  if (values != nullptr) copy.values = values + i * value_stride;
  if (sums != nullptr) copy.group_sums = sums + i * sum_stride;
  return copy;
}

void CpuOps::PackTile(Tensor x, const cpu::PackedMatrix& w, const RowCopies& to, int64_t copy,
                      int64_t tile) {
  if (to.values != nullptr) {
    matmul_.pack_tile(w.packing, x.f32(), x.stride, x.rows, w.k, to.rows.tile_rows, tile,
                      to.values + copy * to.value_stride);
  }
  if (to.sums != nullptr) {
    matmul_.sum_groups(x.f32(), x.stride, x.rows, w.k, to.rows.tile_rows, tile,
                       to.sums + copy * to.sum_stride);
  }
}

void CpuOps::MatMul(Tensor x, const Matrix& weight, const float* bias, Tensor out) {
  CheckF32(x);
  CheckF32(out);
  const cpu::PackedMatrix& w = static_cast<const CpuMatrix&>(weight).packed();
  KVERN_CHECK_EQ(x.cols, w.k);
  KVERN_CHECK_EQ(out.cols, w.n);
  KVERN_CHECK_EQ(x.rows, out.rows);
  if (x.rows == 0) return;
  const size_t bytes = static_cast<size_t>(cpu::NumPanels(w.n)) * w.panel_bytes;
  if (x.rows >= kMinRowsPerThread * pool_.threads() && bytes <= kMaxSharedBytes) {
    MatMulByRows(x, w, bias, out);
  } else {
    MatMulByPanels(x, w, bias, out);
  }
}

// Each thread has its share of the rows, in blocks that stay in its cache from packing on.
void CpuOps::MatMulByRows(Tensor x, const cpu::PackedMatrix& w, const float* bias, Tensor out) {
  const int64_t tile_rows = matmul_.tile_rows(x.rows);
  const int64_t max_rows = std::max(kMaxBlockFloats / w.k / tile_rows, int64_t{2}) * tile_rows;
  const int64_t value_floats = max_rows * w.k;
  const int64_t sum_floats = IsQuantised(w) ? max_rows * (w.k / cpu::kGroup) : 0;
  const int64_t threads = pool_.threads();
  float* values = Scratch(packed_values_, static_cast<size_t>(threads * value_floats));
  float* sums = Scratch(packed_sums_, static_cast<size_t>(threads * sum_floats));
  const ThreadScratch weights = WeightScratch(w);
  pool_.Ranges(x.rows, 1, [&](int thread, int64_t begin, int64_t end) {
    const int64_t blocks = (end - begin + max_rows - 1) / max_rows;
    for (int64_t row = begin, left = blocks; row < end; --left) {
      const int64_t even = cpu::NumTiles((end - row + left - 1) / left, tile_rows) * tile_rows;
      cpu::PackedRows block;
      block.rows = std::min(even, end - row);
      block.tile_rows = tile_rows;
      block.values = values + thread * value_floats;
      block.group_sums = sums + thread * sum_floats;
      for (int64_t tile = 0; tile < cpu::NumTiles(block.rows, tile_rows); ++tile) {
        const float* in = x.f32() + row * x.stride;
        matmul_.pack_tile(w.packing, in, x.stride, block.rows, w.k, tile_rows, tile,
                          values + thread * value_floats);
        if (sum_floats > 0) {
          matmul_.sum_groups(in, x.stride, block.rows, w.k, tile_rows, tile,
                             sums + thread * sum_floats);
        }
      }
      matmul_.multiply(w, block, bias, out.f32() + row * out.stride, out.stride, 0,
                       cpu::NumPanels(w.n), weights.Of(thread));
      row += block.rows;
    }
  });
}

void CpuOps::MatMulByPanels(Tensor x, const cpu::PackedMatrix& w, const float* bias, Tensor out) {
  const RowCopies packed = NewRowCopies(x, w);
  const ThreadScratch weights = packed.tiles > 1 ? WeightScratch(w) : ThreadScratch();
  const int64_t panels = cpu::NumPanels(w.n);
  const auto multiply = [&](int thread, int64_t copy, int64_t begin, int64_t end) {
    matmul_.multiply(w, packed.Copy(copy), bias, out.f32(), out.stride, begin, end,
                     weights.Of(thread));
  };
  const bool parallel = w.n * w.k * x.rows >= kWorthThreads;
  if (parallel && packed.tiles == 1) {
    // Each thread packs the few rows for itself: one would leave the others idle, and then feed
    // them from its own cache.
    pool_.Ranges(panels, 2, [&](int thread, int64_t begin, int64_t end) {
      PackTile(x, w, packed, thread, 0);
      multiply(thread, thread, begin, end);
    });
    return;
  }
  ForRows(packed.tiles, w.k * packed.rows.tile_rows,
          [&](int64_t tile) { PackTile(x, w, packed, 0, tile); });
  if (parallel) {
    pool_.Ranges(panels, 2,
                 [&](int thread, int64_t begin, int64_t end) { multiply(thread, 0, begin, end); });
  } else {
    multiply(0, 0, 0, panels);
  }
}

void CpuOps::SwiGlu(Tensor gate_up, Tensor out) {
  CheckF32(gate_up);
  CheckF32(out);
  KVERN_CHECK_EQ(gate_up.cols, 2 * out.cols);
  KVERN_CHECK_EQ(gate_up.rows, out.rows);
  ForRows(out.rows, out.cols * 8, [&](int64_t t) {
    const float* gate = Row(gate_up, t);
    rows_.swiglu(gate, gate + out.cols, out.cols, Row(out, t));
  });
}

void CpuOps::GatherLogitRows(const Batch& batch, Tensor x, Tensor out) {
  CheckF32(x);
  CheckF32(out);
  const std::vector<int64_t>& wanted = LayoutOf(batch).logit_rows;
  KVERN_CHECK_LE(static_cast<int64_t>(wanted.size()), out.rows);
  KVERN_CHECK_EQ(x.cols, out.cols);
  for (size_t r = 0; r < wanted.size(); ++r) {
    KVERN_CHECK(wanted[r] >= 0 && wanted[r] < x.rows) << "row " << wanted[r] << " of " << x.rows;
    std::memcpy(Row(out, static_cast<int64_t>(r)), Row(x, wanted[r]),
                static_cast<size_t>(x.cols) * sizeof(float));
  }
}

void CpuOps::AskLogits(Tensor logits, int64_t vocab_begin, std::span<const LogitQuery> queries,
                       std::vector<LogitAnswer>& answers) {
  answers.resize(queries.size());
  for (size_t i = 0; i < queries.size(); ++i) {
    const LogitQuery& query = queries[i];
    LogitAnswer& answer = answers[i];
    switch (query.kind) {
      case LogitQuery::Kind::kTop:
        TopCandidates(logits, query.row, query.k, answer.candidates);
        break;
      case LogitQuery::Kind::kLogSumExp:
        answer.sum = LogSumExp(logits, query.row, query.inverse_temperature);
        break;
      case LogitQuery::Kind::kGumbelMax:
        answer.candidates = {
            GumbelMax(logits, query.row, query.inverse_temperature, query.key, vocab_begin)};
        break;
    }
  }
}

void CpuOps::TopCandidates(Tensor logits, int64_t row, int64_t k, std::vector<Candidate>& out) {
  CheckF32(logits);
  columns_.resize(static_cast<size_t>(std::clamp<int64_t>(k, 0, logits.cols)));
  const size_t count = sampling_.top(Row(logits, row), logits.cols, k, columns_.data());
  out.resize(count);
  for (size_t i = 0; i < count; ++i) out[i] = {columns_[i].value, columns_[i].column};
}

LogSumExpPart CpuOps::LogSumExp(Tensor logits, int64_t row, float inverse_temperature) {
  CheckF32(logits);
  LogSumExpPart part;
  part.sum = sampling_.log_sum_exp(Row(logits, row), logits.cols, inverse_temperature, &part.max);
  return part;
}

Candidate CpuOps::GumbelMax(Tensor logits, int64_t row, float inverse_temperature, uint64_t key,
                            int64_t vocab_begin) {
  CheckF32(logits);
  std::vector<Candidate> best(static_cast<size_t>(pool_.threads()));
  const float* values = Row(logits, row);
  const int64_t threads = pool_.threads();
  pool_.RunOnAll([&](int thread) {
    const int64_t begin = logits.cols * thread / threads;
    const int64_t end = logits.cols * (thread + 1) / threads;
    if (begin == end) return;
    const cpu::ScoredColumn found =
        sampling_.gumbel_max(values + begin, end - begin, inverse_temperature, key,
                             static_cast<uint64_t>(vocab_begin + begin));
    best[static_cast<size_t>(thread)] = {found.value, found.column + static_cast<uint32_t>(begin)};
  });
  Candidate winner = best[0];
  for (int64_t i = 1; i < threads; ++i) {
    const Candidate& other = best[static_cast<size_t>(i)];
    // Ranges ascend, so of equal values the first one has the lowest column.
    if (logits.cols * i / threads < logits.cols * (i + 1) / threads && other.value > winner.value) {
      winner = other;
    }
  }
  return winner;
}

}  // namespace kvern
