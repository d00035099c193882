#include "worker/device/cuda/cuda_matmul.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cluster/base/check.h"

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

// What NVIDIA recommends (cuBLAS documentation, cublasSetWorkspace): 32 MiB on Hopper, 4 before.
size_t WorkspaceBytes(int major) { return major >= 9 ? size_t{32} << 20 : size_t{4} << 20; }

// Rows for which a pinned algorithm is chosen: small, since most steps are, but a whole tile.
constexpr int64_t kPinnedRows = 64;
// Row counts with which it must work.
constexpr int64_t kCheckedRows[] = {1, 2, 8, 17, 64, 200, 1024, 8192};
constexpr int kCandidates = 32;

absl::Status LtStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Internal("cuBLASLt, ", ToAbsl(what), ": ", cublasLtGetStatusString(status));
}

cudaDataType_t TypeOf(DType type) { return type == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

template <typename T>
absl::Status Prefer(cublasLtMatmulPreference_t preference,
                    cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return LtStatus(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
      "preference");
}

template <typename T>
absl::Status Describe(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                      T value) {
  return LtStatus(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
                  "product");
}

bool IsWithoutSplits(const cublasLtMatmulAlgo_t& algo) {
  uint32_t splits = 0;
  uint32_t scheme = 0;
  size_t written = 0;
  return cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                              sizeof(splits), &written) == CUBLAS_STATUS_SUCCESS &&
         cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                              sizeof(scheme), &written) == CUBLAS_STATUS_SUCCESS &&
         splits <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

}  // namespace

CudaMatMul::Layouts::Layouts(Layouts&& other) noexcept
    : weight(std::exchange(other.weight, nullptr)),
      x(std::exchange(other.x, nullptr)),
      out(std::exchange(other.out, nullptr)) {}

CudaMatMul::Layouts::~Layouts() {
  for (cublasLtMatrixLayout_t layout : {weight, x, out}) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
  }
}

absl::StatusOr<std::unique_ptr<CudaMatMul>> CudaMatMul::Create(CudaContext& context,
                                                               DeviceArena& arena, bool pinned) {
  context.Enter();
  std::unique_ptr<CudaMatMul> made(new CudaMatMul(context, pinned));
  KVERN_RETURN_IF_ERROR(LtStatus(cublasLtCreate(&made->handle_), "handle"));
  KVERN_RETURN_IF_ERROR(
      LtStatus(cublasLtMatmulDescCreate(&made->desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product"));
  KVERN_RETURN_IF_ERROR(LtStatus(
      cublasLtMatmulDescCreate(&made->biased_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product"));
  // cuBLAS counts by columns: row-major out is the column-major out^T = weight x^T, in which a
  // row-major weight [n, k] is a column-major [k, n] to be transposed.
  for (cublasLtMatmulDesc_t desc : {made->desc_, made->biased_}) {
    KVERN_RETURN_IF_ERROR(Describe<int32_t>(desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  }
  KVERN_RETURN_IF_ERROR(
      Describe<uint32_t>(made->biased_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
  const size_t workspace = WorkspaceBytes(context.properties().major);
  KVERN_ASSIGN_OR_RETURN(made->workspace_, arena.LayOut(workspace));
  KVERN_RETURN_IF_ERROR(LtStatus(cublasLtMatmulPreferenceCreate(&made->preference_), "preference"));
  KVERN_RETURN_IF_ERROR(
      Prefer<uint64_t>(made->preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace));
  for (auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    KVERN_RETURN_IF_ERROR(Prefer<uint32_t>(made->preference_, attribute, 16));
  }
  if (pinned) {
    KVERN_RETURN_IF_ERROR(Prefer<uint32_t>(made->preference_,
                                           CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                           CUBLASLT_REDUCTION_SCHEME_NONE));
  }
  return made;
}

CudaMatMul::~CudaMatMul() {
  context_.Enter();
  plans_.clear();
  if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  if (biased_ != nullptr) cublasLtMatmulDescDestroy(biased_);
  if (desc_ != nullptr) cublasLtMatmulDescDestroy(desc_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::StatusOr<CudaMatMul::Layouts> CudaMatMul::MakeLayouts(const Shape& shape) {
  const auto n = static_cast<uint64_t>(shape.n);
  const auto k = static_cast<uint64_t>(shape.k);
  const auto rows = static_cast<uint64_t>(shape.rows);
  Layouts made;
  KVERN_RETURN_IF_ERROR(
      LtStatus(cublasLtMatrixLayoutCreate(&made.weight, CUDA_R_16BF, k, n, shape.k), "layout"));
  KVERN_RETURN_IF_ERROR(LtStatus(
      cublasLtMatrixLayoutCreate(&made.x, CUDA_R_16BF, k, rows, shape.x_stride), "layout"));
  KVERN_RETURN_IF_ERROR(
      LtStatus(cublasLtMatrixLayoutCreate(&made.out, TypeOf(shape.type), n, rows, shape.out_stride),
               "layout"));
  return made;
}

absl::StatusOr<cublasLtMatmulAlgo_t> CudaMatMul::Fastest(const Shape& shape,
                                                         const Layouts& l) const {
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  KVERN_RETURN_IF_ERROR(
      LtStatus(cublasLtMatmulAlgoGetHeuristic(handle_, DescFor(shape), l.weight, l.x, l.out, l.out,
                                              preference_, 1, &result, &found),
               "choosing an algorithm"));
  if (found == 0) return Internal("cuBLASLt has no algorithm for a product");
  // Only then is anything else in the result valid.
  KVERN_RETURN_IF_ERROR(LtStatus(result.state, "choosing an algorithm"));
  return result.algo;
}

bool CudaMatMul::Serves(const Shape& shape, const Layouts& l,
                        const cublasLtMatmulAlgo_t& algo) const {
  cublasLtMatmulHeuristicResult_t result = {};
  return cublasLtMatmulAlgoCheck(handle_, DescFor(shape), l.weight, l.x, l.out, l.out, &algo,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace_.size();
}

bool CudaMatMul::ServesAllRows(const Shape& shape, const cublasLtMatmulAlgo_t& algo) const {
  return std::all_of(std::begin(kCheckedRows), std::end(kCheckedRows), [&](int64_t rows) {
    Shape other = shape;
    other.rows = rows;
    absl::StatusOr<Layouts> l = MakeLayouts(other);
    return l.ok() && Serves(other, *l, algo);
  });
}

absl::StatusOr<cublasLtMatmulAlgo_t> CudaMatMul::PinnedFor(const Shape& shape) {
  const auto key = std::make_tuple(shape.n, shape.k, shape.type, shape.biased);
  auto pin = pins_.find(key);
  if (pin != pins_.end()) return pin->second;
  Shape usual = shape;
  usual.rows = kPinnedRows;
  KVERN_ASSIGN_OR_RETURN(Layouts l, MakeLayouts(usual));
  cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
  int found = 0;
  KVERN_RETURN_IF_ERROR(
      LtStatus(cublasLtMatmulAlgoGetHeuristic(handle_, DescFor(shape), l.weight, l.x, l.out, l.out,
                                              preference_, kCandidates, results, &found),
               "choosing an algorithm"));
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulAlgo_t& algo = results[i].algo;
    if (results[i].state != CUBLAS_STATUS_SUCCESS || !IsWithoutSplits(algo)) continue;
    if (!ServesAllRows(shape, algo)) continue;
    pins_.emplace(key, algo);
    return algo;
  }
  return Unimplemented("batch-invariant: none of ", found, " algorithms of cuBLASLt multiplies ",
                       shape.k, " by ", shape.n, " without split-K for any number of rows");
}

absl::StatusOr<const CudaMatMul::Plan*> CudaMatMul::PlanFor(const Shape& shape) {
  auto known = plans_.find(shape);
  if (known != plans_.end()) return &known->second;
  KVERN_ASSIGN_OR_RETURN(Layouts layouts, MakeLayouts(shape));
  KVERN_ASSIGN_OR_RETURN(cublasLtMatmulAlgo_t algo,
                         pinned_ ? PinnedFor(shape) : Fastest(shape, layouts));
  if (pinned_ && !Serves(shape, layouts, algo)) {
    return Unimplemented("batch-invariant: the algorithm that multiplies ", shape.k, " by ",
                         shape.n, " does not for ", shape.rows, " rows");
  }
  return &plans_.emplace(shape, Plan{std::move(layouts), algo}).first->second;
}

absl::Status CudaMatMul::Multiply(const Tensor& x, const void* weight, const void* bias,
                                  const Tensor& out) {
  KVERN_CHECK(x.dtype == DType::kBf16 && x.rows == out.rows);
  if (x.rows == 0) return absl::OkStatus();
  const Shape shape = {x.rows, out.cols, x.cols, x.stride, out.stride, out.dtype, bias != nullptr};
  if (bias != nullptr) {  // before the plan, which depends on it
    KVERN_RETURN_IF_ERROR(Describe(biased_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    KVERN_RETURN_IF_ERROR(Describe<int32_t>(biased_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                            static_cast<int32_t>(TypeOf(out.dtype))));
  }
  KVERN_ASSIGN_OR_RETURN(const Plan* plan, PlanFor(shape));
  const Layouts& l = plan->layouts;
  const float one = 1;
  const float zero = 0;
  return LtStatus(cublasLtMatmul(handle_, DescFor(shape), &one, weight, l.weight, x.data, l.x,
                                 &zero, out.data, l.out, out.data, l.out, &plan->algo,
                                 workspace_.data(), workspace_.size(), context_.stream()),
                  "product");
}

}  // namespace kvern::inline KVERN_GPU_BUILD
