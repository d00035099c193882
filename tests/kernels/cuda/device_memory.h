// Device memory and bf16 for kernel tests.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cluster/base/rng.h"
#include "gtest/gtest.h"
#include "kernels/cuda/language.cuh"

namespace kvern::gpu {

// An array in device memory, filled from the host.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : count_(values.size()) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, count_ == 0 ? 1 : count_ * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(memory);
    Set(values);
  }
  DeviceArray(size_t count, T value) : DeviceArray(std::vector<T>(count, value)) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }

  T* get() const { return data_; }
  size_t size() const { return count_; }
  void Set(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  // After all that was launched.
  std::vector<T> Read() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

inline float RandomIn(Rng& rng, float scale) {
  return static_cast<float>((UnitInterval(rng.Next()) * 2 - 1) * static_cast<double>(scale));
}
inline std::vector<float> RandomRow(Rng& rng, size_t count, float scale) {
  std::vector<float> values(count);
  for (float& x : values) x = RandomIn(rng, scale);
  return values;
}
inline std::vector<Bf16> Rounded(const std::vector<float>& values) {
  std::vector<Bf16> out;
  for (float x : values) out.push_back(ToBf16(x));
  return out;
}
inline std::vector<float> Widened(const std::vector<Bf16>& values) {
  std::vector<float> out;
  for (Bf16 x : values) out.push_back(ToFloat(x));
  return out;
}
inline std::vector<uint16_t> BitsOf(const std::vector<Bf16>& values) {
  std::vector<uint16_t> out;
  for (Bf16 x : values) out.push_back(x.bits);
  return out;
}

}  // namespace kvern::gpu
