// The communicator of GPUs over emulated devices: sums, their order, and peers that are lost.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <thread>

#include "kernels/simt/runtime/enqueue.h"
#include "worker/comm/local.h"
#include "worker/comm/nccl/gpu_backend.h"

namespace kvern {
namespace {

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

constexpr size_t kMostValues = (1 << 20) + 4;  // an ordered sum takes two pieces

// Opens every rank on its thread and runs `body`; `indices`: the GPU of each rank.
void OnGpus(const std::vector<int>& indices, bool ordered,
            const std::function<void(int, Member&, absl::Status)>& body) {
  auto control = NewLocalGroup(static_cast<int>(indices.size()));
  const auto id = EmulatedBackend().NewCommId();
  ASSERT_TRUE(id.ok()) << id.status();
  std::vector<std::thread> threads;
  for (size_t r = 0; r < indices.size(); ++r) {
    threads.emplace_back([&, r] {
      Member member;
      auto device = EmulatedBackend().NewDevice({.index = indices[r]});
      ASSERT_TRUE(device.ok()) << device.status();
      member.device = *std::move(device);
      auto buffer = member.device->Allocate(kMostValues * sizeof(float));
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      member.buffer = *std::move(buffer);
      std::unique_ptr<Buffer> gathered;
      if (ordered) {
        auto memory = member.device->Allocate(
            EmulatedBackend().GatheredBytes(static_cast<int>(indices.size())));
        ASSERT_TRUE(memory.ok()) << memory.status();
        gathered = *std::move(memory);
      }
      auto comm = EmulatedBackend().NewCommunicator(member.device.get(), std::move(control[r]), *id,
                                                    std::move(gathered), 20 * kSecond);
      if (comm.ok()) member.comm = *std::move(comm);
      body(static_cast<int>(r), member, comm.status());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Three values whose sum is 1, 0 or 2 by the order of addition.
float Part(int rank) { return rank == 0 ? 1e8f : rank == 1 ? -1e8f : 1.0f; }

TEST(NcclCommunicator, AddsAndCarriesHostMemory) {
  OnGpus({0, 1, 2}, false, [](int rank, Member& member, absl::Status met) {
    ASSERT_TRUE(met.ok()) << met;
    for (size_t count : {size_t{1}, size_t{1000}, kMostValues}) {
      EXPECT_EQ(member.Sum(std::vector<float>(count, static_cast<float>(rank + 1))),
                std::vector<float>(count, 6.0f));
    }
    int mine = rank;
    int all[3] = {};
    ASSERT_TRUE(member.comm->AllGather(&mine, sizeof(mine), all).ok());
    EXPECT_EQ(all[2], 2);
  });
}

TEST(NcclCommunicator, OrderedSumsHaveOneOrderAtEverySize) {
  OnGpus({0, 1, 2}, true, [](int rank, Member& member, absl::Status met) {
    ASSERT_TRUE(met.ok()) << met;
    for (size_t count : {size_t{4}, size_t{8}, size_t{1024}, size_t{3000}, kMostValues}) {
      EXPECT_EQ(member.Sum(std::vector<float>(count, Part(rank))), std::vector<float>(count, 1.0f))
          << count;
    }
    // Who leaves counts as gone to whoever still waits for a GPU.
    EXPECT_TRUE(member.comm->Barrier().ok());
  });
}

// The test above can fail.
TEST(NcclCommunicator, OtherSumsFollowTheirSize) {
  OnGpus({0, 1, 2}, false, [](int rank, Member& member, absl::Status met) {
    ASSERT_TRUE(met.ok()) << met;
    bool all_ordered = true;
    for (size_t count : {4u, 8u, 1024u, 3000u}) {
      const auto sum = member.Sum(std::vector<float>(count, Part(rank)));
      all_ordered = all_ordered && sum == std::vector<float>(count, 1.0f);
    }
    EXPECT_FALSE(all_ordered);
    EXPECT_TRUE(member.comm->Barrier().ok());
  });
}

TEST(NcclCommunicator, TwoRanksOnOneGpuAreToldOnEveryRank) {
  OnGpus({0, 1, 1}, false, [](int, Member&, absl::Status met) {
    EXPECT_FALSE(met.ok());
    EXPECT_NE(met.ToString().find("Duplicate GPU"), std::string::npos) << met;
  });
}

TEST(NcclCommunicator, ARankThatNeverComesIsAnErrorOfTheOthers) {
  auto control = NewLocalGroup(2);
  auto device = EmulatedBackend().NewDevice({.index = 0});
  ASSERT_TRUE(device.ok());
  const auto id = EmulatedBackend().NewCommId();
  ASSERT_TRUE(id.ok()) << id.status();
  auto comm = EmulatedBackend().NewCommunicator(device->get(), std::move(control[0]), *id, nullptr,
                                                50 * kMillisecond);
  ASSERT_FALSE(comm.ok());
  EXPECT_NE(comm.status().message().find("rank 1"), absl::string_view::npos) << comm.status();
}

// What the router hands out is theirs alone: another start's id, or none, connects nobody.
TEST(NcclCommunicator, RanksWithDifferentIdsDoNotMeet) {
  const auto ids = {*EmulatedBackend().NewCommId(), *EmulatedBackend().NewCommId()};
  for (const std::vector<uint8_t>& other : {ids.begin()[1], std::vector<uint8_t>()}) {
    auto control = NewLocalGroup(2);
    std::barrier ready(2);  // neither waits for the other's device
    std::vector<std::thread> threads;
    for (size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        auto device = EmulatedBackend().NewDevice({.index = static_cast<int>(r)});
        ASSERT_TRUE(device.ok()) << device.status();
        ready.arrive_and_wait();
        const absl::Status met =
            EmulatedBackend()
                .NewCommunicator(device->get(), std::move(control[r]),
                                 r == 0 ? ids.begin()[0] : other, nullptr, 500 * kMillisecond)
                .status();
        const char* why = other.empty() ? "rank 1: the id to connect by has 0 bytes, NCCL's has 128"
                                        : "rank 1: NCCL, connecting: not done within 500 ms";
        EXPECT_NE(met.message().find(why), absl::string_view::npos) << met;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(NcclCommunicator, WhyARankFailsAtOnceIsToldOnEveryRank) {
  auto control = NewLocalGroup(2);
  const auto id = EmulatedBackend().NewCommId();
  ASSERT_TRUE(id.ok()) << id.status();
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      auto device = EmulatedBackend().NewDevice({.index = static_cast<int>(r)});
      ASSERT_TRUE(device.ok()) << device.status();
      if (r == 0) simt::BreakDevice(0, cudaErrorIllegalAddress);
      // Rank 1 waits for the other as long as it may.
      const absl::Status met =
          EmulatedBackend()
              .NewCommunicator(device->get(), std::move(control[r]), *id, nullptr, 1 * kSecond)
              .status();
      EXPECT_NE(met.message().find("rank 0: NCCL, connecting: unhandled cuda error"),
                absl::string_view::npos)
          << met;
    });
  }
  for (std::thread& thread : threads) thread.join();
  simt::BreakDevice(0, cudaSuccess);
}

// NCCL hears nothing of it: the failed rank still has its communicator.
TEST(NcclCommunicator, APeerThatFailsIsSeenWhileTheGpuWaits) {
  std::barrier enqueued(2);
  std::barrier seen(2);
  OnGpus({0, 1}, false, [&](int rank, Member& member, absl::Status met) {
    EXPECT_TRUE(met.ok()) << met;
    if (rank == 0) {
      member.comm->SetTimeout(kTimeMax);
      member.Write({1.0f});
      EXPECT_TRUE(member.comm->AllReduceSum(member.Row(1)).ok());
      enqueued.arrive_and_wait();
      const absl::Status waited = member.device->Synchronize();
      EXPECT_NE(waited.message().find("aborted by rank 1"), absl::string_view::npos) << waited;
    } else {
      enqueued.arrive_and_wait();
      member.comm->Abort();
    }
    seen.arrive_and_wait();
  });
}

TEST(NcclCommunicator, ARankThatHangsIsSeenByItsPeers) {
  OnGpus({0, 1}, false, [](int rank, Member& member, absl::Status met) {
    ASSERT_TRUE(met.ok()) << met;
    if (rank == 0) {
      member.comm->SetTimeout(100 * kMillisecond);
      member.Write({1.0f});
      ASSERT_TRUE(member.comm->AllReduceSum(member.Row(1)).ok());  // enqueued
      const absl::Status waited = member.device->Synchronize();
      EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
      EXPECT_NE(waited.message().find("did not end within 100 ms"), absl::string_view::npos);
      // Final: later sums fail at once, and so does the device.
      EXPECT_TRUE(absl::IsUnavailable(member.comm->AllReduceSum(member.Row(1))));
      EXPECT_FALSE(member.device->Synchronize().ok());
      member.comm->Abort();
    } else {
      // It takes part in nothing until the other has given up.
      EXPECT_TRUE(absl::IsUnavailable(member.comm->Barrier()));
    }
  });
}

TEST(NcclCommunicator, AbortOfAnotherThreadEndsAWait) {
  OnGpus({0, 1}, false, [](int rank, Member& member, absl::Status met) {
    if (rank == 1) {  // the abort may come while it still meets
      EXPECT_FALSE(met.ok() && member.comm->Barrier().ok());
      return;
    }
    ASSERT_TRUE(met.ok()) << met;
    member.Write({1.0f});
    ASSERT_TRUE(member.comm->AllReduceSum(member.Row(1)).ok());
    std::thread other([&] { member.comm->Abort(); });
    EXPECT_TRUE(absl::IsUnavailable(member.device->Synchronize()));
    other.join();
  });
}

}  // namespace
}  // namespace kvern
