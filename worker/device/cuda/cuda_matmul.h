// Products by cuBLASLt, each shape planned once.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <tuple>

#include "worker/device/cuda/cuda_memory.h"
#include "worker/device/tensor.h"

namespace kvern::inline KVERN_GPU_BUILD {

// Belongs to the rank's thread.
class CudaMatMul {
 public:
  // `pinned`: one algorithm without split-K for all row counts of a (columns, inputs, type), so
  // that the order in which a result's terms are added never changes.
  static absl::StatusOr<std::unique_ptr<CudaMatMul>> Create(CudaContext& context,
                                                            DeviceArena& arena, bool pinned);
  ~CudaMatMul();
  CudaMatMul(const CudaMatMul&) = delete;
  CudaMatMul& operator=(const CudaMatMul&) = delete;

  // out [rows, n] = x [rows, k] weight [n, k]^T + bias. x and weight bf16, out f32 or bf16; bias
  // [n] of out's type, or null. A result is rounded once. Enqueues.
  absl::Status Multiply(const Tensor& x, const void* weight, const void* bias, const Tensor& out);

  size_t bytes() const { return workspace_.bytes(); }  // of device memory

 private:
  struct Shape {
    int64_t rows, n, k, x_stride, out_stride;
    DType type;  // of out
    bool biased;
    bool operator<(const Shape& o) const {
      return std::tie(rows, n, k, x_stride, out_stride, type, biased) <
             std::tie(o.rows, o.n, o.k, o.x_stride, o.out_stride, o.type, o.biased);
    }
  };
  // Layouts of a product's operands.
  struct Layouts {
    Layouts() = default;
    Layouts(Layouts&& other) noexcept;
    ~Layouts();
    cublasLtMatrixLayout_t weight = nullptr;
    cublasLtMatrixLayout_t x = nullptr;
    cublasLtMatrixLayout_t out = nullptr;
  };
  struct Plan {
    Layouts layouts;
    cublasLtMatmulAlgo_t algo;
  };

  explicit CudaMatMul(CudaContext& context, bool pinned) : context_(context), pinned_(pinned) {}
  absl::StatusOr<const Plan*> PlanFor(const Shape& shape);
  static absl::StatusOr<Layouts> MakeLayouts(const Shape& shape);
  absl::StatusOr<cublasLtMatmulAlgo_t> Fastest(const Shape& shape, const Layouts& layouts) const;
  cublasLtMatmulDesc_t DescFor(const Shape& shape) const { return shape.biased ? biased_ : desc_; }
  absl::StatusOr<cublasLtMatmulAlgo_t> PinnedFor(const Shape& shape);
  bool Serves(const Shape& shape, const Layouts& layouts, const cublasLtMatmulAlgo_t& algo) const;
  bool ServesAllRows(const Shape& shape, const cublasLtMatmulAlgo_t& algo) const;

  CudaContext& context_;
  const bool pinned_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatmulDesc_t biased_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  DeviceMemory workspace_;
  std::map<Shape, Plan> plans_;
  // By n, k, type, biased.
  std::map<std::tuple<int64_t, int64_t, DType, bool>, cublasLtMatmulAlgo_t> pins_;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
