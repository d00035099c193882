// What a step costs in the scheduler alone: Plan + Commit + AuditSums of 150 running decodes, and
// with requests that come, wait and are preempted. Limit to compare with: 10 us per step.
#include <benchmark/benchmark.h>

#include <memory>

#include "cluster/base/check.h"
#include "worker/core/scheduler.h"

namespace kvern {
namespace {

constexpr uint32_t kRunning = 150;

class Steps {
 public:
  explicit Steps(uint64_t num_blocks) {
    SchedulerConfig config;
    config.num_blocks = num_blocks;
    config.max_batch_tokens = 1024;
    config.max_sequences = 4096;
    config.max_sample_rows = 1024;
    config.max_seq_len = 1u << 20;
    config.vocab_size = 1000;
    scheduler_ = std::make_unique<Scheduler>(config);
  }

  void Accept(uint32_t prompt, uint32_t max_tokens) {
    Dispatch dispatch;
    dispatch.request_id = {1, ++last_id_};
    dispatch.prompt = std::vector<uint32_t>(prompt, 7);
    dispatch.sampling.max_tokens = max_tokens;
    dispatch.service_class = ServiceClass::kStandard;
    WorkerEffects effects;
    scheduler_->Accept(0, dispatch, effects);
    KVERN_CHECK(effects.nacks.empty());
  }

  void Step() {
    KVERN_CHECK(scheduler_->Plan(0, plan_));
    result_.step_id = plan_.step_id;
    result_.samples.clear();
    for (const PlanRow& row : plan_.rows) {
      if (row.sample) result_.samples.push_back({row.slot, 7, {}});
    }
    scheduler_->Commit(0, result_, effects_);
    scheduler_->AuditSums();  // as the leader does
    effects_.runs.clear();
  }

  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  uint64_t last_id_ = 0;
  StepPlan plan_;
  StepResult result_;
  WorkerEffects effects_;
};

void BM_Decodes(benchmark::State& state) {
  Steps steps(1u << 20);
  for (uint32_t i = 0; i < kRunning; ++i) steps.Accept(500, 1u << 19);
  while (steps.scheduler().used_blocks() < 500 / 16 * kRunning) steps.Step();
  for (int i = 0; i < 100; ++i) steps.Step();
  for (auto _ : state) steps.Step();
}
BENCHMARK(BM_Decodes)->Iterations(20'000);

// Prompts of 500 and outputs of 200 in a pool of 7,500 blocks, `range` requests waiting.
void BM_Overload(benchmark::State& state) {
  Steps steps(7500);
  uint32_t target = static_cast<uint32_t>(state.range(0)) + kRunning;
  auto step = [&] {
    while (steps.scheduler().running() < target) steps.Accept(500, 200);
    steps.Step();
  };
  for (int i = 0; i < 1000; ++i) step();
  for (auto _ : state) step();
  StepReport report;
  steps.scheduler().FillReport(report);
  state.counters["preemptions"] = static_cast<double>(report.preemptions);
  state.counters["decodes"] = static_cast<double>(report.running - report.waiting);
}
BENCHMARK(BM_Overload)->Arg(100)->Arg(10'000)->Iterations(20'000);

}  // namespace
}  // namespace kvern

BENCHMARK_MAIN();
