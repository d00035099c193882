// The router core with groups that do what they are told at once: nothing but the core costs time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/base/check.h"
#include "cluster/capacity/kv_budget.h"
#include "router/core/router.h"

namespace kvern {

struct CoreSetup {
  uint32_t groups = 8;
  uint64_t blocks = 1u << 20;  // per group
  uint32_t clients = 4;
  uint32_t queue_entries = 1024;
  uint32_t max_seq_len = 1u << 22;
};

// Peers: clients are 1, 2, ..., the leaders of the groups 1001, 1002, ...
class CoreUnderTest {
 public:
  struct Running {
    RequestId id;
    Epoch epoch = 0;
    uint32_t produced = 0;
    uint64_t need = 0;
  };
  struct FakeGroup {
    PeerId peer = 0;
    StepReport report;
    std::deque<Running> running;  // the oldest first
  };

  explicit CoreUnderTest(const CoreSetup& setup)
      : config_(ConfigOf(setup)), router_(config_, 1, nullptr) {
    for (uint32_t i = 1; i <= setup.clients; ++i) {
      Step(ClientSaid{i, Hello{i, "", "bench"}});
    }
    groups_.resize(setup.groups);
    for (uint32_t i = 0; i < setup.groups; ++i) JoinAs(i, setup.blocks);
    EndTurn();
    for (FakeGroup& group : groups_) Report(group);
    EndTurn();
  }

  // Virtual time goes on by this much with each turn.
  void set_turn(Duration turn) { turn_ = turn; }

  GenerateRequest NewRequest(uint32_t prompt_tokens, uint32_t max_tokens) {
    GenerateRequest request;
    request.request_id = {1, ++last_id_};
    if (prompt_.size() != prompt_tokens) prompt_ = std::vector<uint32_t>(prompt_tokens, 5u);
    request.prompt_token_ids = prompt_;  // To make one is not the core's work.
    request.max_tokens = max_tokens;
    request.seed = 1;
    request.service_class = ServiceClass::kStandard;
    request.ttft_deadline_ms = ttft_deadline_ms_;
    return request;
  }
  void set_ttft_deadline_ms(uint32_t deadline) { ttft_deadline_ms_ = deadline; }

  void Step(RouterEvent event) { router_.Step(now_, std::move(event), effects_); }
  // Clients take turns.
  void Ask(GenerateRequest request) {
    PeerId client = 1 + last_id_ % config_.max_clients;
    Step(ClientSaid{client, std::move(request)});
  }

  // A report without tokens.
  void Report(FakeGroup& group) { Step(WorkerSaid{group.peer, group.report}); }

  // Adds one token of `running` to the group's next report; `last`: it ends with it.
  static void AddToken(FakeGroup& group, Running& running, bool last) {
    TokenRun& run = group.report.runs.emplace_back();
    run.request_id = running.id;
    run.epoch = running.epoch;
    run.position = running.produced++;
    run.token_ids = {7};
    if (!last) return;
    run.finish_reason = FinishReason::kStop;
    group.report.reserved_blocks -= running.need;
  }

  // Likewise for all that have none yet: they are the last to have come.
  static void AddFirstTokens(FakeGroup& group) {
    for (auto it = group.running.rbegin(); it != group.running.rend() && it->produced == 0; ++it) {
      AddToken(group, *it, false);
    }
  }

  // Sends the report that was put together.
  void SendReport(FakeGroup& group) {
    AdvanceStep(group);
    Step(WorkerSaid{group.peer, std::move(group.report)});
    group.report = counts_;
  }
  // The counts of one more step, of what the group's next report says; keeps a copy of them.
  void AdvanceStep(FakeGroup& group) {
    ++group.report.step_id;
    group.report.step_us += 10'000;
    std::vector<TokenRun> runs = std::exchange(group.report.runs, {});
    counts_ = group.report;
    group.report.runs = std::move(runs);
  }
  const StepReport& counts() const { return counts_; }

  // Flushes the router, lets the groups accept what they are sent, drops the effects.
  void EndTurn() {
    now_ += turn_;
    router_.Flush(now_, effects_);
    for (const ToWorker& effect : effects_.to_workers) Obey(effect);
    for (const ToClient& effect : effects_.to_clients) Count(effect);
    effects_.Clear();
  }

  Router& router() { return router_; }
  RouterEffects& effects() { return effects_; }
  std::vector<FakeGroup>& groups() { return groups_; }
  Time now() const { return now_; }
  uint64_t refused() const { return refused_; }
  uint64_t running() const {
    uint64_t running = 0;
    for (const FakeGroup& group : groups_) running += group.running.size();
    return running;
  }

 private:
  static RouterConfig ConfigOf(const CoreSetup& setup) {
    RouterConfig config;
    config.model = "none";
    config.max_seq_len = setup.max_seq_len;
    config.vocab_size = 1000;
    config.router_incarnation = 1;
    config.queue_entries = setup.queue_entries;
    config.max_clients = setup.clients;
    // Virtual time runs ahead of the real one; nobody here falls silent.
    config.client_lease = config.group_lease = int64_t{1'000'000} * kSecond;
    return config;
  }

  void JoinAs(uint32_t index, uint64_t blocks) {
    FakeGroup& group = groups_[index];
    group.peer = 1001 + index;
    group.report.group_incarnation = 1;
    Join join;
    join.group = "group-" + std::to_string(index);
    join.group_incarnation = 1;
    join.world = 1;
    join.model = "none";
    join.kv_blocks = blocks;
    join.max_seq_len = config_.max_seq_len;
    join.vocab_size = config_.vocab_size;
    join.max_batch_tokens = 8192;
    Step(WorkerSaid{group.peer, std::move(join)});
  }

  void Obey(const ToWorker& effect) {
    const auto* commands = std::get_if<Commands>(&effect.message);
    KVERN_CHECK(!std::holds_alternative<JoinRefused>(effect.message));
    if (commands == nullptr) return;
    FakeGroup& group = groups_[effect.worker - 1001];
    group.report.acked_command = commands->sequence;
    for (const Dispatch& dispatch : commands->dispatches) {
      uint64_t need =
          BlocksNeeded(dispatch.prompt.size(), dispatch.sampling.max_tokens, 1, kBlockSize);
      group.report.reserved_blocks += need;
      group.report.prefill_tokens += dispatch.prompt.size();
      group.running.push_back({dispatch.request_id, dispatch.epoch, 0, need});
    }
  }

  void Count(const ToClient& effect) {
    if (std::holds_alternative<RequestError>(effect.message)) ++refused_;
  }

  RouterConfig config_;
  Router router_;
  RouterEffects effects_;
  std::vector<FakeGroup> groups_;
  StepReport counts_;
  Time now_ = kSecond;
  Duration turn_ = 5 * kMicrosecond;
  uint32_t ttft_deadline_ms_ = 4'000'000'000;
  uint64_t last_id_ = 0;
  TokenIds prompt_;  // of the last request
  uint64_t refused_ = 0;
};

}  // namespace kvern
