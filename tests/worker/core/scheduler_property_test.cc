// Random workloads of both classes over tiny pools, with one plan in flight or two: after every
// call the audit holds, every row finds its tokens' keys and values, nobody loses, repeats or
// changes a token by preemption, and in the end nothing is held.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "cluster/base/rng.h"
#include "cluster/capacity/kv_budget.h"
#include "tests/worker/core/checked_rank.h"
#include "worker/core/scheduler.h"

namespace kvern {
namespace {

constexpr uint32_t kMaxId = 1u << 20;

// What the test knows of a request that it has sent.
struct Sent {
  Dispatch dispatch;
  uint64_t worst_case = 0;  // blocks
  std::vector<uint32_t> next_position;
  std::vector<bool> over;
  uint32_t preemptions = 0;
};

class Workload {
 public:
  explicit Workload(uint64_t seed) : rng_(seed) {
    // Half of the pools are tight: short prompts, long outputs, and blocks run out before anything
    // else.
    tight_ = rng_.Chance(1, 2);
    config_.num_blocks = static_cast<uint64_t>(rng_.Between(4, tight_ ? 40 : 120));
    config_.max_batch_tokens = static_cast<uint32_t>(
        !tight_ && rng_.Chance(1, 2) ? rng_.Between(1, 8) : rng_.Between(8, 200));
    config_.max_sequences = static_cast<uint32_t>(rng_.Between(tight_ ? 30 : 4, 40));
    config_.max_sample_rows = static_cast<uint32_t>(rng_.Between(tight_ ? 10 : 1, 20));
    config_.max_seq_len = 1000;
    config_.vocab_size = kMaxId;
    config_.plans_in_flight = static_cast<uint32_t>(rng_.Between(1, 2));
    cancels_ = rng_.Chance(1, 2);
    standard_of_4_ = rng_.Below(5);  // 0: all are guaranteed, 4: all are standard
    scheduler_ = std::make_unique<Scheduler>(config_);
    rank_ = std::make_unique<CheckedRank>(config_.num_blocks);
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      if (rng_.Chance(1, 3)) Accept();
      if (rng_.Chance(1, 8)) Cancel();
      Step();
    }
    for (int i = 0; !scheduler_->idle() && !::testing::Test::HasFatalFailure(); ++i) {
      ASSERT_LT(i, 200000) << "the scheduler does not drain";
      Step();
    }
    StepReport report = Report();
    EXPECT_EQ(report.used_blocks, 0u);
    EXPECT_EQ(report.reserved_blocks, 0u);
    EXPECT_EQ(report.running, 0u);
    EXPECT_EQ(report.waiting, 0u);
    EXPECT_TRUE(sent_.empty());
  }

  uint64_t tokens() const { return tokens_; }
  uint64_t planned_ahead() const { return planned_ahead_; }
  uint64_t preemptions() const { return preemptions_; }
  uint64_t preempted_twice() const { return preempted_twice_; }
  uint64_t recomputed() const { return rank_->recomputed_tokens(); }

 private:
  using SentMap = std::map<RequestId, Sent>;  // in order of acceptance

  StepReport Report() const {
    StepReport report;
    scheduler_->FillReport(report);
    return report;
  }

  Dispatch RandomDispatch() {
    Dispatch dispatch;
    dispatch.request_id = {1, ++last_id_};
    dispatch.epoch = static_cast<Epoch>(rng_.Below(3));
    int64_t longest = tight_ ? 32 : 100;
    size_t length = static_cast<size_t>(rng_.Chance(1, 3) ? 16 * rng_.Between(1, longest / 16)
                                                          : rng_.Between(1, longest));
    dispatch.prompt = std::vector<uint32_t>(length, static_cast<uint32_t>(last_id_));
    dispatch.n = static_cast<uint32_t>(rng_.Chance(1, 2) ? rng_.Between(1, 5) : 1);
    dispatch.sampling.max_tokens = static_cast<uint32_t>(rng_.Between(1, tight_ ? 150 : 60));
    dispatch.sampling.ignore_eos = rng_.Chance(1, 2);
    dispatch.eos_ids = {0};
    dispatch.sampling.stop_token_ids = {1};
    if (rng_.Below(4) < standard_of_4_) dispatch.service_class = ServiceClass::kStandard;
    if (rng_.Chance(1, 3)) AddEmitted(dispatch);
    return dispatch;
  }

  // A later epoch: what the model would have said, up to some length or before a stop.
  void AddEmitted(Dispatch& dispatch) {
    for (uint32_t choice = 0; choice < dispatch.n; ++choice) {
      std::vector<uint32_t> emitted;
      for (size_t left = rng_.Below(dispatch.sampling.max_tokens); left > 0; --left) {
        uint32_t token = CheckedRank::Token(dispatch.prompt[0], choice, emitted.size());
        if (token <= 1) break;
        emitted.push_back(token);
      }
      dispatch.emitted.push_back(std::move(emitted));
    }
  }

  // The rule of acceptance, from what the test knows.
  bool Fits(const Dispatch& dispatch, uint64_t worst_case) const {
    uint64_t guaranteed = 0;
    uint64_t largest_standard = 0;
    for (const auto& [id, sent] : sent_) {
      if (sent.dispatch.service_class == ServiceClass::kGuaranteed) {
        guaranteed += sent.worst_case;
      } else {
        largest_standard = std::max(largest_standard, sent.worst_case);
      }
    }
    bool is_guaranteed = dispatch.service_class == ServiceClass::kGuaranteed;
    uint64_t others = guaranteed + (is_guaranteed ? largest_standard : 0);
    return others + worst_case <= config_.num_blocks && dispatch.n <= config_.max_sequences;
  }

  void Accept() {
    Sent sent;
    sent.dispatch = RandomDispatch();
    const Dispatch& dispatch = sent.dispatch;
    sent.worst_case =
        BlocksNeeded(dispatch.prompt.size(), dispatch.sampling.max_tokens, dispatch.n, kBlockSize);
    bool fits = Fits(dispatch, sent.worst_case);
    WorkerEffects effects;
    scheduler_->Accept(0, dispatch, effects);
    scheduler_->Audit();
    ASSERT_EQ(effects.nacks.empty(), fits);
    if (!fits) return;
    sent.over.assign(dispatch.n, false);
    sent.next_position.assign(dispatch.n, 0);
    for (size_t i = 0; i < dispatch.emitted.size(); ++i) {
      sent.next_position[i] = static_cast<uint32_t>(dispatch.emitted[i].size());
    }
    RequestId id = dispatch.request_id;
    sent_[id] = std::move(sent);
  }

  void Cancel() {
    if (sent_.empty() || !cancels_) return;
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

  // Fills the pipeline, as the leader's loop does, and commits the oldest plan in it.
  void Step() {
    while (!scheduler_->full() && Plan()) {
      if (rng_.Chance(1, 10)) Cancel();  // between plan and commit
    }
    if (::testing::Test::HasFatalFailure()) return;
    if (drawn_.empty()) {
      ASSERT_TRUE(scheduler_->idle());
      return;
    }
    ASSERT_EQ(scheduler_->plans_in_flight(), drawn_.size());
    if (drawn_.size() > 1) ++planned_ahead_;
    WorkerEffects effects;
    now_ += 3 * kMicrosecond;
    scheduler_->Commit(now_, drawn_.front(), effects);
    drawn_.pop_front();
    scheduler_->Audit();
    ++steps_;
    for (const TokenRun& run : effects.runs) Take(run);
    CheckReport();
    if (drawn_.empty()) now_ += kMillisecond;  // idle time, which is not a step's
  }

  bool Plan() {
    StepPlan plan;
    bool planned = scheduler_->Plan(now_, plan);
    scheduler_->Audit();
    if (planned) Execute(plan);
    return planned;
  }

  // At once; the scheduler learns later what was drawn.
  void Execute(const StepPlan& plan) {
    ASSERT_GT(plan.NumTokens(), 0u);
    ASSERT_LE(plan.NumTokens(), config_.max_batch_tokens);
    CheckPreemptions(plan);
    drawn_.push_back(rank_->Execute(plan));
    ASSERT_LE(drawn_.back().samples.size(), config_.max_sample_rows);
    prefilled_.push_back(rank_->prefill_tokens());
  }

  // A slot with blocks that is released while its choice is not over was preempted.
  void CheckPreemptions(const StepPlan& plan) {
    std::set<RequestId> preempted;
    for (Slot slot : plan.releases) {
      const CheckedRank::Sequence& sequence = rank_->at(slot);
      if (sequence.table.empty()) continue;
      auto it = sent_.find(RequestId{1, sequence.id});
      if (it == sent_.end() || it->second.over[sequence.choice]) continue;
      // Its last token is drawn but not committed.
      size_t output = sequence.tokens.size() - sequence.prompt_tokens;
      if (output == it->second.dispatch.sampling.max_tokens) continue;
      preempted.insert(it->first);
    }
    for (const RequestId& id : preempted) {
      Sent& sent = sent_.at(id);
      ASSERT_EQ(sent.dispatch.service_class, ServiceClass::kStandard);
      ASSERT_NE(id, sent_.begin()->first) << "the oldest was preempted";
      ASSERT_LE(++sent.preemptions, kMaxPreemptions);
      ++preemptions_;
      if (sent.preemptions == kMaxPreemptions) ++preempted_twice_;
    }
  }

  void CheckReport() {
    StepReport report = Report();
    ASSERT_LE(report.used_blocks, config_.num_blocks);
    ASSERT_LE(report.waiting, report.running);
    ASSERT_EQ(report.preemptions, preemptions_);
    ASSERT_EQ(report.step_us, steps_ * 3);
    ASSERT_EQ(report.prefill_tokens, prefilled_.front());
    prefilled_.pop_front();
    // A cancel may also make tokens be computed again, or come between plan and commit.
    if (cancels_ || !drawn_.empty()) return;
    ASSERT_EQ(report.recomputed_tokens, rank_->recomputed_tokens());
  }

  void Take(const TokenRun& run) {
    auto it = sent_.find(run.request_id);
    ASSERT_NE(it, sent_.end()) << "a token of a request that is over";
    Sent& sent = it->second;
    ASSERT_EQ(run.epoch, sent.dispatch.epoch);
    ASSERT_FALSE(sent.over[run.choice]);
    ASSERT_EQ(run.position, sent.next_position[run.choice]);
    ASSERT_EQ(run.token_ids[0],
              CheckedRank::Token(sent.dispatch.prompt[0], run.choice, run.position));
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

  void Forget(SentMap::iterator it) {
    const std::vector<bool>& over = it->second.over;
    if (std::find(over.begin(), over.end(), false) == over.end()) sent_.erase(it);
  }

  Rng rng_;
  SchedulerConfig config_;
  bool tight_ = false;
  bool cancels_ = false;
  uint64_t standard_of_4_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<CheckedRank> rank_;
  std::deque<StepResult> drawn_;    // of the plans in flight
  std::deque<uint64_t> prefilled_;  // tokens, when each of them had been executed
  SentMap sent_;
  Time now_ = 0;
  uint64_t last_id_ = 0;
  uint64_t steps_ = 0;
  uint64_t planned_ahead_ = 0;
  uint64_t tokens_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t preempted_twice_ = 0;
};

TEST(SchedulerProperty, RandomWorkloadsDrainToNothing) {
  uint64_t tokens = 0;
  uint64_t planned_ahead = 0;
  uint64_t preemptions = 0;
  uint64_t preempted_twice = 0;
  uint64_t recomputed = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Workload workload(seed);
    workload.Run(150);
    if (HasFatalFailure()) return;
    tokens += workload.tokens();
    planned_ahead += workload.planned_ahead();
    preemptions += workload.preemptions();
    preempted_twice += workload.preempted_twice();
    recomputed += workload.recomputed();
  }
  // The workloads did something.
  EXPECT_GT(tokens, 100000u);
  EXPECT_GT(planned_ahead, 10000u);
  EXPECT_GT(preemptions, 300u);
  EXPECT_GT(preempted_twice, 50u);
  EXPECT_GT(recomputed, 10000u);
}

}  // namespace
}  // namespace kvern
