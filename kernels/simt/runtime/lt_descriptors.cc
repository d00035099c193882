#include <cstring>

#include "kernels/simt/runtime/lt_types.h"
#include "kernels/simt/runtime/state.h"

namespace kvern::simt {
namespace {

// The library refuses a value of another size than the attribute's.
template <typename T>
cublasStatus_t Set(T& field, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t New(T** object) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = new T;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t Delete(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

bool IsUsable(cublasLtHandle_t handle) {
  return handle != nullptr && handle->device == CurrentDevice();
}

}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (kvern::simt::DeviceCount() == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{kvern::simt::CurrentDevice()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!kvern::simt::IsUsable(handle)) return CUBLAS_STATUS_INVALID_VALUE;
  return kvern::simt::Delete(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
  if (compute != CUBLAS_COMPUTE_32F || scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return kvern::simt::New(desc);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return kvern::simt::Delete(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (desc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return kvern::simt::Set(desc->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return kvern::simt::Set(desc->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return kvern::simt::Set(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return kvern::simt::Set(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return kvern::simt::Set(desc->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  const cublasStatus_t made = kvern::simt::New(layout);
  if (made == CUBLAS_STATUS_SUCCESS) **layout = {type, CUBLASLT_ORDER_COL, rows, cols, ld};
  return made;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return kvern::simt::Delete(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return kvern::simt::Set(layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return kvern::simt::Set(layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return kvern::simt::Set(layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return kvern::simt::Set(layout->cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return kvern::simt::Set(layout->ld, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return kvern::simt::New(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return kvern::simt::Delete(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  uint32_t alignment = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return kvern::simt::Set(preference->max_workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return kvern::simt::Set(preference->reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return kvern::simt::Set(alignment, value, bytes);  // makes no difference here
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace kvern_emulated_cuda
