#include "tests/bench/gpu/device_limits.h"

#include <cublasLt.h>

#include "tests/bench/gpu/gpu_timer.h"

namespace kvern::gpu {
namespace {

absl::StatusOr<double> CopyRate(bool smoke) {
  const size_t bytes = smoke ? size_t{1} << 16 : size_t{2} << 30;
  KVERN_ASSIGN_OR_RETURN(DeviceMemory from, AllocateZero(bytes));
  KVERN_ASSIGN_OR_RETURN(DeviceMemory to, AllocateZero(bytes));
  KVERN_ASSIGN_OR_RETURN(double seconds, SecondsPerCall(Effort{}, [&](int) {
                           return cudaMemcpyAsync(to.get(), from.get(), bytes,
                                                  cudaMemcpyDeviceToDevice, nullptr);
                         }));
  return 2 * static_cast<double>(bytes) / seconds;
}

// Owns what one product needs; all matrices n x n, column-major.
class SquareProduct {
 public:
  ~SquareProduct() {
    if (layout_ != nullptr) cublasLtMatrixLayoutDestroy(layout_);
    if (result_layout_ != nullptr) cublasLtMatrixLayoutDestroy(result_layout_);
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  absl::Status Prepare(uint64_t n) {
    const auto ld = static_cast<int64_t>(n);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const bool made =
        cublasLtCreate(&handle_) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
            CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                       sizeof(transpose)) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutCreate(&layout_, CUDA_R_16BF, n, n, ld) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutCreate(&result_layout_, CUDA_R_16BF, n, n, ld) == CUBLAS_STATUS_SUCCESS;
    if (!made) return Internal("cuBLASLt descriptors could not be made");
    KVERN_ASSIGN_OR_RETURN(a_, AllocateRandom(n * n * 2));
    KVERN_ASSIGN_OR_RETURN(b_, AllocateRandom(n * n * 2));
    KVERN_ASSIGN_OR_RETURN(d_, AllocateZero(n * n * 2));
    KVERN_ASSIGN_OR_RETURN(workspace_, AllocateZero(kWorkspaceBytes));
    return Choose();
  }

  cudaError_t Enqueue() {
    const float one = 1;
    const float zero = 0;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, operation_, &one, a_.get(), layout_, b_.get(), layout_, &zero,
                       d_.get(), result_layout_, d_.get(), result_layout_, &algo_, workspace_.get(),
                       kWorkspaceBytes, nullptr);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure;
  }

 private:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  absl::Status Choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status =
          cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspaceBytes, sizeof(kWorkspaceBytes));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulAlgoGetHeuristic(handle_, operation_, layout_, layout_, result_layout_,
                                              result_layout_, preference, 1, &found, &count);
    }
    if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
      return Internal("cuBLASLt knows no algorithm: ", cublasLtGetStatusString(status));
    }
    algo_ = found.algo;
    return absl::OkStatus();
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatrixLayout_t result_layout_ = nullptr;
  cublasLtMatmulAlgo_t algo_{};
  DeviceMemory a_;
  DeviceMemory b_;
  DeviceMemory d_;
  DeviceMemory workspace_;
};

absl::StatusOr<double> ProductRate(bool smoke) {
  const uint64_t n = smoke ? 64 : 8192;
  SquareProduct product;
  KVERN_RETURN_IF_ERROR(product.Prepare(n));
  KVERN_ASSIGN_OR_RETURN(double seconds,
                         SecondsPerCall(Effort{}, [&](int) { return product.Enqueue(); }));
  const auto size = static_cast<double>(n);
  return 2 * size * size * size / seconds;
}

}  // namespace

DeviceLimits MeasureLimits(bool smoke, Report& report) {
  DeviceLimits limits;
  if (absl::StatusOr<double> rate = CopyRate(smoke); rate.ok()) {
    limits.bytes_per_second = *rate;
    report.Add({"copy", {{"GB/s", Number(*rate * 1e-9)}}});
  } else {
    report.Failed({"copy", {}}, std::string(rate.status().message()));
  }
  if (absl::StatusOr<double> rate = ProductRate(smoke); rate.ok()) {
    limits.flops_per_second = *rate;
    report.Add({"product", {{"TFLOP/s", Number(*rate * 1e-12)}}});
  } else {
    report.Failed({"product", {}}, std::string(rate.status().message()));
  }
  return limits;
}

}  // namespace kvern::gpu
