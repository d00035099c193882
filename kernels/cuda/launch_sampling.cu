// Launches of sampling.
#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/gumbel.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.cuh"
#include "kernels/cuda/log_sum_exp.cuh"

namespace kvern::gpu {

namespace {

constexpr int32_t kMaxRequests = 65535;  // block y

bool Valid(const LogitsArgs& args) {
  return args.columns > 0 && args.stride >= args.columns && args.count >= 0 &&
         args.count <= kMaxRequests;
}

}  // namespace

cudaError_t LaunchTopCandidates(const LogitsArgs& args, int32_t k, ScoredColumn* out,
                                cudaStream_t stream) {
  if (!Valid(args) || k < 1 || k > kMaxCandidates) return cudaErrorInvalidValue;
  const int32_t count = k < args.columns ? k : args.columns;
  return Launch("TopCandidates", &TopCandidatesKernel,
                {dim3(static_cast<unsigned>(args.count)), dim3(kTopThreads)}, stream, args, count,
                out);
}

cudaError_t LaunchLogSumExp(const LogitsArgs& args, SumPart* out, cudaStream_t stream) {
  if (!Valid(args)) return cudaErrorInvalidValue;
  return Launch(
      "LogSumExp", &LogSumExpKernel,
      {dim3(static_cast<unsigned>(SumParts(args.columns)), static_cast<unsigned>(args.count)),
       dim3(kSumThreads)},
      stream, args, out);
}

cudaError_t LaunchGumbelMax(const LogitsArgs& args, uint64_t first_id, uint64_t* best,
                            cudaStream_t stream) {
  if (!Valid(args)) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const size_t bytes = static_cast<size_t>(args.count) * sizeof(uint64_t);
  const cudaError_t error = cudaMemsetAsync(best, 0, bytes, stream);
  if (error != cudaSuccess) return error;
  return Launch("GumbelMax", &GumbelMaxKernel,
                {dim3(BlocksFor(args.columns, kGumbelColumns), static_cast<unsigned>(args.count)),
                 dim3(kGumbelThreads)},
                stream, args, first_id, best);
}

}  // namespace kvern::gpu
