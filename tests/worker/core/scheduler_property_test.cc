// Random workloads: after every call the audit holds, and in the end nothing is held.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "cluster/base/rng.h"
#include "cluster/capacity/kv_budget.h"
#include "worker/core/scheduler.h"

namespace kvern {
namespace {

// What the test knows of a request that it has sent.
struct Sent {
  Dispatch dispatch;
  std::vector<uint32_t> next_position;
  std::vector<bool> over;
};

class Workload {
 public:
  explicit Workload(uint64_t seed) : rng_(seed) {
    config_.num_blocks = static_cast<uint64_t>(rng_.Between(4, 120));
    config_.max_batch_tokens =
        static_cast<uint32_t>(rng_.Chance(1, 3) ? rng_.Between(1, 8) : rng_.Between(8, 200));
    config_.max_sequences = static_cast<uint32_t>(rng_.Between(8, 40));
    config_.max_sample_rows = static_cast<uint32_t>(rng_.Between(1, 20));
    config_.max_seq_len = 1000;
    config_.vocab_size = 50;
    scheduler_ = std::make_unique<Scheduler>(config_);
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      if (rng_.Chance(1, 3)) Accept();
      if (rng_.Chance(1, 8)) Cancel();
      Step();
    }
    for (int i = 0; !scheduler_->idle(); ++i) {
      ASSERT_LT(i, 200000) << "the scheduler does not drain";
      Step();
    }
    EXPECT_EQ(scheduler_->used_blocks(), 0u);
    EXPECT_EQ(scheduler_->reserved_blocks(), 0u);
    EXPECT_EQ(scheduler_->running(), 0u);
    EXPECT_TRUE(sent_.empty());
  }

  uint64_t tokens() const { return tokens_; }

 private:
  Dispatch RandomDispatch() {
    Dispatch dispatch;
    dispatch.request_id = {1, ++last_id_};
    dispatch.epoch = static_cast<Epoch>(rng_.Below(3));
    size_t length =
        static_cast<size_t>(rng_.Chance(1, 3) ? 16 * rng_.Between(1, 5) : rng_.Between(1, 100));
    dispatch.prompt.assign(length, static_cast<uint32_t>(rng_.Below(50)));
    dispatch.n = static_cast<uint32_t>(rng_.Chance(1, 2) ? rng_.Between(1, 5) : 1);
    dispatch.sampling.max_tokens = static_cast<uint32_t>(rng_.Between(1, 60));
    dispatch.sampling.ignore_eos = rng_.Chance(1, 2);
    dispatch.eos_ids = {0};
    dispatch.sampling.stop_token_ids = {1};
    if (rng_.Chance(1, 3)) {
      for (uint32_t i = 0; i < dispatch.n; ++i) {
        dispatch.emitted.emplace_back(rng_.Below(dispatch.sampling.max_tokens), 5u);
      }
    }
    return dispatch;
  }

  void Accept() {
    Dispatch dispatch = RandomDispatch();
    uint64_t need =
        BlocksNeeded(dispatch.prompt.size(), dispatch.sampling.max_tokens, dispatch.n, kBlockSize);
    bool fits = scheduler_->reserved_blocks() + need <= config_.num_blocks &&
                scheduler_->running() + dispatch.n <= config_.max_sequences;
    WorkerEffects effects;
    scheduler_->Accept(0, dispatch, effects);
    scheduler_->Audit();
    ASSERT_EQ(effects.nacks.empty(), fits);
    if (!fits) return;
    Sent sent;
    sent.dispatch = dispatch;
    sent.over.assign(dispatch.n, false);
    sent.next_position.assign(dispatch.n, 0);
    for (size_t i = 0; i < dispatch.emitted.size(); ++i) {
      sent.next_position[i] = static_cast<uint32_t>(dispatch.emitted[i].size());
    }
    sent_[dispatch.request_id] = std::move(sent);
  }

  void Cancel() {
    if (sent_.empty()) return;
    auto it = sent_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(rng_.Below(sent_.size())));
    CancelDispatch cancel;
    cancel.request_id = it->first;
    cancel.epoch = it->second.dispatch.epoch;
    cancel.all_choices = rng_.Chance(1, 2);
    cancel.choice = static_cast<uint32_t>(rng_.Below(it->second.dispatch.n));
    WorkerEffects effects;
    scheduler_->Cancel(0, cancel, effects);
    scheduler_->Audit();
    std::vector<bool>& over = it->second.over;
    if (cancel.all_choices) over.assign(over.size(), true);
    over[cancel.choice] = true;
    Forget(it);
  }

  void Step() {
    StepPlan plan;
    if (!scheduler_->Plan(0, plan)) {
      ASSERT_TRUE(scheduler_->idle());
      return;
    }
    scheduler_->Audit();
    ASSERT_GT(plan.NumTokens(), 0u);
    ASSERT_LE(plan.NumTokens(), config_.max_batch_tokens);
    if (rng_.Chance(1, 10)) Cancel();  // between plan and commit
    StepResult result;
    result.step_id = plan.step_id;
    for (const PlanRow& row : plan.rows) {
      if (!row.sample) continue;
      result.samples.push_back({row.slot, static_cast<uint32_t>(rng_.Below(50)), {}});
    }
    ASSERT_LE(result.samples.size(), config_.max_sample_rows);
    WorkerEffects effects;
    scheduler_->Commit(0, result, effects);
    scheduler_->Audit();
    for (const TokenRun& run : effects.runs) Take(run);
  }

  void Take(const TokenRun& run) {
    auto it = sent_.find(run.request_id);
    ASSERT_NE(it, sent_.end()) << "a token of a request that is over";
    Sent& sent = it->second;
    ASSERT_EQ(run.epoch, sent.dispatch.epoch);
    ASSERT_FALSE(sent.over[run.choice]);
    ASSERT_EQ(run.position, sent.next_position[run.choice]);
    ++tokens_;
    uint32_t output = ++sent.next_position[run.choice];
    ASSERT_LE(output, sent.dispatch.sampling.max_tokens);
    if (run.finish_reason == FinishReason::kNone) return;
    if (run.finish_reason == FinishReason::kLength) {
      ASSERT_EQ(output, sent.dispatch.sampling.max_tokens);
    }
    sent.over[run.choice] = true;
    Forget(it);
  }

  void Forget(std::map<RequestId, Sent>::iterator it) {
    const std::vector<bool>& over = it->second.over;
    if (std::find(over.begin(), over.end(), false) == over.end()) sent_.erase(it);
  }

  Rng rng_;
  SchedulerConfig config_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, Sent> sent_;
  uint64_t last_id_ = 0;
  uint64_t tokens_ = 0;
};

TEST(SchedulerProperty, RandomWorkloadsDrainToNothing) {
  uint64_t tokens = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Workload workload(seed);
    workload.Run(150);
    if (HasFatalFailure()) return;
    tokens += workload.tokens();
  }
  EXPECT_GT(tokens, 100000u);  // the workloads did something
}

}  // namespace
}  // namespace kvern
