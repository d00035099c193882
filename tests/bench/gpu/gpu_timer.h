// Memory and timing on one GPU, for benches. Errors are absl::Status: one part's failure is not
// another's.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cluster/base/rng.h"
#include "cluster/base/status.h"
#include "tests/bench/gpu/random_bf16.h"

namespace kvern::gpu {

inline absl::Status Checked(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return Internal(what, ": ", cudaGetErrorString(error));
}

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<void, DeviceFree>;

// The content is zero.
inline absl::StatusOr<DeviceMemory> AllocateZero(size_t bytes) {
  void* memory = nullptr;
  KVERN_RETURN_IF_ERROR(Checked(cudaMalloc(&memory, bytes), "cudaMalloc"));
  DeviceMemory owned(memory);
  KVERN_RETURN_IF_ERROR(Checked(cudaMemset(memory, 0, bytes), "cudaMemset"));
  return owned;
}

// Random bf16 numbers of either sign, from 1/64 to 1/32: a GPU whose operands are all zero uses
// less power, and so runs faster than a model would. bytes: even.
inline absl::StatusOr<DeviceMemory> AllocateRandom(size_t bytes) {
  constexpr size_t kDrawnBytes = size_t{1} << 20;
  KVERN_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateZero(bytes));
  Rng rng(1);
  std::vector<uint16_t> drawn(std::min(bytes, kDrawnBytes) / 2);
  for (uint16_t& bits : drawn) bits = RandomBf16(rng);
  for (size_t at = 0; at < bytes; at += kDrawnBytes) {
    KVERN_RETURN_IF_ERROR(
        Checked(cudaMemcpy(static_cast<char*>(memory.get()) + at, drawn.data(),
                           std::min(kDrawnBytes, bytes - at), cudaMemcpyHostToDevice),
                "cudaMemcpy"));
  }
  return memory;
}

template <typename T>
absl::StatusOr<DeviceMemory> CopyOf(const std::vector<T>& values) {
  KVERN_ASSIGN_OR_RETURN(DeviceMemory memory,
                         AllocateZero(std::max<size_t>(1, values.size() * sizeof(T))));
  KVERN_RETURN_IF_ERROR(Checked(
      cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
      "cudaMemcpy"));
  return memory;
}

// How long to measure. A smoke run only shows that everything runs.
struct Effort {
  double seconds = 0.05;  // of one measurement
  int measurements = 5;   // the best counts
};

// Seconds per call of `enqueue(i)`, i counting up, which puts work into the default stream: calls
// are repeated until a measurement lasts, then the device is waited for once.
inline absl::StatusOr<double> SecondsPerCall(const Effort& effort,
                                             const std::function<cudaError_t(int)>& enqueue) {
  const auto run = [&](int count) -> absl::StatusOr<double> {
    KVERN_RETURN_IF_ERROR(Checked(cudaDeviceSynchronize(), "before a measurement"));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) KVERN_RETURN_IF_ERROR(Checked(enqueue(i), "launch"));
    KVERN_RETURN_IF_ERROR(Checked(cudaDeviceSynchronize(), "measured work"));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  KVERN_RETURN_IF_ERROR(run(2).status());
  KVERN_ASSIGN_OR_RETURN(double once, run(1));
  const int count = static_cast<int>(std::clamp(effort.seconds / once, 1.0, 10'000.0));
  double best = once;
  for (int i = 0; i < effort.measurements; ++i) {
    KVERN_ASSIGN_OR_RETURN(double seconds, run(count));
    best = std::min(best, seconds / count);
  }
  return best;
}

}  // namespace kvern::gpu
