#include "worker/device/cuda/cuda_memory.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern::inline KVERN_GPU_BUILD {

struct DeviceMemory::Allocation {
  Allocation() = default;
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (base != nullptr) cudaFree(base);
  }
  char* base = nullptr;  // null until it is committed
};

void* DeviceMemory::data() const {
  if (allocation_ == nullptr) return nullptr;
  KVERN_CHECK(allocation_->base != nullptr) << "memory that is only laid out";
  return allocation_->base + offset_;
}

absl::StatusOr<DeviceMemory> DeviceArena::LayOut(size_t bytes, Content content, size_t closed) {
  KVERN_CHECK_LE(closed, bytes);
  DeviceMemory piece;
  size_t end = 0;
  if (bytes > SIZE_MAX - kAlignment - kGuardBytes) {
    return ResourceExhausted("GPU memory of ", bytes, " bytes");
  }
  const size_t wanted = std::max<size_t>(bytes, 1) + kGuardBytes;
  piece.size_ = bytes;
  piece.bytes_ = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  if (__builtin_add_overflow(bytes_, piece.bytes_, &end)) {
    return ResourceExhausted("GPU memory of ", bytes, " bytes beside ", bytes_, " others");
  }
  if (next_ == nullptr) next_ = std::make_shared<DeviceMemory::Allocation>();
  piece.allocation_ = next_;
  piece.offset_ = std::exchange(bytes_, end);
  pieces_.push_back({piece.offset_, bytes - closed, end, content});
  return piece;
}

absl::Status DeviceArena::Commit() {
  if (next_ == nullptr) return absl::OkStatus();
  const auto allocation = std::exchange(next_, nullptr);
  const size_t bytes = std::exchange(bytes_, 0);
  const auto pieces = std::exchange(pieces_, {});
  context_.Enter();
  void* base = nullptr;
  const cudaError_t error = cudaMalloc(&base, bytes);
  if (error == cudaErrorMemoryAllocation) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaGetLastError();  // running out is no fault of the device's
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return ResourceExhausted("GPU ", context_.index(), ": memory of ", bytes, " bytes, ",
                             free_bytes, " of ", total_bytes, " are free");
  }
  KVERN_RETURN_IF_ERROR(CudaStatus(error, "cudaMalloc"));
  allocation->base = static_cast<char*>(base);
  for (const Piece& piece : pieces) {
    char* begin = allocation->base + piece.begin;
    ForbidMemory(begin + piece.open, piece.end - piece.begin - piece.open);
    if (piece.content == Content::kAnything || piece.open == 0) continue;
    KVERN_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(begin, 0, piece.open, context_.stream()), "cudaMemsetAsync"));
  }
  return absl::OkStatus();
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
