// Whole groups over tiny models: what a request says does not depend on the ranks' threads, on the
// batch around it or on how its prompt was cut, and it is what the reference says.
#include "worker/engine/local_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/sanitizers.h"
#include "tests/worker/engine/group_runs.h"
#include "tests/worker/engine/message_box.h"
#include "worker/comm/local.h"
#include "worker/engine/rank.h"

namespace kvern {
namespace {

// 32 requests of several lengths and kinds; the first is the one looked at.
std::vector<Dispatch> Batch() {
  std::vector<Dispatch> requests;
  for (uint32_t i = 0; i < 32; ++i) {
    requests.push_back(NewRequest(i + 1, Prompt(i == 0 ? 33 : 1 + i * 7 % 60, i), 12, 0.9f));
    if (i % 5 == 4) requests.back().n = 3;
    if (i % 4 == 2) requests.back().sampling.temperature = 0;
    if (i % 4 == 3) requests.back().sampling.top_p = 0.8f;
  }
  return requests;
}

class SameTokens : public ::testing::TestWithParam<uint32_t> {};

TEST_P(SameTokens, AloneInABatchAndInChunks) {
  Shape shape;
  shape.world = GetParam();
  std::vector<Dispatch> batch = Batch();
  Answers expected = RunGroup(shape, batch);
  ASSERT_EQ(expected.size(), 32u + 6u * 2u);
  for (uint32_t max_batch_tokens : {1u, 7u, 64u}) {
    shape.max_batch_tokens = max_batch_tokens;
    EXPECT_EQ(RunGroup(shape, batch), expected) << "max_batch_tokens " << max_batch_tokens;
  }
  shape.max_batch_tokens = 512;
  shape.threads = 3;
  EXPECT_EQ(RunGroup(shape, batch), expected);
  for (size_t i : {0u, 2u, 3u, 4u, 9u}) {
    Answers alone = RunGroup(shape, {batch[i]});
    for (const auto& [key, tokens] : alone) EXPECT_EQ(tokens, expected[key]) << "request " << i + 1;
  }
}

// Choices draw different tokens, and the same ones when their prompt ends with a block.
TEST_P(SameTokens, ChoicesOfOneRequest) {
  Shape shape;
  shape.world = GetParam();
  for (uint32_t length : {1u, 15u, 16u, 17u, 32u}) {
    SCOPED_TRACE(length);
    Dispatch request = NewRequest(1, Prompt(length, 3), 20, 1.0f);
    request.n = 4;
    Answers together = RunGroup(shape, {request});
    ASSERT_EQ(together.size(), 4u);
    EXPECT_NE((together[{1, 0}]), (together[{1, 1}]));
    shape.max_batch_tokens = 3;
    EXPECT_EQ(RunGroup(shape, {request}), together);
    shape.max_batch_tokens = 512;
    // One choice of several draws what a request of one choice draws.
    request.n = 1;
    EXPECT_EQ((RunGroup(shape, {request})[{1, 0}]), (together[{1, 0}]));
  }
}

// A later epoch goes on where the earlier one was cut, with the same tokens.
TEST_P(SameTokens, ALaterEpochGoesOn) {
  Shape shape;
  shape.world = GetParam();
  Dispatch request = NewRequest(1, Prompt(32, 8), 20, 1.0f);
  request.n = 2;
  Answers whole = RunGroup(shape, {request});
  Tokens first = whole[{1, 0}];
  Tokens second = whole[{1, 1}];
  request.epoch = 1;
  request.emitted = {Tokens(first.begin(), first.begin() + 7), {}};
  MessageBox box;
  auto group = LocalGroup::Open(
      OpenModel(shape.model), ConfigOf(shape),
      [&](WorkerToRouter message) { box.Put(std::move(message)); }, [](const absl::Status&) {});
  ASSERT_TRUE(group.ok());
  (*group)->Start(GroupStart{1, 5, 400, "", 10000, {}});
  (*group)->Push(Commands{5, 1, {request}, {}, true});
  Tokens rest_of_first;
  Tokens all_of_second;
  while (true) {
    WorkerToRouter message = box.Take();
    if (std::holds_alternative<Leave>(message)) break;
    for (const TokenRun& run : std::get<StepReport>(message).runs) {
      Tokens& tokens = run.choice == 0 ? rest_of_first : all_of_second;
      EXPECT_EQ(run.position, tokens.size() + (run.choice == 0 ? 7 : 0));
      tokens.push_back(run.token_ids[0]);
    }
  }
  EXPECT_EQ(rest_of_first, Tokens(first.begin() + 7, first.end()));
  EXPECT_EQ(all_of_second, second);
}

// A pool that is too small for all: who is preempted computes its tokens again and goes on with the
// same ones, whatever its sampler had counted before.
TEST_P(SameTokens, PreemptedInASmallPool) {
  Shape shape;
  shape.world = GetParam();
  std::vector<Dispatch> requests;
  for (uint32_t i = 0; i < 10; ++i) {
    requests.push_back(NewRequest(i + 1, Prompt(10 + i * 7 % 40, i), 50, i % 3 == 0 ? 0.0f : 1.0f));
    requests.back().service_class = ServiceClass::kStandard;
    if (i % 4 == 1) requests.back().n = 3;
    if (i % 2 == 1) requests.back().sampling.repetition_penalty = 1.3f;
    if (i % 3 == 2) requests.back().sampling.frequency_penalty = 0.7f;
    if (i % 5 == 2) requests.back().sampling.top_p = 0.8f;
  }
  StepReport last;
  Answers expected = RunGroup(shape, requests, &last);
  ASSERT_EQ(expected.size(), 10u + 3u * 2u);
  EXPECT_EQ(last.preemptions, 0u);
  EXPECT_EQ(last.recomputed_tokens, 0u);
  shape.kv_blocks = 20;
  EXPECT_EQ(RunGroup(shape, requests, &last), expected);
  EXPECT_GE(last.preemptions, 5u);
  EXPECT_GE(last.recomputed_tokens, 100u);
  EXPECT_GT(last.prefill_tokens, last.recomputed_tokens);
  EXPECT_GT(last.step_us, 0u);
  EXPECT_EQ(last.waiting, 0u);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SameTokens, ::testing::Values(1u, 2u));

// Greedy answers against the reference, up to the first step where two tokens are nearly as good.
TEST(LocalGroup, GreedyFollowsTheReference) {
  for (const char* model : {"llama_9h_3kv", "llama_gqa", "llama_mha"}) {
    SCOPED_TRACE(model);
    std::ifstream in(std::string("tests/golden/tiny/") + model + "/golden.json");
    nlohmann::json golden = nlohmann::json::parse(in);
    std::vector<Dispatch> requests;
    for (const auto& golden_case : golden["cases"]) {
      requests.push_back(NewRequest(requests.size() + 1, golden_case["ids"].get<Tokens>(),
                                    static_cast<uint32_t>(golden_case["greedy"].size()), 0.0f));
    }
    for (uint32_t world : {1u, 2u}) {
      Answers answers = RunGroup(Shape{model, world, 64, 1}, requests);
      size_t compared = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        const Tokens& tokens = answers[{i + 1, 0}];
        const auto& greedy = golden["cases"][i]["greedy"];
        for (size_t step = 0; step < greedy.size(); ++step) {
          if (greedy[step]["gap"].get<double>() < 1e-2) break;
          ASSERT_EQ(tokens[step], greedy[step]["id"].get<uint32_t>()) << "case " << i;
          ++compared;
        }
      }
      EXPECT_GT(compared, 100u);
    }
  }
}

TEST(LocalGroup, ReportsItsPhasesAndMemory) {
  auto group = LocalGroup::Open(
      OpenModel("llama_9h_3kv"), ConfigOf(Shape{"llama_9h_3kv", 2, 512, 1}),
      [](const WorkerToRouter&) {}, [](const absl::Status&) {});
  ASSERT_TRUE(group.ok()) << group.status();
  const std::vector<Join>& joins = (*group)->joins();
  // 3 KV heads over 2 ranks: 2 + 1.
  EXPECT_EQ(joins[0].bytes_per_token, 2u * 3 * 2 * 16 * 4);
  EXPECT_EQ(joins[1].bytes_per_token, 2u * 3 * 1 * 16 * 4);
  EXPECT_EQ(joins[0].weights_fingerprint, joins[1].weights_fingerprint);
  EXPECT_EQ(joins[0].kv_blocks, 400u);
  EXPECT_GT(joins[1].weights_bytes, 0u);
  EXPECT_GT(joins[1].workspace_bytes, 0u);
  ASSERT_EQ(joins[0].startup.size(), 3u);
  EXPECT_EQ(joins[0].startup[0].name, "weights");
}

TEST(LocalGroup, AGpuGivesWhatItHasFreeToKeysAndValues) {
  constexpr uint64_t kMemory = 256 << 20;
  setenv("KVERN_EMULATED_MEMORY", std::to_string(kMemory).c_str(), 1);
  RankConfig config = ConfigOf(Shape{"llama_9h_3kv", 2, 64});
  config.gpu = &EmulatedBackend();
  config.kv_blocks = 0;
  auto group = LocalGroup::Open(
      OpenModel("llama_9h_3kv"), config, [](const WorkerToRouter&) {}, [](const absl::Status&) {});
  unsetenv("KVERN_EMULATED_MEMORY");
  ASSERT_TRUE(group.ok()) << group.status();
  for (const Join& join : (*group)->joins()) {
    const uint64_t bytes = join.kv_blocks * join.bytes_per_token * kBlockSize;
    // A tenth is kept, and less than a quarter goes to weights and workspace.
    EXPECT_LE(bytes, kMemory / 10 * 9 - join.weights_bytes - join.workspace_bytes);
    EXPECT_GE(bytes, kMemory / 10 * 9 - kMemory / 4);
  }
  // By which the GPUs will find each other.
  EXPECT_FALSE((*group)->joins()[0].comm_id.empty());
  EXPECT_TRUE((*group)->joins()[1].comm_id.empty());
}

// What a GPU does at first use is done, and has failed, before the group serves.
TEST(LocalGroup, AGpuIsTriedBeforeItServes) {
  const RankConfig config = ConfigOf(Shape{"llama_9h_3kv", 1, 64, 1, 40, &EmulatedBackend()});
  absl::StatusOr<std::unique_ptr<Rank>> rank = Rank::Open(*OpenModel("llama_9h_3kv"), config);
  ASSERT_TRUE(rank.ok()) << rank.status();
  simt::BreakDevice(0, cudaErrorLaunchFailure);
  const absl::Status met = (*rank)->SetCommunicator(std::move(NewLocalGroup(1)[0]), {}, kSecond);
  simt::BreakDevice(0, cudaSuccess);
  EXPECT_FALSE(met.ok());
}

TEST(LocalGroup, AGpuIsTriedWithinTheLongestSequenceAndTheLargestStep) {
  for (const auto& [longest, step] : {std::pair(1u, 64u), {2u, 64u}, {15u, 64u}, {64u, 1u}}) {
    RankConfig config = ConfigOf(Shape{"llama_9h_3kv", 1, step, 1, 40, &EmulatedBackend()});
    config.max_seq_len = longest;
    absl::StatusOr<std::unique_ptr<Rank>> rank = Rank::Open(*OpenModel("llama_9h_3kv"), config);
    ASSERT_TRUE(rank.ok()) << rank.status();
    const absl::Status met =
        (*rank)->SetCommunicator(std::move(NewLocalGroup(1)[0]), {}, 30 * kSecond);
    EXPECT_TRUE(met.ok()) << longest << ", " << step << ": " << met;
  }
}

// What AddressSanitizer watches behind each piece of a GPU's memory. It is a part of the workspace,
// but that behind keys and values is in nobody's sum: blocks are counted by their tokens.
#ifdef KVERN_SIMT_ASAN
constexpr uint64_t kGap = 256;
#else
constexpr uint64_t kGap = 0;
#endif

// Weights, workspace, keys and values are one allocation, on ranks of different size, and nothing
// is allocated when steps are computed, nor (on one rank) when they are recorded and replayed.
TEST(LocalGroup, WhatAGpuReportsIsWhatItAllocates) {
  uint64_t workspace = 0;  // of the rank 0 before
  struct Case {
    const char* model;
    uint32_t world;
    bool batch_invariant;
  };
  for (const auto& [model, world, batch_invariant] :
       {Case{"llama_gqa", 1, false}, Case{"llama_attn_mlp_bias", 2, false},
        Case{"llama_9h_3kv", 2, false}, Case{"llama_9h_3kv", 2, true}}) {
    const Shape shape{model, world, 64, 1, 40, &EmulatedBackend(), batch_invariant};
    const simt::MallocTotals before[] = {simt::MallocsOf(0), simt::MallocsOf(1)};
    std::vector<Join> joins;
    RunGroup(shape, {NewRequest(1, Prompt(5, 1), 5, 0.9f)}, nullptr, &joins);
    ASSERT_EQ(joins.size(), world);
    for (size_t r = 0; r < joins.size(); ++r) {
      const Join& join = joins[r];
      const simt::MallocTotals after = simt::MallocsOf(static_cast<int>(r));
      EXPECT_EQ(after.calls - before[r].calls, 1u) << model << ", rank " << r;
      EXPECT_EQ(after.bytes - before[r].bytes,
                join.weights_bytes + join.workspace_bytes +
                    join.kv_blocks * kBlockSize * join.bytes_per_token + kGap)
          << model << ", rank " << r;
    }
    if (batch_invariant) {
      EXPECT_EQ(joins[0].workspace_bytes, workspace + EmulatedBackend().GatheredBytes(2) + kGap);
    }
    workspace = joins[0].workspace_bytes;
  }
}

TEST(LocalGroup, AGpuRefusesMoreKeysAndValuesThanFitBeforeItTakesAnything) {
  setenv("KVERN_EMULATED_MEMORY", "64000000", 1);
  RankConfig config = ConfigOf(Shape{"llama_9h_3kv", 1, 64, 1, 100000, &EmulatedBackend()});
  const simt::MallocTotals before = simt::MallocsOf(0);
  const auto group = LocalGroup::Open(
      OpenModel("llama_9h_3kv"), config, [](const WorkerToRouter&) {}, [](const absl::Status&) {});
  unsetenv("KVERN_EMULATED_MEMORY");
  EXPECT_EQ(group.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(group.status().message(),
              ::testing::HasSubstr("--kv-blocks: KV cache of 100000 blocks is 1.7 GiB; "));
  EXPECT_THAT(group.status().message(), ::testing::HasSubstr("'s 61.0 MiB are free beside"));
  EXPECT_EQ(simt::MallocsOf(0).calls, before.calls);
}

TEST(LocalGroup, RefusesWhatTheModelDoesNotHave) {
  auto open = [](const RankConfig& config) {
    return LocalGroup::Open(
               OpenModel("llama_9h_3kv"), config, [](const WorkerToRouter&) {},
               [](const absl::Status&) {})
        .status();
  };
  RankConfig config = ConfigOf(Shape());
  config.max_seq_len = 513;
  EXPECT_THAT(open(config).message(), ::testing::HasSubstr("513"));
  config = ConfigOf(Shape());
  config.world = 4;  // the model has 3 KV heads
  EXPECT_EQ(open(config).code(), absl::StatusCode::kInvalidArgument);
  config = ConfigOf(Shape());
  config.kv_blocks = 0;
  config.kv_memory_bytes = 100;
  EXPECT_THAT(open(config).message(), ::testing::HasSubstr("--kv-memory: 100 B, allowed: "));
  config.kv_memory_bytes = 0;
  EXPECT_EQ(open(config).message(), "the memory of a CPU is the host's");
}

}  // namespace
}  // namespace kvern
