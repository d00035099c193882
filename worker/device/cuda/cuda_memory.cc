#include "worker/device/cuda/cuda_memory.h"

#include <algorithm>

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kChunkBytes = 32 << 20;
// Larger pieces get their own allocation: the end of a chunk that is too short for the next piece
// is lost, and so must be a small part of it.
constexpr size_t kLargestPiece = kChunkBytes / 8;

size_t RoundUp(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(const CudaContext& context, size_t bytes) {
  context.Enter();
  DeviceMemory memory;
  if (bytes > SIZE_MAX - kAlignment) return ResourceExhausted("GPU memory of ", bytes, " bytes");
  memory.bytes_ = RoundUp(bytes);
  const cudaError_t error = cudaMalloc(&memory.data_, memory.bytes_);
  if (error == cudaErrorMemoryAllocation) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaGetLastError();  // running out is no fault of the device's
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return ResourceExhausted("GPU ", context.index(), ": memory of ", memory.bytes_, " bytes, ",
                             free_bytes, " of ", total_bytes, " are free");
  }
  KVERN_RETURN_IF_ERROR(CudaStatus(error, "cudaMalloc"));
  memory.owner_ = std::shared_ptr<void>(memory.data_, [](void* data) { cudaFree(data); });
  return memory;
}

absl::StatusOr<DeviceMemory> DeviceArena::Allocate(size_t bytes) {
  if (bytes > kLargestPiece) return DeviceMemory::Allocate(context_, bytes);
  const size_t size = RoundUp(bytes);
  if (chunk_.bytes() - used_ < size) {
    KVERN_ASSIGN_OR_RETURN(chunk_, DeviceMemory::Allocate(context_, kChunkBytes));
    used_ = 0;
  }
  DeviceMemory piece;
  piece.owner_ = chunk_.owner_;
  piece.data_ = static_cast<char*>(chunk_.data()) + used_;
  piece.bytes_ = size;
  used_ += size;
  return piece;
}

absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(const CudaContext& context, size_t bytes) {
  context.Enter();
  PinnedMemory memory;
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // as above
    return ResourceExhausted("pinned memory of ", bytes, " bytes");
  }
  KVERN_RETURN_IF_ERROR(CudaStatus(error, "cudaMallocHost"));
  memory.owner_ = std::shared_ptr<void>(data, [](void* pinned) { cudaFreeHost(pinned); });
  memory.bytes_ = bytes;
  return memory;
}

}  // namespace kvern::inline KVERN_GPU_BUILD
