// The communicator of GPUs over emulated devices: sums, their order, and peers that are lost.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "cluster/base/clock.h"
#include "kernels/simt/runtime/enqueue.h"
#include "tests/worker/comm/gpu_members.h"
#include "worker/comm/local.h"
#include "worker/comm/nccl/gpu_backend.h"

namespace kvern {
namespace {

// Three values whose sum is 1, 0 or 2 by the order of addition.
float Part(int rank) { return rank == 0 ? 1e8f : rank == 1 ? -1e8f : 1.0f; }

TEST(NcclCommunicator, AddsAndCarriesHostMemory) {
  OnGpus({{0, 1, 2}}, [](int rank, Member& member, absl::Status met) {
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
  OnGpus({{0, 1, 2}, true}, [](int rank, Member& member, absl::Status met) {
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
  OnGpus({{0, 1, 2}}, [](int rank, Member& member, absl::Status met) {
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
  OnGpus({{0, 1, 1}}, [](int, Member&, absl::Status met) {
    EXPECT_FALSE(met.ok());
    EXPECT_NE(met.ToString().find("Duplicate GPU"), std::string::npos) << met;
  });
}

TEST(NcclCommunicator, RanksThatNeverComeAreNamedAfterTheDeadline) {
  for (int world : {2, 4}) {
    auto control = NewLocalGroup(world);
    auto device = EmulatedBackend().NewDevice({.index = 0});
    ASSERT_TRUE(device.ok());
    const auto id = EmulatedBackend().NewCommId();
    ASSERT_TRUE(id.ok()) << id.status();
    auto comm = EmulatedBackend().NewCommunicator(device->get(), std::move(control[0]), *id,
                                                  nullptr, 50 * kMillisecond);
    EXPECT_TRUE(absl::IsDeadlineExceeded(comm.status())) << comm.status();
    EXPECT_NE(comm.status().message().find(world == 2 ? "; rank 1 of 2 " : "; ranks 1, 2, 3 of 4 "),
              absl::string_view::npos)
        << comm.status();
  }
}

// It is not waited for as long as ranks may take to meet.
TEST(NcclCommunicator, ARankThatFailsWhileOthersMeetIsSeenAtOnce) {
  auto control = NewLocalGroup(2);
  auto device = EmulatedBackend().NewDevice({.index = 0});
  ASSERT_TRUE(device.ok());
  const auto id = EmulatedBackend().NewCommId();
  ASSERT_TRUE(id.ok()) << id.status();
  std::thread other([&] { control[1]->Abort(); });
  const Time begin = MonotonicNow();
  auto comm = EmulatedBackend().NewCommunicator(device->get(), std::move(control[0]), *id, nullptr,
                                                200 * kSecond);
  EXPECT_LT(MonotonicNow() - begin, 200 * kSecond);
  EXPECT_TRUE(absl::IsUnavailable(comm.status())) << comm.status();
  EXPECT_NE(comm.status().message().find("aborted by rank 1"), absl::string_view::npos)
      << comm.status();
  other.join();
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
      // NCCL says only that CUDA failed; the rank adds how.
      for (const char* what :
           {"rank 0: NCCL, connecting: unhandled cuda error", "cudaErrorIllegalAddress"}) {
        EXPECT_NE(met.message().find(what), absl::string_view::npos) << met;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  simt::BreakDevice(0, cudaSuccess);
}

// What NCCL finds wrong by itself shows nowhere but in its own error, computed or recorded.
TEST(NcclCommunicator, AnErrorOfNcclsEndsTheWaitOnEveryRank) {
  for (bool recorded : {false, true}) {
    std::barrier seen(2);
    OnGpus({{0, 1}}, [&](int rank, Member& member, absl::Status met) {
      EXPECT_TRUE(met.ok()) << met;
      const int64_t count = rank == 0 ? 8 : 4;
      const auto sum = [&] { return member.comm->AllReduceSum(member.Row(count)); };
      member.Write(std::vector<float>(8, 1.0f));
      if (recorded) {
        auto graph = member.device->graph_recorder()->Record(sum);
        EXPECT_TRUE(graph.ok() && (*graph)->Launch().ok()) << graph.status();
        EXPECT_FALSE(member.device->Synchronize().ok());
      } else {
        sum().IgnoreError();  // may know it already
      }
      const absl::Status waited = member.device->Synchronize();
      EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
      EXPECT_NE(waited.message().find("mismatched collectives"), absl::string_view::npos) << waited;
      EXPECT_EQ(sum(), waited);  // final
      seen.arrive_and_wait();
    });
  }
}

TEST(NcclCommunicator, RecordedSumsAddAgainEachTime) {
  for (bool ordered : {false, true}) {
    OnGpus({{0, 1, 2}, ordered}, [](int, Member& member, absl::Status met) {
      ASSERT_TRUE(met.ok()) << met;
      EXPECT_EQ(member.Sum({1.0f, 2.0f, 0.0f, 0.0f}), (std::vector<float>{3.0f, 6.0f, 0.0f, 0.0f}));
      auto graph = member.device->graph_recorder()->Record(
          [&] { return member.comm->AllReduceSum(member.Row(4)); });
      ASSERT_TRUE(graph.ok()) << graph.status();
      EXPECT_EQ(member.Read(1), std::vector<float>{3.0f});  // not yet
      for (int i = 0; i < 3; ++i) ASSERT_TRUE((*graph)->Launch().ok());
      EXPECT_EQ(member.Read(2), (std::vector<float>{81.0f, 162.0f}));
      EXPECT_TRUE(member.comm->Barrier().ok());
    });
  }
}

// NCCL hears nothing of it: the failed rank still has its communicator.
TEST(NcclCommunicator, APeerThatFailsIsSeenWhileTheGpuWaits) {
  std::barrier enqueued(2);
  std::barrier seen(2);
  OnGpus({{0, 1}}, [&](int rank, Member& member, absl::Status met) {
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

// In sums that are computed, and in recorded ones.
class NcclHang : public testing::TestWithParam<bool> {};

TEST_P(NcclHang, ARankThatHangsIsSeenByItsPeers) {
  OnGpus({{0, 1}}, [](int rank, Member& member, absl::Status met) {
    ASSERT_TRUE(met.ok()) << met;
    const auto sum = [&] { return member.comm->AllReduceSum(member.Row(1)); };
    auto graph = member.device->graph_recorder()->Record(sum);
    ASSERT_TRUE(graph.ok()) << graph.status();
    if (rank == 0) {
      member.comm->SetTimeout(100 * kMillisecond);
      member.Write({1.0f});
      ASSERT_TRUE((GetParam() ? (*graph)->Launch() : sum()).ok());  // enqueued
      const absl::Status waited = member.device->Synchronize();
      EXPECT_TRUE(absl::IsUnavailable(waited)) << waited;
      EXPECT_NE(waited.message().find("did not end within 100 ms"), absl::string_view::npos);
      // Final: later sums fail at once, and so does the device.
      EXPECT_TRUE(absl::IsUnavailable(sum()));
      EXPECT_FALSE(member.device->Synchronize().ok());
      member.comm->Abort();
    } else {
      // It takes part in nothing until the other has given up.
      EXPECT_TRUE(absl::IsUnavailable(member.comm->Barrier()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, NcclHang, testing::Bool(), [](const auto& recorded) {
  return recorded.param ? "Recorded" : "Computed";
});

TEST(NcclCommunicator, AbortOfAnotherThreadEndsAWait) {
  OnGpus({{0, 1}}, [](int rank, Member& member, absl::Status met) {
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
