// Device memory and bf16 for kernel tests.
#pragma once

#include <cuda_runtime.h>
#include <sys/mman.h>

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

// Memory of which little is touched. Emulated it is no more than addresses: a device's memory is
// taken whole.
class SparseMemory {
 public:
  explicit SparseMemory(size_t bytes) : bytes_(bytes) {
#ifdef __CUDACC__
    EXPECT_EQ(cudaMalloc(&data_, bytes_), cudaSuccess);
#else
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(data_, MAP_FAILED);
#endif
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() {
#ifdef __CUDACC__
    EXPECT_EQ(cudaFree(data_), cudaSuccess);
#else
    EXPECT_EQ(munmap(data_, bytes_), 0);
#endif
  }

  char* get() const { return static_cast<char*>(data_); }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

// Blocks of a KV cache that lie about 2^31, 2^32, 2^33 and 2^34 bytes from its begin: with elements
// of 2 and of 4 bytes those are all the places where 32 bits of an offset end, signed or not,
// whether bytes or elements are counted.
class FarBlocks {
 public:
  explicit FarBlocks(size_t block_bytes)
      : block_bytes_(block_bytes),
        ids_(IdsOf(block_bytes)),
        memory_((ids_.back() + 1) * block_bytes) {}

  char* get() const { return memory_.get(); }
  const std::vector<uint32_t>& ids() const { return ids_; }  // ascending
  // Block ids()[index], `block_bytes` from or to the host.
  void Write(size_t index, const void* source) const {
    EXPECT_EQ(cudaMemcpy(Place(index), source, block_bytes_, cudaMemcpyDefault), cudaSuccess);
  }
  void Read(size_t index, void* target) const {
    EXPECT_EQ(cudaMemcpy(target, Place(index), block_bytes_, cudaMemcpyDefault), cudaSuccess);
  }

 private:
  static std::vector<uint32_t> IdsOf(size_t block_bytes) {
    std::vector<uint32_t> ids = {0};
    for (int bits = 31; bits <= 34; ++bits) {
      const auto id = static_cast<uint32_t>((size_t{1} << bits) / block_bytes);
      ids.insert(ids.end(), {id - 1, id, id + 1});
    }
    return ids;
  }
  char* Place(size_t index) const { return get() + ids_[index] * block_bytes_; }

  size_t block_bytes_;
  std::vector<uint32_t> ids_;
  SparseMemory memory_;
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
