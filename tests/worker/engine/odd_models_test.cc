// Models of unusual shapes: what a device cannot compute is refused when it is loaded, with the
// field, its value and the limit; whatever is loaded answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "cluster/base/machine.h"
#include "tests/schemas/files/model_builder.h"
#include "tests/worker/engine/group_runs.h"
#include "tests/worker/engine/message_box.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

struct Sizes {
  uint32_t heads = 2;
  uint32_t kv_heads = 1;
  uint32_t head_dim = 16;
  uint32_t hidden = 32;
  uint32_t intermediate = 32;
  uint32_t vocab = 8;
  uint32_t layers = 1;
  uint32_t max_seq_len = 64;

  std::string ToString() const {
    return absl::StrCat(heads, " heads, ", kv_heads, " KV heads of ", head_dim, ", hidden ", hidden,
                        ", intermediate ", intermediate, ", vocabulary ", vocab, ", layers ",
                        layers, ", positions ", max_seq_len);
  }
};

// Small values, none of them equal to its neighbours.
std::string Values(uint64_t count) {
  std::string data;
  for (uint64_t i = 0; i < count; ++i) data += Bytes(0.01f * static_cast<float>(i * 7 % 23) - 0.1f);
  return data;
}

std::shared_ptr<const Checkpoint> Gguf(const Sizes& s) {
  GgufWriter gguf = TinyGguf();
  gguf.Uint32("llama.block_count", s.layers);
  gguf.Uint32("llama.context_length", s.max_seq_len);
  gguf.Uint32("llama.embedding_length", s.hidden);
  gguf.Uint32("llama.feed_forward_length", s.intermediate);
  gguf.Uint32("llama.attention.head_count", s.heads);
  gguf.Uint32("llama.attention.head_count_kv", s.kv_heads);
  gguf.Uint32("llama.attention.key_length", s.head_dim);
  std::erase_if(gguf.keys, [](const auto& key) { return key.name.starts_with("tokenizer."); });
  gguf.tensors.clear();
  const auto add = [&gguf](const std::string& name, uint64_t rows, uint64_t cols) {
    std::vector<uint64_t> dims = {cols};
    if (rows > 0) dims.push_back(rows);
    gguf.tensors.push_back(
        {name + ".weight", dims, 0, Values(std::max<uint64_t>(rows, 1) * cols), {}});
  };
  const uint64_t q = uint64_t{s.heads} * s.head_dim;
  const uint64_t kv = uint64_t{s.kv_heads} * s.head_dim;
  add("token_embd", s.vocab, s.hidden);
  add("output_norm", 0, s.hidden);
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    add(prefix + "attn_norm", 0, s.hidden);
    add(prefix + "attn_q", q, s.hidden);
    add(prefix + "attn_k", kv, s.hidden);
    add(prefix + "attn_v", kv, s.hidden);
    add(prefix + "attn_output", s.hidden, q);
    add(prefix + "ffn_norm", 0, s.hidden);
    add(prefix + "ffn_gate", s.intermediate, s.hidden);
    add(prefix + "ffn_up", s.intermediate, s.hidden);
    add(prefix + "ffn_down", s.hidden, s.intermediate);
  }
  auto checkpoint = OpenGguf(gguf);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

// One layer.
std::shared_ptr<const Checkpoint> Safetensors(const Sizes& s) {
  SafetensorsWriter weights;
  const auto add = [&weights](const std::string& name, const std::vector<uint64_t>& shape) {
    weights.Add(name + ".weight", "F32", 4, shape);
  };
  const std::string layer = "model.layers.0.";
  const uint64_t q = uint64_t{s.heads} * s.head_dim;
  const uint64_t kv = uint64_t{s.kv_heads} * s.head_dim;
  add("model.embed_tokens", {s.vocab, s.hidden});
  add("model.norm", {s.hidden});
  add(layer + "input_layernorm", {s.hidden});
  add(layer + "self_attn.q_proj", {q, s.hidden});
  add(layer + "self_attn.k_proj", {kv, s.hidden});
  add(layer + "self_attn.v_proj", {kv, s.hidden});
  add(layer + "self_attn.o_proj", {s.hidden, q});
  add(layer + "post_attention_layernorm", {s.hidden});
  add(layer + "mlp.gate_proj", {s.intermediate, s.hidden});
  add(layer + "mlp.up_proj", {s.intermediate, s.hidden});
  add(layer + "mlp.down_proj", {s.hidden, s.intermediate});
  const std::string config = absl::StrCat(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": )", s.vocab,
      R"(, "hidden_size": )", s.hidden, R"(, "intermediate_size": )", s.intermediate,
      R"(, "num_hidden_layers": 1, "num_attention_heads": )", s.heads,
      R"(, "num_key_value_heads": )", s.kv_heads, R"(, "head_dim": )", s.head_dim,
      R"(, "max_position_embeddings": )", s.max_seq_len, R"(, "tie_word_embeddings": true})");
  const MemoryFolder folder{{{"config.json", config}, {"model.safetensors", weights.Build()}}};
  auto checkpoint = Checkpoint::FromFolder(folder.Folder());
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
  const Sizes sizes{.heads = 128, .kv_heads = 1};
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
  const Sizes sizes{
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
  EXPECT_THAT(status.message(), HasSubstr("(17179869184 of them for 16777216 positions"));
  EXPECT_THAT(status.message(), HasSubstr("bytes of memory are available"));
  // More than any machine has is refused as well, by the system.
  config.max_batch_tokens = UINT32_MAX;
  EXPECT_TRUE(absl::IsResourceExhausted(Answered(model, config).status()));
}

TEST(OddModels, WhatIsLoadedAnswers) {
  const std::vector<Sizes> all = {
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
  for (const Sizes& sizes : all) {
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
