// The descriptors of the cuBLASLt stand-in.
#pragma once

#include <cublasLt.h>

#include <vector>

inline namespace kvern_emulated_cuda {

struct cublasLtContext {
  int device = 0;  // that was current when it was made
};

struct cublasLtMatmulDescOpaque_t {
  int32_t trans_a = CUBLAS_OP_N;
  int32_t trans_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  // that of D
};

struct cublasLtMatrixLayoutOpaque_t {
  uint32_t type = CUDA_R_32F;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0;
  uint64_t cols = 0;
  int64_t ld = 0;
};

struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t max_workspace_bytes = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

}  // namespace kvern_emulated_cuda

namespace kvern::simt {

// Whether a call may have this handle: its device has to be the calling thread's (cuBLASLt
// documentation, cublasLtCreate; which error comes otherwise it does not say).
bool IsUsable(cublasLtHandle_t handle);

// What a stand-in algorithm decides: K is cut into `splits` parts, and a part into runs of `run`
// terms; a run is summed by itself, runs are added to the part and parts to the result. Where the
// parts of one that splits begin depends on the number of columns, too.
struct LtAlgorithm {
  uint32_t id = 0;
  uint32_t run = 0;
  uint32_t splits = 1;
  // Of the parts' sums; NONE as well for a kernel that adds its parts itself.
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
};
// Ids 0 to kLtAlgorithms - 1.
inline constexpr uint32_t kLtAlgorithms = 5;
LtAlgorithm LtAlgorithmOf(const cublasLtMatmulAlgo_t& algo);
cublasLtMatmulAlgo_t LtAlgoOf(uint32_t id, uint32_t splits, uint32_t scheme);

// op(A), op(B) and D of a product with everything it needs, checked.
struct LtProduct {
  int64_t m = 0, n = 0, k = 0;
  const uint16_t* a = nullptr;  // element (i, k) at a[i * a_row + k * a_col]
  int64_t a_row = 0, a_col = 0;
  const uint16_t* b = nullptr;  // element (k, j) at b[k * b_row + j * b_col]
  int64_t b_row = 0, b_col = 0;
  void* d = nullptr;  // element (i, j) at d[i * d_row + j * d_col]
  int64_t d_row = 0, d_col = 0;
  bool d_bf16 = false;
  const void* bias = nullptr;  // [m]
  bool bias_bf16 = false;
  float alpha = 1;
};
void LtCompute(const LtProduct& product, const LtAlgorithm& algorithm);

}  // namespace kvern::simt
