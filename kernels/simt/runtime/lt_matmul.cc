// Choice of algorithms and the product itself.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/runtime/lt_types.h"
#include "kernels/simt/runtime/state.h"

namespace kvern::simt {
namespace {

constexpr uint64_t kMagic = 0x4c74416c676f0001;  // "LtAlgo": not an algorithm of a real library
// The sums that make a tile of each algorithm.
constexpr uint32_t kRuns[kLtAlgorithms] = {16, 32, 64, 128, 48};
// Up to so many columns, and from so long a K, the library's first choice is to split K.
constexpr int64_t kFewColumns = 64;
constexpr int64_t kLongK = 32;
// In parts of 2 to so many: more choices than a caller usually asks for.
constexpr uint32_t kMaxSplits = 8;
// One algorithm has no kernel for more columns than so many.
constexpr uint32_t kNarrowAlgorithm = 2;
constexpr int64_t kNarrowColumns = 512;

bool IsBf16(const cublasLtMatrixLayout_t layout) { return layout->type == CUDA_R_16BF; }

// Extents and strides of a layout, after its transposition.
struct Extent {
  int64_t rows, cols, row_stride, col_stride;
};

Extent ExtentOf(const cublasLtMatrixLayout_t layout, int32_t operation) {
  const auto rows = static_cast<int64_t>(layout->rows);
  const auto cols = static_cast<int64_t>(layout->cols);
  const bool by_column = layout->order == CUBLASLT_ORDER_COL;
  const Extent plain = {rows, cols, by_column ? 1 : layout->ld, by_column ? layout->ld : 1};
  if (operation == CUBLAS_OP_N) return plain;
  return {plain.cols, plain.rows, plain.col_stride, plain.row_stride};
}

bool LeadingDimensionFits(const cublasLtMatrixLayout_t layout) {
  const bool by_column = layout->order == CUBLASLT_ORDER_COL;
  return layout->ld >= static_cast<int64_t>(by_column ? layout->rows : layout->cols);
}

// Shapes and types of a product, without its pointers.
cublasStatus_t Describe(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d, LtProduct& product) {
  for (const void* pointer :
       {static_cast<void*>(desc), static_cast<void*>(a), static_cast<void*>(b),
        static_cast<void*>(c), static_cast<void*>(d)}) {
    if (pointer == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (const cublasLtMatrixLayout_t layout : {a, b, c, d}) {
    if (!LeadingDimensionFits(layout)) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Extent left = ExtentOf(a, desc->trans_a);
  const Extent right = ExtentOf(b, desc->trans_b);
  const Extent out = ExtentOf(d, CUBLAS_OP_N);
  if (left.rows != out.rows || right.cols != out.cols || left.cols != right.rows ||
      c->rows != d->rows || c->cols != d->cols || left.rows == 0 || right.cols == 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!IsBf16(a) || !IsBf16(b) || c->type != d->type) return CUBLAS_STATUS_NOT_SUPPORTED;
  product.m = left.rows;
  product.n = right.cols;
  product.k = left.cols;
  product.a_row = left.row_stride;
  product.a_col = left.col_stride;
  product.b_row = right.row_stride;
  product.b_col = right.col_stride;
  product.d_row = out.row_stride;
  product.d_col = out.col_stride;
  product.d_bf16 = IsBf16(d);
  if (desc->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  // The bias has the type of D (cuBLASLt documentation, epilogue bias with bf16 inputs).
  const bool typed = desc->bias_type < 0 || static_cast<uint32_t>(desc->bias_type) == d->type;
  if (desc->epilogue != CUBLASLT_EPILOGUE_BIAS || !typed) return CUBLAS_STATUS_NOT_SUPPORTED;
  product.bias = desc->bias;
  product.bias_bf16 = product.d_bf16;
  return CUBLAS_STATUS_SUCCESS;
}

size_t WorkspaceOf(const LtProduct& product, const LtAlgorithm& algorithm) {
  if (algorithm.scheme == CUBLASLT_REDUCTION_SCHEME_NONE) return 0;
  return static_cast<size_t>(product.m * product.n) * algorithm.splits * sizeof(float);
}

cublasStatus_t Check(const LtProduct& product, const LtAlgorithm& algorithm) {
  if (algorithm.run == 0) return CUBLAS_STATUS_INVALID_VALUE;
  const bool fits = algorithm.id != kNarrowAlgorithm || product.n <= kNarrowColumns;
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// The algorithms for a product within `workspace` bytes, the best first: other shapes, other order.
// Those that split K come first where it pays. What `schemes` leaves out are the ways to reduce
// (cuBLASLt documentation, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK), so it keeps one that splits
// and needs none.
std::vector<cublasLtMatmulAlgo_t> Choices(const LtProduct& product, uint32_t schemes,
                                          size_t workspace) {
  std::vector<cublasLtMatmulAlgo_t> choices;
  const int64_t n = product.n;
  const uint32_t by_size = n == 1 ? 0 : n <= 16 ? 1 : n <= 64 ? 2 : n <= 256 ? 3 : 4;
  const auto add_all = [&](uint32_t splits, uint32_t scheme) {
    for (uint32_t rank = 0; rank < kLtAlgorithms; ++rank) {
      const cublasLtMatmulAlgo_t algo = LtAlgoOf((by_size + rank) % kLtAlgorithms, splits, scheme);
      const LtAlgorithm algorithm = LtAlgorithmOf(algo);
      if (Check(product, algorithm) != CUBLAS_STATUS_SUCCESS) continue;
      if (WorkspaceOf(product, algorithm) <= workspace) choices.push_back(algo);
    }
  };
  const bool split_pays = n <= kFewColumns && product.k >= kLongK;
  const bool split_alone = AlwaysSplitsProducts(CurrentDevice());
  for (uint32_t splits = 2; split_pays && splits <= kMaxSplits; ++splits) {
    constexpr uint32_t kScheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if ((schemes & kScheme) != 0) add_all(splits, kScheme);
  }
  if (split_pays || split_alone) add_all(2, CUBLASLT_REDUCTION_SCHEME_NONE);
  if (!split_alone) add_all(1, CUBLASLT_REDUCTION_SCHEME_NONE);
  return choices;
}

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

LtAlgorithm LtAlgorithmOf(const cublasLtMatmulAlgo_t& algo) {
  const auto id = static_cast<uint32_t>(algo.data[1]);
  if (algo.data[0] != kMagic || id >= kLtAlgorithms) return {};
  return {id, kRuns[id], static_cast<uint32_t>(algo.data[2]), static_cast<uint32_t>(algo.data[3])};
}

cublasLtMatmulAlgo_t LtAlgoOf(uint32_t id, uint32_t splits, uint32_t scheme) {
  return {{kMagic, id, splits, scheme, 0, 0, 0, 0}};
}

}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  if (!kvern::simt::IsUsable(handle) || preference == nullptr || requested <= 0 ||
      returned == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *returned = 0;
  kvern::simt::LtProduct product;
  const cublasStatus_t status = kvern::simt::Describe(desc, a, b, c, d, product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  for (const cublasLtMatmulAlgo_t& algo : kvern::simt::Choices(
           product, preference->reduction_schemes, preference->max_workspace_bytes)) {
    if (*returned == requested) break;
    cublasLtMatmulHeuristicResult_t result = {};
    result.algo = algo;
    result.workspaceSize = kvern::simt::WorkspaceOf(product, kvern::simt::LtAlgorithmOf(algo));
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
    results[(*returned)++] = result;
  }
  return *returned > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!kvern::simt::IsUsable(handle) || algo == nullptr || result == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  kvern::simt::LtProduct product;
  const cublasStatus_t status = kvern::simt::Describe(desc, a, b, c, d, product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const kvern::simt::LtAlgorithm algorithm = kvern::simt::LtAlgorithmOf(*algo);
  const cublasStatus_t fits = kvern::simt::Check(product, algorithm);
  if (fits != CUBLAS_STATUS_SUCCESS) return fits;
  *result = {};
  result->algo = *algo;
  result->workspaceSize = kvern::simt::WorkspaceOf(product, algorithm);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  if (algo == nullptr || value == nullptr || bytes != sizeof(uint32_t)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const kvern::simt::LtAlgorithm algorithm = kvern::simt::LtAlgorithmOf(*algo);
  if (algorithm.run == 0) return CUBLAS_STATUS_INVALID_VALUE;
  uint32_t field = 0;
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      field = algorithm.id;
      break;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      field = algorithm.splits;
      break;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      field = algorithm.scheme;
      break;
  }
  std::memcpy(value, &field, sizeof(field));
  if (written != nullptr) *written = sizeof(field);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (!kvern::simt::IsUsable(handle) || alpha == nullptr || beta == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  kvern::simt::LtProduct product;
  const cublasStatus_t status =
      kvern::simt::Describe(desc, a_layout, b_layout, c_layout, d_layout, product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  float beta_value = 0;
  std::memcpy(&product.alpha, alpha, sizeof(float));
  std::memcpy(&beta_value, beta, sizeof(float));
  // Sums onto an old C are not used here.
  if (beta_value != 0 || c == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  // What the heuristic assumes of pointers unless it is told of less.
  for (const void* pointer : {a, b, c, static_cast<const void*>(d)}) {
    if (!kvern::simt::IsAligned(pointer)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const size_t given = workspace == nullptr ? 0 : workspace_bytes;
  const kvern::simt::LtAlgorithm algorithm = kvern::simt::LtAlgorithmOf(
      algo != nullptr
          ? *algo
          : kvern::simt::Choices(product, CUBLASLT_REDUCTION_SCHEME_MASK, given).front());
  const cublasStatus_t fits = kvern::simt::Check(product, algorithm);
  if (fits != CUBLAS_STATUS_SUCCESS) return fits;
  if (kvern::simt::WorkspaceOf(product, algorithm) > given) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  product.a = static_cast<const uint16_t*>(a);
  product.b = static_cast<const uint16_t*>(b);
  product.d = d;
  const cudaError_t error = kvern::simt::EnqueueTask(
      stream, [product, algorithm] { kvern::simt::LtCompute(product, algorithm); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace kvern_emulated_cuda
