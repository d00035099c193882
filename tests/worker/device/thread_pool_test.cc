#include "worker/device/cpu/thread_pool.h"

#include <pthread.h>

#include <numeric>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cpu/cpu_device.h"

namespace kvern {
namespace {

TEST(ThreadPoolTest, EveryThreadRunsOnceEachRound) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    std::vector<int> runs(static_cast<size_t>(threads));
    for (int round = 0; round < 500; ++round) {
      pool.RunOnAll([&](int thread) { ++runs[static_cast<size_t>(thread)]; });
    }
    EXPECT_THAT(runs, testing::Each(500));
  }
}

TEST(ThreadPoolTest, RangesCoverEverythingOnceOnUnits) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 5, 16, 17, 100}) {
      for (int64_t unit : {1, 2, 16}) {
        std::vector<int> seen(static_cast<size_t>(count));
        pool.Ranges(count, unit, [&](int, int64_t begin, int64_t end) {
          EXPECT_EQ(begin % unit, 0);
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        EXPECT_THAT(seen, testing::Each(1)) << threads << " threads, " << count << " by " << unit;
      }
    }
  }
}

TEST(ThreadPoolTest, ItemsAreHandedOutOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 3, 1000}) {
      std::vector<int> seen(static_cast<size_t>(count));
      pool.Items(count, [&](int thread, int64_t i) {
        EXPECT_LT(thread, threads);
        ++seen[static_cast<size_t>(i)];
      });
      EXPECT_THAT(seen, testing::Each(1));
    }
  }
}

TEST(ThreadPoolTest, WhatWorkersWroteIsSeenByTheOwnerAndByTheNextRound) {
  ThreadPool pool(4);
  std::vector<int64_t> values(4000);
  for (int64_t round = 1; round <= 50; ++round) {
    // Each round reads what another thread wrote in the round before.
    pool.Ranges(4000, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
    });
    pool.Ranges(4000, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(3999 - i)] += 1;
    });
    const int64_t sum = std::accumulate(values.begin(), values.end(), int64_t{0});
    EXPECT_EQ(sum, round * (4000 * 3999 / 2 + 4000));
  }
}

TEST(ThreadPoolTest, PoolsOfSeveralOwnersWorkSideBySide) {
  std::vector<std::thread> owners;
  std::vector<int64_t> sums(4);
  for (size_t owner = 0; owner < sums.size(); ++owner) {
    owners.emplace_back([&sums, owner] {
      ThreadPool pool(3);
      for (int round = 0; round < 200; ++round) {
        std::vector<int64_t> parts(3);
        pool.RunOnAll([&](int thread) { parts[static_cast<size_t>(thread)] = thread + 1; });
        sums[owner] += parts[0] + parts[1] + parts[2];
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  EXPECT_THAT(sums, testing::Each(1200));
}

TEST(ThreadPoolTest, ThreadsThatTheSystemRefusesAreMissedByName) {
  // No thread's stack finds room from here on.
  pthread_attr_t usual;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  pthread_attr_t huge = usual;
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  ThreadPool pool(1024);
  const absl::Status device = NewCpuDevice({.threads = 3}).status();
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_attr_destroy(&usual);
  EXPECT_TRUE(absl::IsResourceExhausted(pool.status())) << pool.status();
  EXPECT_THAT(pool.status().message(), testing::HasSubstr("threads: 1024, only 1 can be had"));
  int runs = 0;
  pool.RunOnAll([&](int) { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(device.message(), testing::HasSubstr("threads: 3, only 1 can be had"));
}

TEST(ThreadPoolTest, DestructionWithoutWorkJoins) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(3);
}

}  // namespace
}  // namespace kvern
