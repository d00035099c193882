// What the router core costs by itself on one thread: refusals, admissions with their completions,
// tokens through core and codec, and whether a decision's cost depends on the prompt's length.
// Limits to compare with: 200,000 refusals/s, 100,000 admissions + completions/s, 1,000,000
// tokens/s.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>

#include "schemas/codec.h"
#include "tests/bench/core_under_test.h"

namespace kvern {
namespace {

constexpr uint32_t kPromptTokens = 500;

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// One more request, and a turn in which every group answers what it was sent.
void AskAndAnswer(CoreUnderTest& core, uint32_t max_tokens) {
  core.Ask(core.NewRequest(kPromptTokens, max_tokens));
  core.EndTurn();
  for (auto& group : core.groups()) {
    core.AddFirstTokens(group);
    if (!group.report.runs.empty()) core.SendReport(group);
  }
  core.EndTurn();
}

// Brings `running` requests onto each group; each has produced some tokens.
void FillGroups(CoreUnderTest& core, uint32_t running, uint32_t max_tokens) {
  while (core.running() < core.groups().size() * running) AskAndAnswer(core, max_tokens);
  for (int step = 0; step < 3; ++step) {
    for (auto& group : core.groups()) {
      for (auto& request : group.running) core.AddToken(group, request, false);
      core.SendReport(group);
    }
    core.EndTurn();
  }
  core.router().Audit();
}

// Outputs of many lengths end, so that the core has something to predict from.
void TeachLengths(CoreUnderTest& core) {
  for (uint32_t i = 0; i < 200; ++i) {
    core.Ask(core.NewRequest(16, 1000));
    core.EndTurn();
  }
  for (uint32_t step = 0; core.running() > 0; ++step) {
    for (auto& group : core.groups()) {
      std::deque<CoreUnderTest::Running> stay;
      for (auto& request : group.running) {
        bool last = request.produced > 2 * (request.id.low % 200);
        core.AddToken(group, request, last);
        if (!last) stay.push_back(request);
      }
      group.running = std::move(stay);
      core.SendReport(group);
    }
    core.EndTurn();
  }
}

// ---- Refusals

enum Reason : int64_t { kQueueFull, kWaitTooLong, kNeverFits };

// Eight groups of 128 running requests; every further request is refused. A turn is as long as
// the 64 refusals that it has take at the limit.
void BM_Refusals(benchmark::State& state) {
  auto reason = static_cast<Reason>(state.range(0));
  CoreSetup setup;
  setup.blocks = 6000;  // 128 prompts and some tokens
  setup.max_seq_len = 100'000;
  CoreUnderTest core(setup);
  core.set_turn(10 * kMillisecond);
  TeachLengths(core);
  uint32_t wanted = reason == kQueueFull ? UINT32_MAX : 1800;  // running and waiting
  for (uint32_t i = 0; i < wanted && core.refused() == 0; ++i) AskAndAnswer(core, 400);
  if (reason == kWaitTooLong) core.set_ttft_deadline_ms(100);
  uint32_t max_tokens = reason == kNeverFits ? 99'900 : 400;
  constexpr int kPerTurn = 64;
  core.set_turn(kPerTurn * 5 * kMicrosecond);
  uint64_t before = core.refused();
  for (auto _ : state) {
    for (int i = 0; i < kPerTurn; ++i) core.Ask(core.NewRequest(kPromptTokens, max_tokens));
    core.EndTurn();
  }
  int64_t asked = kPerTurn * static_cast<int64_t>(state.iterations());
  KVERN_CHECK_EQ(core.refused() - before, static_cast<uint64_t>(asked));
  state.SetItemsProcessed(asked);
  state.counters["running"] = static_cast<double>(core.running());
}
BENCHMARK(BM_Refusals)->Arg(kQueueFull)->Arg(kWaitTooLong)->Arg(kNeverFits);

// ---- Admissions and completions

// range: groups, running requests on each, ends in one report. A turn is one group's report, in
// which its oldest end and its newest have their first token, and as many new requests, which take
// their place. Virtual time passes as it
// does at the limit: what the core does every so often has its share.
void BM_AdmissionsAndCompletions(benchmark::State& state) {
  CoreSetup setup;
  setup.groups = static_cast<uint32_t>(state.range(0));
  auto running = static_cast<uint32_t>(state.range(1));
  auto ends = static_cast<uint32_t>(state.range(2));
  CoreUnderTest core(setup);
  core.set_turn(10 * kMillisecond);
  TeachLengths(core);
  FillGroups(core, running, 400);
  core.set_turn(ends * 10 * kMicrosecond);
  uint64_t refused = core.refused();
  size_t next = 0;
  for (auto _ : state) {
    CoreUnderTest::FakeGroup& group = core.groups()[next++ % core.groups().size()];
    for (uint32_t i = 0; i < ends && !group.running.empty(); ++i) {
      core.AddToken(group, group.running.front(), true);
      group.running.pop_front();
    }
    core.AddFirstTokens(group);
    core.SendReport(group);
    for (uint32_t i = 0; i < ends; ++i) core.Ask(core.NewRequest(kPromptTokens, 400));
    core.EndTurn();
  }
  core.router().Audit();
  KVERN_CHECK_EQ(core.refused(), refused);
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * ends);
}
BENCHMARK(BM_AdmissionsAndCompletions)
    ->ArgNames({"groups", "running", "ends"})
    ->Args({2, 64, 1})
    ->Args({8, 64, 1})
    ->Args({8, 64, 4})
    ->Args({8, 150, 1})
    ->Args({8, 150, 4})
    ->Args({64, 128, 1});

// ---- Tokens

// The next step of every group, encoded: one token of each running request.
std::vector<std::string> EncodeStep(CoreUnderTest& core) {
  std::vector<std::string> reports;
  for (auto& group : core.groups()) {
    for (auto& request : group.running) core.AddToken(group, request, false);
    core.AdvanceStep(group);
    reports.push_back(EncodeWorkerToRouter(group.report));
    group.report = core.counts();
  }
  return reports;
}

// range: sequences of each of 64 groups, reports in one turn. From the bytes of the workers'
// reports to the bytes for four clients; encoding the reports is the workers' work and not timed.
void BM_Tokens(benchmark::State& state) {
  CoreSetup setup;
  setup.groups = 64;
  CoreUnderTest core(setup);
  core.set_turn(kMillisecond);
  auto sequences = static_cast<uint32_t>(state.range(0));
  auto per_turn = static_cast<size_t>(state.range(1));
  FillGroups(core, sequences, 1u << 16);
  uint64_t bytes = 0;
  for (auto _ : state) {
    std::vector<std::string> reports = EncodeStep(core);
    auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < reports.size(); ++i) {
      Decoded<WorkerToRouter> decoded = DecodeWorkerToRouter(std::as_bytes(std::span(reports[i])));
      KVERN_CHECK(decoded.ok()) << decoded.error;
      core.Step(WorkerSaid{core.groups()[i].peer, std::move(decoded.message)});
      if ((i + 1) % per_turn != 0) continue;
      core.router().Flush(core.now(), core.effects());
      for (const ToClient& effect : core.effects().to_clients) {
        bytes += EncodeRouterToClient(effect.message, 1).size();
      }
      core.effects().Clear();
    }
    state.SetIterationTime(Seconds(std::chrono::steady_clock::now() - start));
    core.EndTurn();
  }
  core.router().Audit();
  auto tokens = static_cast<int64_t>(state.iterations()) * 64 * sequences;
  state.SetItemsProcessed(tokens);
  state.counters["bytes/token"] = static_cast<double>(bytes) / static_cast<double>(tokens);
}
BENCHMARK(BM_Tokens)
    ->ArgNames({"sequences", "reports/turn"})
    ->Args({64, 1})
    ->Args({128, 1})
    ->Args({128, 8})
    ->Args({128, 64})
    ->UseManualTime();

// ---- Prompts

// range: bytes of a prompt as token ids. Admission and completion of a request on one of eight
// groups with 64 running; making the request is the codec's work and not timed.
void BM_PromptLength(benchmark::State& state) {
  CoreSetup setup;
  setup.blocks = 1u << 24;
  CoreUnderTest core(setup);
  core.set_turn(10 * kMillisecond);
  TeachLengths(core);
  FillGroups(core, 64, 400);
  core.set_turn(10 * kMicrosecond);
  auto tokens = static_cast<uint32_t>(state.range(0)) / 4;
  size_t next = 0;
  for (auto _ : state) {
    GenerateRequest request = core.NewRequest(tokens, 400);
    CoreUnderTest::FakeGroup& group = core.groups()[next++ % core.groups().size()];
    if (!group.running.empty()) {
      core.AddToken(group, group.running.front(), true);
      group.running.pop_front();
    }
    core.AddFirstTokens(group);
    auto start = std::chrono::steady_clock::now();
    core.SendReport(group);
    core.Ask(std::move(request));
    core.EndTurn();
    state.SetIterationTime(Seconds(std::chrono::steady_clock::now() - start));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}
BENCHMARK(BM_PromptLength)
    ->ArgName("bytes")
    ->Arg(200)
    ->Arg(20'000)
    ->Arg(220'000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvern

BENCHMARK_MAIN();
