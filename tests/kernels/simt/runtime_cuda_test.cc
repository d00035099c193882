// The stand-in for the CUDA runtime: order, capture, and the errors of the real one.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/simt/language.h"
#include "kernels/simt/runtime/enqueue.h"

namespace kvern::simt {
namespace {

class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device_), 4096), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    cudaGetLastError();
  }

  // A task that holds the stream until the promise is kept.
  std::promise<void> Hold() {
    std::promise<void> promise;
    auto future = std::make_shared<std::future<void>>(promise.get_future());
    EXPECT_EQ(EnqueueTask(stream_, [future] { future->wait(); }), cudaSuccess);
    return promise;
  }
  int Read(int index) {
    int value = 0;
    EXPECT_EQ(
        cudaMemcpyAsync(&value, device_ + index, sizeof(int), cudaMemcpyDeviceToHost, stream_),
        cudaSuccess);
    return value;
  }
  cudaError_t Add(int amount) {
    return EnqueueKernel(stream_, {1, 1, 0, "add"}, reinterpret_cast<const void*>(&kKernel),
                         [at = device_, amount] { *at += amount; });
  }

  static constexpr int kKernel = 0;
  cudaStream_t stream_ = nullptr;
  int* device_ = nullptr;
};

TEST_F(RuntimeTest, FreshMemoryIsNotZero) { EXPECT_EQ(Read(0), -1); }

TEST_F(RuntimeTest, PageableMemoryIsStagedAndPinnedIsNot) {
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), 2 * sizeof(int)), cudaSuccess);
  int pageable = 5;
  *pinned = 5;
  auto hold = Hold();
  ASSERT_EQ(cudaMemcpyAsync(device_, &pageable, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(device_ + 1, pinned, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  pageable = 6;
  *pinned = 6;  // before the copy has run: the copy takes it
  hold.set_value();
  EXPECT_EQ(Read(0), 5);
  EXPECT_EQ(Read(1), 6);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(RuntimeTest, CopiesMustBeWhatTheySay) {
  int host[2] = {};
  EXPECT_EQ(cudaMemcpyAsync(host, host + 1, 4, cudaMemcpyHostToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device_ + 1023, host, 8, cudaMemcpyHostToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(RuntimeTest, EventsFollowTheStream) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  auto hold = Hold();
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  hold.set_value();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(RuntimeTest, AnotherStreamWaitsForAnEvent) {
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device_, 0, 8, stream_), cudaSuccess);
  auto hold = Hold();
  ASSERT_EQ(Add(7), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(device_ + 1, device_, 4, cudaMemcpyDeviceToDevice, other), cudaSuccess);
  hold.set_value();
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(Read(1), 7);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

// A stream that works as late as it may: without a wait for it, others come first every time.
TEST_F(RuntimeTest, ALateStreamWorksForThoseWhoWait) {
  cudaStream_t late = nullptr;
  cudaEvent_t event = nullptr;
  cudaEvent_t beyond = nullptr;
  MakeStreamLate(0, 0);
  ASSERT_EQ(cudaStreamCreateWithFlags(&late, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&beyond, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device_, 0, 4, stream_), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device_, 1, 4, late), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, late), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device_, 2, 4, late), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(beyond, late), cudaSuccess);
  EXPECT_EQ(Read(0), 0);
  ASSERT_EQ(cudaStreamWaitEvent(stream_, event, 0), cudaSuccess);
  EXPECT_EQ(Read(0), 0x01010101);  // no further than was waited for
  EXPECT_EQ(cudaEventSynchronize(beyond), cudaSuccess);
  EXPECT_EQ(Read(0), 0x02020202);
  ASSERT_EQ(cudaMemsetAsync(device_, 3, 4, late), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, late), cudaSuccess);
  while (cudaEventQuery(event) == cudaErrorNotReady)
    std::this_thread::yield();  // asking is waiting
  EXPECT_EQ(Read(0), 0x03030303);
  ASSERT_EQ(cudaMemsetAsync(device_, 4, 4, late), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(beyond), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(late), cudaSuccess);
  EXPECT_EQ(Read(0), 0x04040404);
}

TEST_F(RuntimeTest, AGraphReplaysWithTheArgumentsOfItsCapture) {
  ASSERT_EQ(cudaMemsetAsync(device_, 0, 4, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  int amount = 3;
  ASSERT_EQ(Add(amount), cudaSuccess);
  amount = 100;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(Read(0), 0);  // captured, not run
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);  // what is in flight goes on
  EXPECT_EQ(Read(0), 6);
}

TEST_F(RuntimeTest, WhatACaptureForbidsSpoilsIt) {
  const auto forbidden = [&](int which) {
    void* pointer = nullptr;
    if (which == 0) return cudaStreamSynchronize(stream_);
    if (which == 1) return cudaMalloc(&pointer, 16);
    if (which == 2) return cudaStreamQuery(stream_);
    return cudaDeviceSynchronize();
  };
  for (int which = 0; which < 4; ++which) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(forbidden(which), cudaErrorStreamCaptureUnsupported) << which;
    EXPECT_EQ(Add(1), cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
  }
}

TEST_F(RuntimeTest, AThreadLocalCaptureLeavesOtherThreadsAlone) {
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaGraph_t graph = nullptr;
  std::thread([&] {
    void* pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, 16), cudaSuccess);
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// A call that fails has made nothing: whoever checks the answer first would lose it.
TEST_F(RuntimeTest, ABrokenDeviceMakesNothing) {
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  simt::BreakDevice(0, cudaErrorLaunchFailure);
  cudaGraph_t second = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &second), cudaErrorLaunchFailure);
  EXPECT_EQ(second, nullptr);
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaErrorLaunchFailure);
  EXPECT_EQ(exec, nullptr);
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaErrorLaunchFailure);
  EXPECT_EQ(event, nullptr);
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            cudaErrorLaunchFailure);
  simt::BreakDevice(0, cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &second), cudaErrorIllegalState);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(RuntimeTest, LaunchesHaveLimits) {
  const auto launch = [&](dim3 grid, dim3 block, size_t shared) {
    return EnqueueKernel(stream_, {grid, block, shared, "limits"}, &stream_, [] {});
  };
  EXPECT_EQ(launch(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), 32, 0), cudaErrorInvalidConfiguration);
  LaunchShape bounded = {1, dim3(8, 8), 0, "limits"};
  bounded.max_threads = 63;
  EXPECT_EQ(EnqueueKernel(stream_, bounded, &stream_, [] {}), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  bounded.max_threads = 64;
  EXPECT_EQ(EnqueueKernel(stream_, bounded, &stream_, [] {}), cudaSuccess);
  EXPECT_EQ(launch(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(&stream_, kAttribute, 164 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(&stream_, kAttribute, 96 << 10), cudaSuccess);
  EXPECT_EQ(launch(1, 32, 96 << 10), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(launch(1, 32, 0), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

// Records go with the event's device; copies and waits with any that is current.
TEST_F(RuntimeTest, EventsAndStreamsOfTwoDevices) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);  // nothing was recorded

  EXPECT_EQ(EnqueueTask(stream_, [] {}), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  std::promise<void> hold = Hold();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const int value = 5;
  EXPECT_EQ(cudaMemcpyAsync(device_, &value, sizeof(int), cudaMemcpyHostToDevice, stream_),
            cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamWaitEvent(other, event), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event), cudaSuccess);
  hold.set_value();
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(Read(0), 5);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(RuntimeTest, ARecordThatFailedIsNotWaitedFor) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  BreakDevice(0, cudaErrorLaunchFailure);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaErrorLaunchFailure);
  // Nor does a stream of a broken device take anything from elsewhere.
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device_, device_, sizeof(int), cudaMemcpyDeviceToDevice, stream_),
            cudaErrorLaunchFailure);
  ASSERT_EQ(cudaSetDevice(0), cudaErrorLaunchFailure);
  BreakDevice(0, cudaSuccess);
  ASSERT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(RuntimeTest, StaticSharedMemoryCountsAsDynamicDoes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [&](const void* kernel, size_t dynamic_bytes) {
    EXPECT_EQ(EnqueueKernel(stream_, {1, 32, dynamic_bytes, "both"}, kernel,
                            [] {
                              KVERN_SHARED(char, some, 1 << 10);
                              some[threadIdx.x] = 0;
                            }),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  };
  run(&kKernel, 47 << 10);
  EXPECT_DEATH(run(&kKernel, (47 << 10) + 1), "1024 more bytes of static .* 49152 in all");
  // What is allowed counts, not what is used of it.
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  constexpr int kAllowed[] = {162 << 10, 163 << 10};
  for (const int& allowed : kAllowed) {
    ASSERT_EQ(cudaFuncSetAttribute(&allowed, kAttribute, allowed), cudaSuccess);
  }
  run(&kAllowed[0], 162 << 10);
  EXPECT_DEATH(run(&kAllowed[1], 48 << 10), "1024 more bytes of static .* 49152 in all");
}

TEST_F(RuntimeTest, AFaultStays) {
  ASSERT_EQ(cudaMemsetAsync(device_, 0, 4, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  BreakDevice(0, cudaErrorIllegalAddress);
  EXPECT_EQ(Add(1), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  BreakDevice(0, cudaSuccess);
  EXPECT_EQ(Read(0), 0);
}

TEST_F(RuntimeTest, FreeingMemoryWaitsForItsUsers) {
  char* memory = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), 1 << 20), cudaSuccess);
  bool used = false;
  auto hold = Hold();
  ASSERT_EQ(EnqueueTask(stream_, [&] { used = true; }), cudaSuccess);
  std::thread free([&] {
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_TRUE(used);
  });
  hold.set_value();
  free.join();
}

TEST_F(RuntimeTest, MemoryIsCountedAndRunsOut) {
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  void* pointer = nullptr;
  const MallocTotals earlier = MallocsOf(0);
  ASSERT_EQ(cudaMalloc(&pointer, 1 << 20), cudaSuccess);
  EXPECT_EQ(MallocsOf(0).calls, earlier.calls + 1);
  EXPECT_EQ(MallocsOf(0).bytes, earlier.bytes + (1 << 20));
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before - after, size_t{1} << 20);
  ASSERT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&pointer, total), cudaErrorMemoryAllocation);
  EXPECT_EQ(MallocsOf(0).calls, earlier.calls + 1);
}

}  // namespace
}  // namespace kvern::simt
