// The operations of ops.h on a GPU: checks shapes, enqueues kernels and products.
#pragma once

#include <vector>

#include "kernels/cuda/launch.h"
#include "worker/device/cuda/cuda_batch.h"
#include "worker/device/cuda/cuda_matmul.h"
#include "worker/device/ops.h"

namespace kvern::inline KVERN_GPU_BUILD {

// All calls from the rank's thread. What fails is kept by the context; Device::Synchronize tells.
class CudaOps final : public Ops {
 public:
  static absl::StatusOr<std::unique_ptr<CudaOps>> Create(CudaContext& context, DeviceArena& arena,
                                                         bool batch_invariant);

  // Of device memory: the products' workspace, questions and answers about logits, pairs of blocks.
  size_t bytes() const;

  void Embed(const Batch& batch, const Matrix& table, int64_t vocab_begin, Tensor out) override;
  void RmsNorm(Tensor x, const float* weight, float eps, Tensor out) override;
  void AddRmsNorm(Tensor delta, Tensor x, const float* weight, float eps, Tensor out) override;
  void MatMul(Tensor x, const Matrix& weight, const float* bias, Tensor out) override;
  void RopeAndStoreKv(Tensor qkv, const RopeTable& rope, const Batch& batch, int64_t layer,
                      KvCache& cache, Tensor q) override;
  void Attention(Tensor q, const Batch& batch, int64_t layer, const KvCache& cache,
                 Tensor out) override;
  void SwiGlu(Tensor gate_up, Tensor out) override;
  void GatherLogitRows(const Batch& batch, Tensor x, Tensor out) override;
  void CopyBlocks(std::span<const std::pair<uint32_t, uint32_t>> from_to, KvCache& cache) override;
  void AskLogits(Tensor logits, int64_t vocab_begin, std::span<const LogitQuery> queries,
                 std::vector<LogitAnswer>& answers) override;

 private:
  CudaOps(CudaContext& context, std::unique_ptr<CudaMatMul> matmul)
      : context_(context), matmul_(std::move(matmul)) {}

  void Check(cudaError_t error, const char* what) { context_.Check(error, what); }
  void Norm(const Tensor* delta, Tensor x, const float* weight, float eps, Tensor out);
  // Queries of one kind (and k), which one launch answers, and where its requests and its results
  // begin.
  struct Launched {
    std::span<const size_t> queries;
    size_t request = 0;
    size_t result = 0;
  };
  size_t ResultBytes(Tensor logits, const LogitQuery& query) const;
  // How many of `open`, at least one, go into one launch with the memory that is left.
  size_t Together(Tensor logits, std::span<const LogitQuery> queries,
                  std::span<const size_t> open) const;
  // Writes down the requests of a launch to come.
  void Note(Tensor logits, std::span<const LogitQuery> queries, std::span<const size_t> members);
  // Sends what was noted, launches, and hands out the answers.
  void Answer(Tensor logits, int64_t vocab_begin, std::span<const LogitQuery> queries,
              std::vector<LogitAnswer>& answers);
  void Launch(Tensor logits, int64_t vocab_begin, const LogitQuery& first, const Launched& launch);
  // Fetches the results of what was launched; false if the device has failed.
  bool Receive();
  void Read(Tensor logits, const LogitQuery& query, const std::byte* at, LogitAnswer& answer) const;

  CudaContext& context_;
  std::unique_ptr<CudaMatMul> matmul_;
  std::unique_ptr<StepInput> pairs_;     // of blocks to copy
  std::unique_ptr<StepInput> requests_;  // about logits
  DeviceMemory results_;
  PinnedMemory received_;
  std::vector<size_t> order_;       // of queries, equal ones together
  std::vector<Launched> launched_;  // noted since the last Answer
  size_t requested_ = 0;            // requests among them
  size_t result_bytes_ = 0;         // of results_ among them
};

}  // namespace kvern::inline KVERN_GPU_BUILD
