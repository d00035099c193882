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
  TestGroup(uint32_t plans_in_flight, int world)
      : plans_in_flight_(plans_in_flight),
        port_([this](WorkerToRouter message) { box_.Put(std::move(message)); }),
        executors_(static_cast<size_t>(world)),
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
  // Before Start or after Wait.
  FakeExecutor& executor(size_t rank) { return executors_[rank]; }
  const absl::Status& status(size_t rank) const { return statuses_[rank]; }

 private:
  void RunRank(int rank, int world) {
    size_t index = static_cast<size_t>(rank);
    FakeExecutor& executor = executors_[index];
    PlanChannel channel(comms_[index].get());
    if (rank > 0) {
      statuses_[index] = RunRankLoop(channel, executor, nullptr);
    } else {
      SchedulerConfig config{100, 24, 100, 16, 1000, FakeExecutor::kVocab, plans_in_flight_};
      Scheduler scheduler(config);
      LeaderConfig leader{kIncarnation, static_cast<uint32_t>(world), 5 * kMillisecond};
      statuses_[0] = LeaderLoop(leader, &scheduler, &executor, &channel, &port_).Run();
    }
    if (!statuses_[index].ok()) comms_[index]->Abort();
  }

  const uint32_t plans_in_flight_;
  MessageBox box_;
  LocalPort port_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<FakeExecutor> executors_;
  std::vector<absl::Status> statuses_;
  std::vector<std::thread> threads_;
  uint64_t sequence_ = 0;
};

Dispatch Request(uint64_t id, uint32_t prompt_tokens, uint32_t max_tokens, uint32_t n = 1) {
  Dispatch dispatch;
  dispatch.request_id = {0, id};
  std::vector<uint32_t> prompt;
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    prompt.push_back(static_cast<uint32_t>(id + i) % FakeExecutor::kVocab);
  }
  dispatch.prompt = std::move(prompt);
  dispatch.sampling.max_tokens = max_tokens;
  dispatch.n = n;
  dispatch.eos_ids = {0};
  return dispatch;
}

// With one plan in flight and with two.
class Loops : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(PlansInFlight, Loops, ::testing::Values(1u, 2u));

TEST_P(Loops, RunsManyRequestsOnThreeRanks) {
  TestGroup group(GetParam(), 3);
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

// The overlap itself: a step is planned and prepared, on every rank, before the one before it is
// finished.
TEST_P(Loops, AStepIsPreparedWhileTheOneBeforeRuns) {
  TestGroup group(GetParam(), 2);
  group.Say({Request(1, 3, 4)});
  group.Say({}, {}, true);
  group.Start();
  group.Wait();
  const char* one_by_one =
      "prepare 1\nfinish 1\nprepare 2\nfinish 2\nprepare 3\nfinish 3\nprepare 4\nfinish 4\n";
  const char* ahead =
      "prepare 1\nprepare 2\nfinish 1\nprepare 3\nfinish 2\nprepare 4\nfinish 3\nfinish 4\n";
  for (size_t rank : {0u, 1u}) {
    EXPECT_TRUE(group.status(rank).ok()) << group.status(rank);
    EXPECT_EQ(group.executor(rank).calls(), GetParam() == 1 ? one_by_one : ahead);
  }
}

// A stop id shows only when its step is finished: with two plans in flight there is a step too
// many, whose token nobody sees.
TEST_P(Loops, NothingIsSaidAfterAStopId) {
  TestGroup group(GetParam(), 2);
  Dispatch request = Request(1, 3, 10);
  const std::vector<uint32_t> said = FakeExecutor::Expected(request.prompt, 0, 2);
  request.sampling.stop_token_ids = {said[1]};
  group.Say({request});
  group.Say({}, {}, true);
  group.Start();
  std::vector<uint32_t> heard;
  StepReport last;
  while (true) {
    WorkerToRouter message = group.box().Take();
    if (std::holds_alternative<Leave>(message)) break;
    last = std::get<StepReport>(message);
    for (const TokenRun& run : last.runs) heard.push_back(run.token_ids[0]);
  }
  group.Wait();
  EXPECT_EQ(heard, said);
  EXPECT_EQ(last.step_id, GetParam() == 1 ? 2u : 3u);
  EXPECT_EQ(last.used_blocks, 0u);
}

// The report after a cancel has freed the blocks, however long the request would have run.
TEST_P(Loops, ACancelFreesBlocksWithinAStep) {
  TestGroup group(GetParam(), 2);
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

TEST_P(Loops, ACancelReachesWhatWasDispatchedInTheSameTurn) {
  TestGroup group(GetParam(), 1);
  group.Start();
  group.Say({Request(1, 10, 900)}, {CancelDispatch{{0, 1}, 0, true, 0}});
  StepReport report =
      group.box().TakeReportWhere([](const StepReport& each) { return each.acked_command == 1; });
  EXPECT_EQ(report.reserved_blocks, 0u);
}

TEST_P(Loops, AnIdleLeaderKeepsReporting) {
  TestGroup group(GetParam(), 2);
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

TEST_P(Loops, NothingNewIsTakenWhileDraining) {
  TestGroup group(GetParam(), 1);
  group.Say({Request(1, 3, 500)});
  group.Say({}, {}, true);
  group.Say({Request(2, 3, 5)});
  group.Start();
  StepReport report =
      group.box().TakeReportWhere([](const StepReport& each) { return !each.nacks.empty(); });
  EXPECT_EQ(report.nacks[0].request_id.low, 2u);
  EXPECT_EQ(report.nacks[0].code, ErrorCode::kUnavailable);
}

TEST_P(Loops, AGapInTheCommandsEndsTheGroup) {
  TestGroup group(GetParam(), 2);
  group.Start();
  group.Say({});
  group.SkipSequence();
  group.Say({});
  group.Wait();
  EXPECT_THAT(group.status(0).message(), HasSubstr("command 3 came after command 1"));
  EXPECT_EQ(group.status(1).code(), absl::StatusCode::kUnavailable) << group.status(1);
}

TEST_P(Loops, ARepeatedCommandEndsTheGroup) {
  TestGroup group(GetParam(), 1);
  group.Start();
  group.Push({kIncarnation, 1, {}, {}, false});
  group.Push({kIncarnation, 1, {}, {}, false});
  group.Wait();
  EXPECT_THAT(group.status(0).message(), HasSubstr("command 1 came after command 1"));
}

TEST_P(Loops, CommandsForAnotherIncarnationEndTheGroup) {
  TestGroup group(GetParam(), 1);
  group.Start();
  group.Push({kIncarnation + 1, 1, {}, {}, false});
  group.Wait();
  EXPECT_THAT(group.status(0).message(), HasSubstr("incarnation 78"));
}

TEST_P(Loops, ARankThatFailsEndsTheGroupWithItsOwnError) {
  TestGroup group(GetParam(), 3);
  group.executor(1).FailAt(4);
  group.Start();
  group.Say({Request(1, 3, 500)});
  group.Wait();
  EXPECT_THAT(group.status(1).message(), HasSubstr("step 4 fails on purpose"));
  EXPECT_EQ(group.status(0).code(), absl::StatusCode::kUnavailable) << group.status(0);
  EXPECT_EQ(group.status(2).code(), absl::StatusCode::kUnavailable) << group.status(2);
}

// The leader says with each plan what it drew in the newest step that it had finished by then.
TEST_P(Loops, ARankThatDrewOtherTokensEndsTheGroup) {
  TestGroup group(GetParam(), 2);
  group.executor(1).DifferAt(5);
  group.Say({Request(1, 3, 500)});
  group.Start();
  group.Wait();
  EXPECT_THAT(group.status(1).message(), HasSubstr("other samples"));
  EXPECT_EQ(group.status(0).code(), absl::StatusCode::kUnavailable) << group.status(0);
  const char* end = GetParam() == 1 ? "finish 5\nprepare 6\n" : "finish 5\nprepare 7\n";
  EXPECT_THAT(group.executor(1).calls(), ::testing::EndsWith(end));
}

// What ends a rank that is told of these steps, in this order. The last one must.
absl::Status EndAfterSteps(const std::vector<uint64_t>& steps, FakeExecutor& executor) {
  std::vector<std::unique_ptr<Communicator>> comms = NewLocalGroup(2);
  absl::Status end;
  std::thread rank([&] {
    PlanChannel channel(comms[1].get());
    end = RunRankLoop(channel, executor, nullptr);
    comms[1]->Abort();
  });
  PlanChannel leader(comms[0].get());
  for (uint64_t step : steps) {
    StepPlan plan;
    plan.step_id = step;
    if (!leader.Send(plan, /*finish=*/false).ok()) break;
  }
  rank.join();
  return end;
}

TEST(PlanChannel, APlanThatIsNotTheNextEndsTheRank) {
  const struct {
    std::vector<uint64_t> steps;
    const char* error;
    const char* calls;
  } kCases[] = {
      {{1, 1}, "plan of step 1 came after step 1", "prepare 1\n"},                // again
      {{1, 3}, "plan of step 3 came after step 1", "prepare 1\n"},                // one is missing
      {{1, 2, 1}, "plan of step 1 came after step 2", "prepare 1\nprepare 2\n"},  // of before
      {{2}, "plan of step 2 came after step 0", ""},
      {{0}, "plan of step 0 came after step 0", ""},
  };
  for (const auto& each : kCases) {
    FakeExecutor executor;
    const absl::Status end = EndAfterSteps(each.steps, executor);
    EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(end.message(), each.error);
    EXPECT_EQ(executor.calls(), each.calls);  // It never sees that plan.
  }
}

}  // namespace
}  // namespace kvern
