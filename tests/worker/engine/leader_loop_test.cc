// The loops of all ranks, as threads over a local group, with a fake executor.
#include "worker/engine/leader_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "tests/worker/engine/fake_executor.h"
#include "tests/worker/engine/message_box.h"
#include "worker/comm/local.h"
#include "worker/engine/local_port.h"
#include "worker/engine/rank_loop.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

constexpr Incarnation kIncarnation = 77;

// A group of `world` ranks, one thread each.
class TestGroup {
 public:
  explicit TestGroup(int world, uint64_t fail_rank_1_at = 0)
      : fail_rank_1_at_(fail_rank_1_at),
        port_([this](WorkerToRouter message) { box_.Put(std::move(message)); }),
        statuses_(static_cast<size_t>(world)) {
    comms_ = NewLocalGroup(world);
  }
  // Commands said before are there together when the leader first looks.
  void Start() {
    int world = static_cast<int>(comms_.size());
    for (int rank = 0; rank < world; ++rank) {
      threads_.emplace_back([this, rank, world] { RunRank(rank, world); });
    }
  }
  ~TestGroup() { Join(); }

  void Join() {
    if (threads_.empty()) return;
    port_.Close();
    Wait();
  }
  // For groups that end by themselves.
  void Wait() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // With the next sequence number.
  void Say(std::vector<Dispatch> dispatches, std::vector<CancelDispatch> cancels = {},
           bool drain = false) {
    port_.Push({kIncarnation, ++sequence_, std::move(dispatches), std::move(cancels), drain});
  }
  void SkipSequence() { ++sequence_; }
  void Push(Commands commands) { port_.Push(std::move(commands)); }

  MessageBox& box() { return box_; }
  const absl::Status& status(size_t rank) const { return statuses_[rank]; }

 private:
  void RunRank(int rank, int world) {
    size_t index = static_cast<size_t>(rank);
    FakeExecutor executor(rank == 1 ? fail_rank_1_at_ : 0);
    PlanChannel channel(comms_[index].get());
    if (rank > 0) {
      statuses_[index] = RunRankLoop(channel, executor);
    } else {
      SchedulerConfig config{100, 24, 100, 16, 1000, FakeExecutor::kVocab};
      Scheduler scheduler(config);
      LeaderConfig leader{kIncarnation, static_cast<uint32_t>(world), 5 * kMillisecond};
      statuses_[0] = LeaderLoop(leader, &scheduler, &executor, &channel, &port_).Run();
    }
    if (!statuses_[index].ok()) comms_[index]->Abort();
  }

  uint64_t fail_rank_1_at_;
  MessageBox box_;
  LocalPort port_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<absl::Status> statuses_;
  std::vector<std::thread> threads_;
  uint64_t sequence_ = 0;
};

Dispatch Request(uint64_t id, uint32_t prompt_tokens, uint32_t max_tokens, uint32_t n = 1) {
  Dispatch dispatch;
  dispatch.request_id = {0, id};
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    dispatch.prompt.push_back(static_cast<uint32_t>(id + i) % FakeExecutor::kVocab);
  }
  dispatch.sampling.max_tokens = max_tokens;
  dispatch.n = n;
  dispatch.eos_ids = {0};
  return dispatch;
}

TEST(LeaderLoop, RunsManyRequestsOnThreeRanks) {
  TestGroup group(3);
  group.Start();
  std::vector<Dispatch> requests;
  for (uint64_t id = 1; id <= 12; ++id) {
    uint32_t length = static_cast<uint32_t>(id * 7 % 40 + 1);
    requests.push_back(Request(id, length, 6, id % 3 == 0 ? 2 : 1));
    group.Say({requests.back()});
  }
  group.Say({}, {}, true);
  std::map<std::pair<uint64_t, uint32_t>, std::vector<uint32_t>> said;
  uint64_t last_step = 0;
  while (true) {
    WorkerToRouter message = group.box().Take();
    if (std::holds_alternative<Leave>(message)) break;
    StepReport report = std::get<StepReport>(message);
    EXPECT_TRUE(report.nacks.empty());
    EXPECT_TRUE(report.step_id == last_step || report.step_id == last_step + 1);
    EXPECT_LE(report.used_blocks, report.reserved_blocks);
    EXPECT_EQ(report.ages.size(), 3u);
    last_step = report.step_id;
    for (const TokenRun& run : report.runs) {
      std::vector<uint32_t>& tokens = said[{run.request_id.low, run.choice}];
      EXPECT_EQ(run.position, tokens.size());
      tokens.insert(tokens.end(), run.token_ids.begin(), run.token_ids.end());
    }
  }
  group.Wait();
  for (size_t rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(group.status(rank).ok()) << group.status(rank);
  for (const Dispatch& request : requests) {
    for (uint32_t choice = 0; choice < request.n; ++choice) {
      EXPECT_EQ((said[{request.request_id.low, choice}]),
                FakeExecutor::Expected(request.prompt, choice, 6));
    }
  }
}

// The report after a cancel has freed the blocks, however long the request would have run.
TEST(LeaderLoop, ACancelFreesBlocksWithinAStep) {
  TestGroup group(2);
  group.Start();
  group.Say({Request(1, 10, 900)});
  group.box().TakeReportWhere([](const StepReport& report) { return report.step_id >= 3; });
  group.Say({}, {CancelDispatch{{0, 1}, 0, true, 0}});
  StepReport report =
      group.box().TakeReportWhere([](const StepReport& each) { return each.acked_command == 2; });
  EXPECT_EQ(report.used_blocks, 0u);
  EXPECT_EQ(report.reserved_blocks, 0u);
  EXPECT_EQ(report.running, 0u);
  EXPECT_TRUE(report.runs.empty());
}

TEST(LeaderLoop, ACancelReachesWhatWasDispatchedInTheSameTurn) {
  TestGroup group(1);
  group.Start();
  group.Say({Request(1, 10, 900)}, {CancelDispatch{{0, 1}, 0, true, 0}});
  StepReport report =
      group.box().TakeReportWhere([](const StepReport& each) { return each.acked_command == 1; });
  EXPECT_EQ(report.reserved_blocks, 0u);
}

TEST(LeaderLoop, AnIdleLeaderKeepsReporting) {
  TestGroup group(2);
  group.Start();
  for (int i = 0; i < 5; ++i) {
    WorkerToRouter message = group.box().Take();
    EXPECT_EQ(std::get<StepReport>(message).step_id, 0u);
  }
  group.Say({Request(1, 3, 2)});
  StepReport report = group.box().TakeReportWhere(
      [](const StepReport& each) { return each.step_id == 2 && each.running == 0; });
  EXPECT_EQ(report.acked_command, 1u);
}

TEST(LeaderLoop, NothingNewIsTakenWhileDraining) {
  TestGroup group(1);
  group.Say({Request(1, 3, 500)});
  group.Say({}, {}, true);
  group.Say({Request(2, 3, 5)});
  group.Start();
  StepReport report =
      group.box().TakeReportWhere([](const StepReport& each) { return !each.nacks.empty(); });
  EXPECT_EQ(report.nacks[0].request_id.low, 2u);
  EXPECT_EQ(report.nacks[0].code, ErrorCode::kUnavailable);
}

TEST(LeaderLoop, AGapInTheCommandsEndsTheGroup) {
  TestGroup group(2);
  group.Start();
  group.Say({});
  group.SkipSequence();
  group.Say({});
  group.Wait();
  EXPECT_THAT(group.status(0).message(), HasSubstr("command 3 came after command 1"));
  EXPECT_EQ(group.status(1).code(), absl::StatusCode::kUnavailable) << group.status(1);
}

TEST(LeaderLoop, ARepeatedCommandEndsTheGroup) {
  TestGroup group(1);
  group.Start();
  group.Push({kIncarnation, 1, {}, {}, false});
  group.Push({kIncarnation, 1, {}, {}, false});
  group.Wait();
  EXPECT_THAT(group.status(0).message(), HasSubstr("command 1 came after command 1"));
}

TEST(LeaderLoop, CommandsForAnotherIncarnationEndTheGroup) {
  TestGroup group(1);
  group.Start();
  group.Push({kIncarnation + 1, 1, {}, {}, false});
  group.Wait();
  EXPECT_THAT(group.status(0).message(), HasSubstr("incarnation 78"));
}

TEST(LeaderLoop, ARankThatFailsEndsTheGroupWithItsOwnError) {
  TestGroup group(3, /*fail_rank_1_at=*/4);
  group.Start();
  group.Say({Request(1, 3, 500)});
  group.Wait();
  EXPECT_THAT(group.status(1).message(), HasSubstr("step 4 fails on purpose"));
  EXPECT_EQ(group.status(0).code(), absl::StatusCode::kUnavailable) << group.status(0);
  EXPECT_EQ(group.status(2).code(), absl::StatusCode::kUnavailable) << group.status(2);
}

}  // namespace
}  // namespace kvern
