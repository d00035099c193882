// The ranks of a group of emulated GPUs, each on a thread of the test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "worker/comm/local.h"
#include "worker/comm/nccl/gpu_backend.h"

namespace kvern {

inline constexpr size_t kMostValues = (1 << 20) + 4;  // an ordered sum takes two pieces

// One rank with a device and a float32 buffer on it.
struct Member {
  std::unique_ptr<Device> device;
  std::unique_ptr<Buffer> buffer;
  std::unique_ptr<Communicator> comm;

  Tensor Row(int64_t count) { return {buffer->data(), DType::kF32, 1, count, count}; }
  void Write(const std::vector<float>& values) {
    ASSERT_TRUE(device->CopyToDevice(buffer->data(), values.data(), values.size() * 4).ok());
  }
  std::vector<float> Read(size_t count) {
    std::vector<float> values(count);
    EXPECT_TRUE(device->CopyToHost(values.data(), buffer->data(), count * 4).ok());
    return values;
  }
  std::vector<float> Sum(const std::vector<float>& values) {
    Write(values);
    EXPECT_TRUE(comm->AllReduceSum(Row(static_cast<int64_t>(values.size()))).ok());
    return Read(values.size());
  }
};

// A buffer that says when it is given back.
class WatchedBuffer final : public Buffer {
 public:
  WatchedBuffer(std::unique_ptr<Buffer> buffer, std::function<void()> given_back)
      : buffer_(std::move(buffer)), given_back_(std::move(given_back)) {}
  ~WatchedBuffer() override { given_back_(); }
  void* data() override { return buffer_->data(); }
  size_t bytes() const override { return buffer_->bytes(); }

 private:
  std::unique_ptr<Buffer> buffer_;
  std::function<void()> given_back_;
};

struct GpuGroup {
  std::vector<int> indices;  // the GPU of each rank
  bool ordered = false;
  // Called when rank 0's communicator gives its memory back. Ordered sums only: others have none.
  std::function<void()> given_back = [] {};
};

// Opens every rank on its thread and runs `body`, to which it says how the ranks met.
inline void OnGpus(const GpuGroup& group,
                   const std::function<void(int, Member&, absl::Status)>& body) {
  const auto world = static_cast<int>(group.indices.size());
  auto control = NewLocalGroup(world);
  const auto id = EmulatedBackend().NewCommId();
  ASSERT_TRUE(id.ok()) << id.status();
  std::vector<std::thread> threads;
  for (size_t r = 0; r < group.indices.size(); ++r) {
    threads.emplace_back([&, r] {
      Member member;
      auto device = EmulatedBackend().NewDevice({.index = group.indices[r]});
      ASSERT_TRUE(device.ok()) << device.status();
      member.device = *std::move(device);
      auto buffer = member.device->Allocate(kMostValues * sizeof(float));
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      member.buffer = *std::move(buffer);
      std::unique_ptr<Buffer> gathered;
      if (group.ordered) {
        auto memory = member.device->Allocate(EmulatedBackend().GatheredBytes(world));
        ASSERT_TRUE(memory.ok()) << memory.status();
        gathered = *std::move(memory);
        if (r == 0) {
          gathered = std::make_unique<WatchedBuffer>(std::move(gathered), group.given_back);
        }
      }
      auto comm = EmulatedBackend().NewCommunicator(member.device.get(), std::move(control[r]), *id,
                                                    std::move(gathered), 20 * kSecond);
      if (comm.ok()) member.comm = *std::move(comm);
      body(static_cast<int>(r), member, comm.status());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvern
