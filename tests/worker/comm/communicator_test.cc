// The same collectives over threads of a process and over shared memory.
#include "worker/comm/communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cluster/base/rng.h"
#include "worker/comm/local.h"
#include "worker/comm/shm.h"

namespace kvern {
namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;

Group NewShmGroup(int world) {
  auto host = ShmHost::Listen(world);
  if (!host.ok()) return {};
  Group group(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto comm = ConnectShm((*host)->rendezvous(), rank, world, 20 * kSecond);
      if (comm.ok()) group[static_cast<size_t>(rank)] = *std::move(comm);
    });
  }
  auto comm = (*host)->Accept(20 * kSecond);
  if (comm.ok()) group[0] = *std::move(comm);
  for (auto& thread : threads) thread.join();
  return group;
}

enum class Kind { kLocal, kShm };

class CommunicatorTest : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  void SetUp() override {
    auto [kind, world] = GetParam();
    world_ = world;
    group_ = kind == Kind::kLocal ? NewLocalGroup(world) : NewShmGroup(world);
    ASSERT_EQ(group_.size(), static_cast<size_t>(world));
    for (auto& comm : group_) ASSERT_NE(comm, nullptr);
  }

  // Runs `body` as every rank, each in its thread.
  void AsRanks(const std::function<void(Communicator&)>& body) {
    std::vector<std::thread> threads;
    for (auto& comm : group_) threads.emplace_back([&body, &comm] { body(*comm); });
    for (auto& thread : threads) thread.join();
  }

  int world_ = 0;
  Group group_;
};

Tensor Row(std::vector<float>& values) {
  auto count = static_cast<int64_t>(values.size());
  return {values.data(), DType::kF32, 1, count, count};
}

// Values whose sum depends on the order of addition.
float Value(uint64_t round, int rank, size_t i) {
  Rng rng(HashCounter(round, static_cast<uint64_t>(rank), i));
  double scale = rng.Chance(1, 3) ? 1e6 : 1.0;
  return static_cast<float>((UnitInterval(rng.Next()) - 0.5) * scale);
}

std::vector<float> Values(uint64_t round, int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(round, rank, i);
  return values;
}

// A few microseconds to let ranks run in other orders; decides nothing.
void Dawdle(Rng& rng) {
  for (uint64_t i = rng.Below(4); i > 0; --i) std::this_thread::yield();
}

constexpr size_t kSizes[] = {0, 1, 7, 576, 4096, 65536, 65537, 200003};

TEST_P(CommunicatorTest, SumsInRankOrderOnEveryRank) {
  AsRanks([&](Communicator& comm) {
    Rng rng(static_cast<uint64_t>(comm.rank()));
    for (size_t size : kSizes) {
      std::vector<float> mine = Values(size, comm.rank(), size);
      std::vector<float> expected = Values(size, 0, size);
      for (int r = 1; r < world_; ++r) {
        std::vector<float> part = Values(size, r, size);
        for (size_t i = 0; i < size; ++i) expected[i] += part[i];
      }
      Dawdle(rng);
      ASSERT_TRUE(comm.AllReduceSum(Row(mine)).ok());
      // Bit for bit; memcmp may not be given the null of an empty vector.
      ASSERT_TRUE(size == 0 || std::memcmp(mine.data(), expected.data(), size * sizeof(float)) == 0)
          << size << " floats, rank " << comm.rank();
    }
  });
}

TEST_P(CommunicatorTest, GathersInRankOrder) {
  AsRanks([&](Communicator& comm) {
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{700001}}) {
      std::string mine(bytes, static_cast<char>('a' + comm.rank()));
      std::string all(bytes * static_cast<size_t>(world_), '?');
      ASSERT_TRUE(comm.AllGather(mine.data(), bytes, all.data()).ok());
      std::string expected;
      for (int r = 0; r < world_; ++r) expected += std::string(bytes, static_cast<char>('a' + r));
      ASSERT_EQ(all, expected);
    }
  });
}

TEST_P(CommunicatorTest, BroadcastsFromEveryRoot) {
  AsRanks([&](Communicator& comm) {
    for (size_t bytes : {size_t{0}, size_t{3}, size_t{600000}}) {
      for (int root = 0; root < world_; ++root) {
        std::string data(bytes, comm.rank() == root ? static_cast<char>('A' + root) : '?');
        ASSERT_TRUE(comm.Broadcast(data.data(), bytes, root).ok());
        ASSERT_EQ(data, std::string(bytes, static_cast<char>('A' + root)));
      }
    }
  });
}

// A fast root must not overwrite a slot that a slow rank still has to read.
TEST_P(CommunicatorTest, MixedCollectivesKeepTheirOrder) {
  AsRanks([&](Communicator& comm) {
    Rng shared(7);  // the same choices on every rank
    Rng own(static_cast<uint64_t>(comm.rank()) + 100);
    for (uint64_t round = 0; round < 300; ++round) {
      int root = static_cast<int>(shared.Below(static_cast<uint64_t>(world_)));
      uint64_t kind = shared.Below(4);
      Dawdle(own);
      if (kind == 0) {
        std::vector<uint64_t> data(64, comm.rank() == root ? round : 0);
        ASSERT_TRUE(comm.Broadcast(data.data(), data.size() * 8, root).ok());
        ASSERT_EQ(data, std::vector<uint64_t>(64, round));
      } else if (kind == 1) {
        std::vector<float> data(20000, static_cast<float>(comm.rank() + 1));
        ASSERT_TRUE(comm.AllReduceSum(Row(data)).ok());
        ASSERT_EQ(data, std::vector<float>(20000, static_cast<float>(world_ * (world_ + 1) / 2)));
      } else if (kind == 2) {
        uint64_t mine = round * 100 + static_cast<uint64_t>(comm.rank());
        std::vector<uint64_t> all(static_cast<size_t>(world_));
        ASSERT_TRUE(comm.AllGather(&mine, sizeof(mine), all.data()).ok());
        for (size_t r = 0; r < all.size(); ++r) ASSERT_EQ(all[r], round * 100 + r);
      } else {
        ASSERT_TRUE(comm.Barrier().ok());
      }
    }
  });
}

// With somebody to wait for.
using PeersTest = CommunicatorTest;

TEST_P(PeersTest, AbortWakesWaitersAndStays) {
  for (auto& comm : group_) comm->SetTimeout(kTimeMax);
  std::thread waiter([&] {
    absl::Status status = group_[0]->Barrier();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  });
  group_[1]->Abort();
  waiter.join();
  for (auto& comm : group_) {
    std::vector<float> values(3);
    EXPECT_TRUE(absl::IsUnavailable(comm->AllReduceSum(Row(values))));
    EXPECT_TRUE(absl::IsUnavailable(comm->Barrier()));
    EXPECT_TRUE(absl::IsUnavailable(comm->Broadcast(values.data(), 4, 0)));
  }
}

TEST_P(PeersTest, SilentPeersAreNamedAfterTheDeadline) {
  group_[0]->SetTimeout(20 * kMillisecond);
  const absl::Status status = group_[0]->Barrier();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  std::string silent = world_ == 2 ? "rank 1" : "ranks 1";
  for (int r = 2; r < world_; ++r) absl::StrAppend(&silent, ", ", r);
  absl::StrAppend(&silent, " of ", world_, " did not reach the collective before its deadline");
  EXPECT_EQ(std::string(status.message()), silent);
  for (auto& comm : group_) EXPECT_EQ(comm->Barrier(), status);  // whoever comes now
}

TEST_P(PeersTest, WhoCameBeforeTheDeadlineIsNotNamed) {
  if (world_ == 2) GTEST_SKIP() << "takes a third rank";
  int value = 0;
  EXPECT_TRUE(group_[2]->Broadcast(&value, sizeof(value), 2).ok());  // the root waits for nobody
  group_[0]->SetTimeout(20 * kMillisecond);
  const absl::Status status = group_[0]->Broadcast(&value, sizeof(value), 1);
  EXPECT_NE(status.message().find(world_ == 3 ? "rank 1 of 3 did" : "ranks 1, 3"),
            absl::string_view::npos)
      << status;
}

TEST_P(PeersTest, CheckPeersSeesAnAbortWithoutWaiting) {
  for (auto& comm : group_) EXPECT_TRUE(comm->CheckPeers().ok());
  group_[1]->Abort();
  for (auto& comm : group_) EXPECT_TRUE(absl::IsUnavailable(comm->CheckPeers()));
}

TEST_P(PeersTest, CheckPeersNamesAPeerThatLeft) {
  auto last = group_.size() - 1;
  group_[last].reset();
  const absl::Status status = group_[0]->CheckPeers();
  EXPECT_NE(status.message().find(absl::StrCat("rank ", last, " of ", world_, " is gone")),
            absl::string_view::npos)
      << status;
}

TEST_P(PeersTest, PeerThatLeftIsNamed) {
  for (auto& comm : group_) comm->SetTimeout(kTimeMax);
  auto last = group_.size() - 1;
  std::thread leaver([&] {
    EXPECT_TRUE(group_[last]->Barrier().ok());  // what it took part in still succeeds
    group_[last].reset();
  });
  std::vector<std::thread> others;
  for (size_t r = 0; r < last; ++r) {
    others.emplace_back([&, r] {
      EXPECT_TRUE(group_[r]->Barrier().ok());
      absl::Status status = group_[r]->Barrier();
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    });
  }
  leaver.join();
  for (auto& thread : others) thread.join();
}

std::string Name(const testing::TestParamInfo<std::tuple<Kind, int>>& info) {
  bool local = std::get<0>(info.param) == Kind::kLocal;
  return (local ? "Local" : "Shm") + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorTest,
                         testing::Combine(testing::Values(Kind::kLocal, Kind::kShm),
                                          testing::Values(1, 2, 3, 4, 5)),
                         Name);
INSTANTIATE_TEST_SUITE_P(Worlds, PeersTest,
                         testing::Combine(testing::Values(Kind::kLocal, Kind::kShm),
                                          testing::Values(2, 3, 4, 5)),
                         Name);

}  // namespace
}  // namespace kvern
