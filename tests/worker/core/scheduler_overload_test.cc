// Far more standard requests than the pool holds at once: nothing is lost, preemption stays within
// its bounds, the group is faster than one that reserves worst cases, and afterwards all is as
// before.
#include <gtest/gtest.h>

#include <map>

#include "tests/worker/core/checked_rank.h"
#include "worker/core/scheduler.h"

namespace kvern {
namespace {

class Group {
 public:
  explicit Group(uint64_t num_blocks) : rank_(num_blocks) {
    SchedulerConfig config;
    config.num_blocks = num_blocks;
    config.max_sequences = 64;
    config.max_seq_len = 1000;
    config.vocab_size = 1u << 20;
    scheduler_ = std::make_unique<Scheduler>(config);
  }

  // False: refused.
  bool Accept(uint32_t id, ServiceClass service_class, uint32_t prompt, uint32_t max_tokens) {
    Dispatch dispatch;
    dispatch.request_id = {1, id};
    dispatch.prompt = std::vector<uint32_t>(prompt, id);
    dispatch.sampling.max_tokens = max_tokens;
    dispatch.sampling.ignore_eos = true;
    dispatch.service_class = service_class;
    WorkerEffects effects;
    scheduler_->Accept(0, dispatch, effects);
    return effects.nacks.empty();
  }

  // The requests that got a token.
  std::vector<uint32_t> Step() {
    StepPlan plan;
    EXPECT_TRUE(scheduler_->Plan(0, plan));
    scheduler_->Audit();
    WorkerEffects effects;
    scheduler_->Commit(0, rank_.Execute(plan), effects);
    scheduler_->Audit();
    std::vector<uint32_t> ids;
    for (const TokenRun& run : effects.runs) {
      uint32_t id = static_cast<uint32_t>(run.request_id.low);
      EXPECT_EQ(run.position, tokens_[id]++);
      ids.push_back(id);
    }
    return ids;
  }

  StepReport Report() const {
    StepReport report;
    scheduler_->FillReport(report);
    return report;
  }
  bool idle() const { return scheduler_->idle(); }
  uint32_t tokens(uint32_t id) { return tokens_[id]; }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  CheckedRank rank_;
  std::map<uint32_t, uint32_t> tokens_;
};

constexpr uint32_t kRequests = 40;
constexpr uint32_t kBlocks = 24;  // a request needs 2 at first and 5 in the end
constexpr uint32_t kPrompt = 20;
constexpr uint32_t kOutput = 60;

// Steps until all are done when each is sent as soon as it is taken.
int StepsFor(ServiceClass service_class, Group& group) {
  uint32_t sent = 0;
  for (int steps = 0;; ++steps) {
    while (sent < kRequests && group.Accept(sent + 1, service_class, kPrompt, kOutput)) ++sent;
    if (sent == kRequests && group.idle()) return steps;
    group.Step();
  }
}

TEST(SchedulerOverload, IsFasterThanReservingWorstCases) {
  Group reserving(kBlocks);
  Group standard(kBlocks);
  int steps_reserving = StepsFor(ServiceClass::kGuaranteed, reserving);
  int steps_standard = StepsFor(ServiceClass::kStandard, standard);
  EXPECT_LT(steps_standard, steps_reserving * 2 / 3);
  EXPECT_EQ(reserving.Report().preemptions, 0u);
  for (uint32_t id = 1; id <= kRequests; ++id) EXPECT_EQ(standard.tokens(id), kOutput);
}

TEST(SchedulerOverload, Case06PreemptionIsBoundedAndCounted) {
  Group group(kBlocks);
  StepsFor(ServiceClass::kStandard, group);
  StepReport report = group.Report();
  EXPECT_GT(report.preemptions, 0u);
  EXPECT_LE(report.preemptions, uint64_t{kRequests} * kMaxPreemptions);
  EXPECT_GT(report.recomputed_tokens, 0u);
  // Each preemption redoes at most a whole request.
  EXPECT_LE(report.recomputed_tokens, report.preemptions * (kPrompt + kOutput));
  EXPECT_EQ(report.prefill_tokens, kRequests * kPrompt + report.recomputed_tokens +
                                       // the token drawn last had not been computed
                                       report.preemptions);
}

TEST(SchedulerOverload, Case07ComesBackToFullSpeed) {
  Group group(kBlocks);
  StepsFor(ServiceClass::kStandard, group);
  uint64_t preemptions = group.Report().preemptions;
  // As many as fit run to their ends without a step that does not serve them all.
  for (uint32_t id = 101; id <= 104; ++id) {
    ASSERT_TRUE(group.Accept(id, ServiceClass::kStandard, kPrompt, kOutput));
  }
  for (uint32_t i = 0; i < kOutput; ++i) EXPECT_EQ(group.Step().size(), 4u);
  EXPECT_TRUE(group.idle());
  EXPECT_EQ(group.Report().preemptions, preemptions);
  EXPECT_EQ(group.Report().used_blocks, 0u);
}

TEST(SchedulerOverload, TheOldestGetsATokenInEveryStep) {
  Group group(kBlocks);
  // It has the fewest tokens to redo for a while.
  ASSERT_TRUE(group.Accept(1, ServiceClass::kStandard, 1, kOutput));
  for (uint32_t id = 2; id <= kRequests; ++id) {
    ASSERT_TRUE(group.Accept(id, ServiceClass::kStandard, kPrompt, kOutput));
  }
  for (uint32_t i = 0; i < kOutput; ++i) EXPECT_EQ(group.Step()[0], 1u);
  EXPECT_EQ(group.tokens(1), kOutput);
  EXPECT_GT(group.Report().preemptions, 0u);
}

// One request that needs every block of the pool, beside others: it ends, and so do they.
TEST(SchedulerOverload, Case09OneRequestMayNeedTheWholePool) {
  Group group(kBlocks);
  uint32_t whole = kBlocks * kBlockSize - kPrompt;
  for (uint32_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(group.Accept(id, ServiceClass::kStandard, kPrompt, whole));
  }
  EXPECT_FALSE(group.Accept(5, ServiceClass::kStandard, kPrompt, whole + 1));
  EXPECT_FALSE(group.Accept(6, ServiceClass::kGuaranteed, 1, 1));
  while (!group.idle()) group.Step();
  for (uint32_t id = 1; id <= 4; ++id) EXPECT_EQ(group.tokens(id), whole);
}

}  // namespace
}  // namespace kvern
