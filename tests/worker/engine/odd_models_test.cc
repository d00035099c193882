// Models of unusual shapes: what a device cannot compute is refused when it is loaded, with the
// field, its value and the limit; whatever is loaded answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/base/machine.h"
#include "tests/schemas/files/sized_model.h"
#include "tests/worker/engine/group_runs.h"
#include "tests/worker/engine/message_box.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Checkpoint> Gguf(const ModelSizes& sizes) {
  auto checkpoint = OpenGguf(SizedGguf(sizes));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

std::shared_ptr<const Checkpoint> Safetensors(const ModelSizes& sizes) {
  auto checkpoint = Checkpoint::FromFolder(SizedFolder(sizes).Folder());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

RankConfig SmallRank(const GpuBackend* gpu = nullptr) {
  RankConfig config = ConfigOf(Shape());
  config.gpu = gpu;
  config.kv_blocks = 8;
  config.max_batch_tokens = 16;
  config.threads = 2;
  return config;
}

// How many tokens a request of 20 and 4 more is answered with; or why the model was refused.
absl::StatusOr<size_t> Answered(std::shared_ptr<const Checkpoint> model, const RankConfig& config,
                                std::vector<Join>* joins = nullptr) {
  MessageBox box;
  absl::Status end;
  Tokens prompt = Prompt(20, 1);
  for (uint32_t& id : prompt) id %= model->config().vocab_size;
  KVERN_ASSIGN_OR_RETURN(
      auto group,
      LocalGroup::Open(
          std::move(model), config, [&](WorkerToRouter message) { box.Put(std::move(message)); },
          [&](absl::Status status) {
            end = std::move(status);
            box.Put(Leave{});  // of a group that failed
          }));
  if (joins != nullptr) *joins = group->joins();
  group->Start(GroupStart{1, 5, group->joins()[0].kv_blocks, "", 10000, group->joins()[0].comm_id});
  group->Push(Commands{5, 1, {NewRequest(1, std::move(prompt), 4, 0.9f)}, {}, true});
  size_t tokens = 0;
  while (true) {
    WorkerToRouter message = box.Take();
    if (std::holds_alternative<Leave>(message)) break;
    const StepReport& report = std::get<StepReport>(message);
    for (const Nack& nack : report.nacks) return Internal(nack.message);
    for (const TokenRun& run : report.runs) tokens += run.token_ids.size();
  }
  group.reset();
  KVERN_RETURN_IF_ERROR(end);
  return tokens;
}

TEST(OddModels, TooManyQueryHeadsForOneKvHeadAreRefused) {
  const ModelSizes sizes{.heads = 128, .kv_heads = 1};
  for (const auto& model : {Gguf(sizes), Safetensors(sizes)}) {
    const absl::Status on_cpu = Answered(model, SmallRank()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(on_cpu)) << on_cpu;
    EXPECT_THAT(on_cpu.message(),
                HasSubstr("num_attention_heads / num_key_value_heads is 128, the limit is 96"));
    const absl::Status on_gpu = Answered(model, SmallRank(&EmulatedBackend())).status();
    EXPECT_TRUE(absl::IsInvalidArgument(on_gpu)) << on_gpu;
    EXPECT_THAT(on_gpu.message(), HasSubstr("128 query heads on 1 KV heads"));
    EXPECT_THAT(on_gpu.message(), HasSubstr("at most 16 query heads per KV head"));
  }
}

// The rope tables of all positions would take 17 GB.
TEST(OddModels, PositionsThatNoBlockCanHoldTakeNoMemory) {
  const auto model = Gguf({.head_dim = 256, .max_seq_len = 1u << 24});
  std::vector<Join> joins;
  ASSERT_EQ(Answered(model, SmallRank(), &joins).value_or(0), 4u);
  EXPECT_EQ(joins[0].max_seq_len, 1u << 24);
  EXPECT_LT(joins[0].weights_bytes, 1u << 20);
  RankConfig config = SmallRank();
  config.kv_blocks = 0;
  config.kv_memory_bytes = 1 << 20;
  ASSERT_EQ(Answered(model, config, &joins).value_or(0), 4u);
  EXPECT_EQ(joins[0].kv_blocks, 32u);
  EXPECT_LT(joins[0].weights_bytes, 1u << 21);
}

TEST(OddModels, AGpusBlockTablesAndRopeFollowItsBlocks) {
  const auto model = Gguf({.head_dim = 128, .max_seq_len = 1u << 24});
  std::vector<Join> joins;
  ASSERT_EQ(Answered(model, SmallRank(&EmulatedBackend()), &joins).value_or(0), 4u);
  EXPECT_LT(joins[0].weights_bytes, 1u << 20);
  EXPECT_LT(joins[0].workspace_bytes, 64u << 20);  // 16 tables of 2^20 blocks are 64 MiB
}

TEST(OddModels, AHostRefusesWhatItHasNoMemoryFor) {
  const ModelSizes sizes{
      .head_dim = 256, .hidden = 1, .intermediate = 1u << 18, .max_seq_len = 1u << 24};
  const auto model = Gguf(sizes);
  RankConfig config = SmallRank();
  // The workspace alone fits, and so do the rope tables, but not both.
  const uint64_t row_bytes = uint64_t{3} * sizes.intermediate * sizeof(float);
  const uint64_t rows = AvailableMemory() / 20 * 19 / row_bytes;
  if (rows > UINT32_MAX) GTEST_SKIP() << "this machine has memory for anything";
  config.max_batch_tokens = static_cast<uint32_t>(rows);
  config.kv_blocks = 1u << 20;
  const absl::Status status = Answered(model, config).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("(16.0 GiB of them for 16777216 positions"));
  EXPECT_THAT(status.message(), HasSubstr("; of the memory "));
  // More than any machine has is refused as well, by the system.
  config.max_batch_tokens = UINT32_MAX;
  EXPECT_TRUE(absl::IsResourceExhausted(Answered(model, config).status()));
}

TEST(OddModels, WhatIsLoadedAnswers) {
  const std::vector<ModelSizes> all = {
      {.heads = 96},
      {.heads = 97},
      {.heads = 16},
      {.heads = 17},
      {.heads = 1024, .kv_heads = 1024, .head_dim = 2},
      {.head_dim = 2},
      {.head_dim = 6},
      {.head_dim = 34},
      {.head_dim = 128},
      {.head_dim = 254},
      {.head_dim = 256},
      {.hidden = 1},
      {.hidden = 3},
      {.hidden = 8209},
      {.intermediate = 1},
      {.intermediate = 33},
      {.intermediate = 20011},
      {.vocab = 1},
      {.vocab = 2},
      {.vocab = 3001},
      {.heads = 1, .kv_heads = 1, .head_dim = 2, .hidden = 1, .intermediate = 1, .vocab = 1},
      {.heads = 3, .kv_heads = 3, .head_dim = 16, .hidden = 48, .layers = 40},
  };
  for (const ModelSizes& sizes : all) {
    const auto model = Gguf(sizes);
    for (const GpuBackend* gpu : {static_cast<const GpuBackend*>(nullptr), &EmulatedBackend()}) {
      SCOPED_TRACE(sizes.ToString() + (gpu == nullptr ? " on the CPU" : " on a GPU"));
      const absl::StatusOr<size_t> tokens = Answered(model, SmallRank(gpu));
      if (tokens.ok()) {
        EXPECT_EQ(*tokens, 4u);
      } else {
        EXPECT_TRUE(absl::IsInvalidArgument(tokens.status())) << tokens.status();
        EXPECT_TRUE(gpu != nullptr || sizes.heads == 97) << tokens.status();
      }
    }
  }
}

}  // namespace
}  // namespace kvern
