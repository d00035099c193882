#include "worker/device/cuda/cuda_ops.h"

#include <algorithm>

#include "cluster/base/check.h"
#include "worker/device/cuda/cuda_matrix.h"

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

constexpr size_t kRequestBytes = 64 << 10;
// Of 256 rows: 1024 candidates each would be 2 MiB; they then go in two turns.
constexpr size_t kResultBytes = 1 << 20;

const CudaBatch& Of(const Batch& batch) { return static_cast<const CudaBatch&>(batch); }

// Kernels take rows without gaps.
gpu::Bf16* Bf16Of(const Tensor& x) {
  KVERN_CHECK(x.dtype == DType::kBf16 && (x.stride == x.cols || x.rows <= 1))
      << "stride " << x.stride << ", columns " << x.cols;
  return static_cast<gpu::Bf16*>(x.data);
}
float* F32Of(const Tensor& x) {
  KVERN_CHECK(x.dtype == DType::kF32 && (x.stride == x.cols || x.rows <= 1))
      << "stride " << x.stride << ", columns " << x.cols;
  return x.f32();
}
int32_t Int(int64_t value) {
  KVERN_CHECK(value >= 0 && value <= INT32_MAX) << value;
  return static_cast<int32_t>(value);
}

gpu::KvPages PagesOf(const KvCache& cache) {
  const KvCacheShape& shape = cache.shape();
  return {const_cast<KvCache&>(cache).data(),
          shape.dtype == DType::kF32 ? gpu::KvType::kF32 : gpu::KvType::kBf16,
          Int(shape.num_layers), Int(shape.kv_heads), Int(shape.head_dim)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaOps>> CudaOps::Create(CudaContext& context, DeviceArena& arena,
                                                         bool batch_invariant) {
  KVERN_ASSIGN_OR_RETURN(auto matmul, CudaMatMul::Create(context, arena, batch_invariant));
  std::unique_ptr<CudaOps> ops(new CudaOps(context, std::move(matmul)));
  KVERN_ASSIGN_OR_RETURN(ops->pairs_, StepInput::Create(context, arena, kRequestBytes));
  KVERN_ASSIGN_OR_RETURN(ops->requests_, StepInput::Create(context, arena, kRequestBytes));
  KVERN_ASSIGN_OR_RETURN(ops->results_, arena.LayOut(kResultBytes));
  KVERN_ASSIGN_OR_RETURN(ops->received_, PinnedMemory::Allocate(context, kResultBytes));
  return ops;
}

size_t CudaOps::bytes() const {
  return matmul_->bytes() + pairs_->bytes() + requests_->bytes() + results_.bytes();
}

void CudaOps::Embed(const Batch& batch, const Matrix& table, int64_t vocab_begin, Tensor out) {
  context_.Enter();  // a step begins here, on the thread that runs all of it
  const auto& matrix = static_cast<const CudaMatrix&>(table);
  KVERN_CHECK_EQ(out.cols, matrix.cols());
  KVERN_CHECK_EQ(out.rows, Of(batch).rows());
  gpu::EmbedArgs args;
  args.token_ids = Of(batch).token_ids();
  args.table = static_cast<const gpu::Bf16*>(matrix.data());
  args.vocab_begin = vocab_begin;
  args.vocab_rows = matrix.rows();
  args.rows = Int(out.rows);
  args.hidden = Int(out.cols);
  args.out = F32Of(out);
  Check(gpu::LaunchEmbed(args, context_.stream()), "embed");
}

void CudaOps::Norm(const Tensor* delta, Tensor x, const float* weight, float eps, Tensor out) {
  KVERN_CHECK(x.rows == out.rows && x.cols == out.cols) << x.rows << " rows, " << x.cols;
  gpu::RmsNormArgs args;
  args.x = F32Of(x);
  args.delta = delta != nullptr ? F32Of(*delta) : nullptr;
  args.weight = weight;
  args.eps = eps;
  args.rows = Int(x.rows);
  args.cols = Int(x.cols);
  args.out = Bf16Of(out);
  Check(gpu::LaunchRmsNorm(args, context_.stream()), "rms_norm");
}

void CudaOps::RmsNorm(Tensor x, const float* weight, float eps, Tensor out) {
  Norm(nullptr, x, weight, eps, out);
}

void CudaOps::AddRmsNorm(Tensor delta, Tensor x, const float* weight, float eps, Tensor out) {
  KVERN_CHECK(delta.rows == x.rows && delta.cols == x.cols);
  Norm(&delta, x, weight, eps, out);
}

void CudaOps::MatMul(Tensor x, const Matrix& weight, const float* bias, Tensor out) {
  const auto& matrix = static_cast<const CudaMatrix&>(weight);
  KVERN_CHECK(x.cols == matrix.cols() && out.cols == matrix.rows() && x.rows == out.rows);
  const void* values = bias;
  if (bias != nullptr && out.dtype == DType::kBf16) {
    const absl::StatusOr<const void*> rounded = matrix.RoundedBias(bias, context_.stream());
    if (!rounded.ok()) return context_.Fail(rounded.status());
    values = *rounded;
  }
  context_.Fail(matmul_->Multiply(x, matrix.data(), values, out));
}

void CudaOps::RopeAndStoreKv(Tensor qkv, const RopeTable& rope, const Batch& batch, int64_t layer,
                             KvCache& cache, Tensor q) {
  const KvCacheShape& shape = cache.shape();
  const int64_t q_heads = q.cols / shape.head_dim;
  KVERN_CHECK(qkv.cols == (q_heads + 2 * shape.kv_heads) * shape.head_dim && q.rows == qkv.rows)
      << qkv.cols << " columns, " << q_heads << " query heads";
  gpu::RopeAndStoreKvArgs args;
  args.qkv = F32Of(qkv);
  args.q = Bf16Of(q);
  args.positions = Of(batch).positions();
  args.slots = Of(batch).slots();
  args.cos = rope.cos;
  args.sin = rope.sin;
  args.rows = Int(qkv.rows);
  args.q_heads = Int(q_heads);
  args.layer = Int(layer);
  args.pages = PagesOf(cache);
  Check(gpu::LaunchRopeAndStoreKv(args, context_.stream()), "rope_and_store_kv");
}

void CudaOps::Attention(Tensor q, const Batch& batch, int64_t layer, const KvCache& cache,
                        Tensor out) {
  KVERN_CHECK(q.dtype == DType::kBf16 && out.dtype == DType::kBf16 && out.cols == q.cols &&
              q.rows == Of(batch).rows());
  gpu::AttentionArgs args;
  args.q = static_cast<const gpu::Bf16*>(q.data);
  args.q_stride = q.stride;
  args.out = static_cast<gpu::Bf16*>(out.data);
  args.out_stride = out.stride;
  args.q_heads = Int(q.cols / cache.shape().head_dim);
  args.layer = Int(layer);
  args.pages = PagesOf(cache);
  args.block_tables = Of(batch).block_tables();
  args.narrow = Of(batch).narrow();
  args.wide = Of(batch).wide();
  args.merges = Of(batch).merges();
  args.counts = Of(batch).counts();
  args.narrow_blocks = Of(batch).narrow_blocks();
  args.wide_blocks = Of(batch).wide_blocks();
  args.merge_blocks = Of(batch).merge_blocks();
  args.workspace = Of(batch).workspace();
  args.workspace_slots = Of(batch).workspace_slots();
  Check(gpu::LaunchAttention(args, context_.stream()), "attention");
}

void CudaOps::SwiGlu(Tensor gate_up, Tensor out) {
  KVERN_CHECK(gate_up.cols == 2 * out.cols && gate_up.rows == out.rows);
  const gpu::SwiGluArgs args = {Bf16Of(gate_up), Bf16Of(out), Int(out.rows), Int(out.cols)};
  Check(gpu::LaunchSwiGlu(args, context_.stream()), "swiglu");
}

void CudaOps::GatherLogitRows(const Batch& batch, Tensor x, Tensor out) {
  KVERN_CHECK(x.cols == out.cols && out.rows >= Of(batch).logit_rows());
  gpu::GatherRowsArgs args;
  args.x = F32Of(x);
  args.index = Of(batch).logit_index();
  args.rows = Int(Of(batch).logit_rows());
  args.cols = Int(x.cols);
  args.out = F32Of(out);
  Check(gpu::LaunchGatherRows(args, context_.stream()), "gather_rows");
}

void CudaOps::CopyBlocks(std::span<const std::pair<uint32_t, uint32_t>> from_to, KvCache& cache) {
  context_.Enter();
  constexpr size_t kMost = kRequestBytes / sizeof(gpu::BlockPair);
  for (size_t done = 0; done < from_to.size();) {
    if (!pairs_->Begin().ok()) return;
    auto* pairs = reinterpret_cast<gpu::BlockPair*>(pairs_->host());
    const size_t count = std::min(kMost, from_to.size() - done);
    for (size_t i = 0; i < count; ++i) {
      const auto& [from, to] = from_to[done + i];
      KVERN_CHECK_LT(static_cast<int64_t>(std::max(from, to)), cache.shape().num_blocks);
      pairs[i] = {from, to};
    }
    pairs_->Send(0, count * sizeof(gpu::BlockPair));
    pairs_->Sent();
    gpu::CopyBlocksArgs args;
    args.data = cache.data();
    args.block_bytes = static_cast<int64_t>(cache.shape().BlockBytes());
    args.pairs = reinterpret_cast<const gpu::BlockPair*>(pairs_->device());
    args.count = static_cast<int32_t>(count);
    Check(gpu::LaunchCopyBlocks(args, context_.stream()), "copy_blocks");
    done += count;
  }
}

}  // namespace kvern::inline KVERN_GPU_BUILD
