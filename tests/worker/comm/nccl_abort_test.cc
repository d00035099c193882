// How a rank leaves NCCL: at once, after a while, or never, since NCCL's abort may not return.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cluster/base/check.h"
#include "cluster/base/clock.h"
#include "kernels/simt/runtime/enqueue.h"
#include "tests/worker/comm/gpu_members.h"

namespace kvern {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::vector<float> kOnes(4, 1.0f);

// What ends a test that would never end by itself.
class NcclAbort : public testing::Test {
 protected:
  static constexpr unsigned kMostSeconds = 120;
  NcclAbort() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    alarm(kMostSeconds);
  }
  ~NcclAbort() override { alarm(0); }
};

// In a process that shall end here: says what goes on after its communicator was told to go.
void LeaveForEver(Member& member) {
  std::atexit([] { std::fputs("exit handlers ran\n", stderr); });
  simt::HoldAborts(0, true);
  member.comm.reset();
  std::fputs("went on\n", stderr);
  std::_Exit(0);
}

const auto kNothingElse =
    AllOf(Not(HasSubstr("given back")), Not(HasSubstr("went on")), Not(HasSubstr("exit handlers")));

GpuGroup TwoThatSayWhatTheyGiveBack() {
  return {{0, 1}, true, [] { std::fputs("memory was given back\n", stderr); }};
}

void LoseAPeerAndLeave() {
  alarm(60);
  std::barrier never(2);
  OnGpus(TwoThatSayWhatTheyGiveBack(), [&](int rank, Member& member, absl::Status met) {
    if (!met.ok()) std::_Exit(2);
    if (rank == 1) return never.arrive_and_wait();  // it takes part in nothing
    member.comm->SetTimeout(50 * kMillisecond);
    member.Write(kOnes);
    if (!member.comm->AllReduceSum(member.Row(4)).ok()) std::_Exit(3);
    if (member.device->Synchronize().ok()) std::_Exit(4);
    LeaveForEver(member);
  });
}

// The sum is still in the stream, and writes to memory that only this communicator has.
TEST_F(NcclAbort, OneThatHangsEndsTheProcessWithNothingGivenBack) {
  EXPECT_EXIT(LoseAPeerAndLeave(), testing::ExitedWithCode(1),
              AllOf(HasSubstr("NCCL did not abort within 2 s, this process ends: rank 0 of 2, a "
                              "step with sums over the ranks did not end within 50 ms"),
                    kNothingElse));
}

void LeaveWhatWorks() {
  alarm(60);
  std::barrier never(2);
  OnGpus(TwoThatSayWhatTheyGiveBack(), [&](int rank, Member& member, absl::Status met) {
    if (!met.ok()) std::_Exit(2);
    member.Sum(kOnes);
    if (rank == 1) return never.arrive_and_wait();
    LeaveForEver(member);
  });
}

// Without an error there is more time. "Long" keeps it from the fast tests.
TEST_F(NcclAbort, LongOneThatHangsWithoutAnErrorHasMoreTime) {
  EXPECT_EXIT(LeaveWhatWorks(), testing::ExitedWithCode(1),
              AllOf(HasSubstr("NCCL did not abort within 20 s, this process ends: rank 0 of 2, "
                              "which had nothing left to do"),
                    kNothingElse));
}

void MeetNobody() {
  alarm(60);
  simt::HoldAborts(0, true);
  auto control = NewLocalGroup(2);
  auto device = EmulatedBackend().NewDevice({.index = 0});
  const auto id = EmulatedBackend().NewCommId();
  if (!device.ok() || !id.ok()) std::_Exit(2);
  const auto comm = EmulatedBackend().NewCommunicator(device->get(), std::move(control[0]), *id,
                                                      nullptr, 50 * kMillisecond);
  std::fputs("went on\n", stderr);
  std::_Exit(0);
}

// Nobody else will say who was missing.
TEST_F(NcclAbort, OneThatHangsWhileRanksMeetStillNamesTheAbsent) {
  EXPECT_EXIT(MeetNobody(), testing::ExitedWithCode(1),
              AllOf(HasSubstr("NCCL did not abort within 2 s"),
                    HasSubstr("NCCL did not connect the ranks; rank 1 of 2"), kNothingElse));
}

// Two ranks; how many aborts beyond `before` have ended when memory is given back.
GpuGroup TwoThatCount(int before, std::atomic<int>& ended_when_given_back) {
  return {{0, 1}, true, [before, &ended_when_given_back] {
            ended_when_given_back = simt::AbortsOf(0).ended - before;
          }};
}

TEST_F(NcclAbort, ASlowOneIsWaitedForAndNoLonger) {
  const int before = simt::AbortsOf(0).ended;
  std::atomic<int> ended_when_given_back = -1;
  const GpuGroup group = TwoThatCount(before, ended_when_given_back);
  std::barrier both(2);
  OnGpus(group, [&](int rank, Member& member, absl::Status met) {
    KVERN_CHECK(met.ok()) << met;
    member.Sum(kOnes);
    both.arrive_and_wait();
    if (rank == 0) {
      simt::HoldAborts(0, true);
      std::thread other([&] {
        while (simt::AbortsOf(0).begun == before) std::this_thread::yield();
        EXPECT_EQ(ended_when_given_back, -1);
        simt::HoldAborts(0, false);
      });
      const Time begin = MonotonicNow();
      member.comm.reset();
      EXPECT_LT(MonotonicNow() - begin, 20 * kSecond);  // what it has at most
      other.join();
    }
    both.arrive_and_wait();
  });
  EXPECT_EQ(ended_when_given_back, 1);
}

// Rank 1 never comes to the sum, so that the stream is not done before the abort; a stream that is
// given back waits until it is.
void LeaveInTheMiddle(bool recorded) {
  const int before = simt::AbortsOf(0).ended;
  std::atomic<int> ended_when_given_back = -1;
  const GpuGroup group = TwoThatCount(before, ended_when_given_back);
  std::barrier both(2);
  OnGpus(group, [&](int rank, Member& member, absl::Status met) {
    KVERN_CHECK(met.ok()) << met;
    EXPECT_EQ(member.Sum(kOnes), std::vector<float>(4, 2.0f));
    const auto sum = [&] { return member.comm->AllReduceSum(member.Row(4)); };
    auto graph = member.device->graph_recorder()->Record(sum);
    KVERN_CHECK(graph.ok()) << graph.status();
    both.arrive_and_wait();
    if (rank == 0) {
      EXPECT_TRUE((recorded ? (*graph)->Launch() : sum()).ok());
      graph->reset();
      member.comm.reset();
      member.buffer.reset();
      member.device.reset();
    }
    both.arrive_and_wait();
  });
  EXPECT_EQ(ended_when_given_back, 1);
}

TEST_F(NcclAbort, EndsASumThatNobodyElseComesTo) { LeaveInTheMiddle(false); }
TEST_F(NcclAbort, EndsARecordedSumThatNobodyElseComesTo) { LeaveInTheMiddle(true); }

}  // namespace
}  // namespace kvern
