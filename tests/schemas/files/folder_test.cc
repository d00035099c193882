// A folder with config.json and safetensors: how the files fit together.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/schemas/files/model_builder.h"

namespace kvern {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const MemoryFolder& folder) {
  return ErrorOf(Checkpoint::FromFolder(folder.Folder()));
}

// TinyFolder in two shards: attention in b.safetensors, the rest in a.safetensors.
MemoryFolder ShardedFolder() {
  SafetensorsWriter a;
  SafetensorsWriter b;
  std::string map;
  auto add = [&map](SafetensorsWriter& shard, const std::string& file, const std::string& name,
                    const std::vector<uint64_t>& shape) {
    shard.Add(name + ".weight", "BF16", 2, shape);
    absl::StrAppend(&map, map.empty() ? "" : ",", "\"", name, ".weight\":\"", file, "\"");
  };
  add(a, "a.safetensors", "model.embed_tokens", {3, 4});
  add(a, "a.safetensors", "model.norm", {4});
  add(a, "a.safetensors", "model.layers.0.input_layernorm", {4});
  add(b, "b.safetensors", "model.layers.0.self_attn.q_proj", {4, 4});
  add(b, "b.safetensors", "model.layers.0.self_attn.k_proj", {2, 4});
  add(b, "b.safetensors", "model.layers.0.self_attn.v_proj", {2, 4});
  add(b, "b.safetensors", "model.layers.0.self_attn.o_proj", {4, 4});
  add(a, "a.safetensors", "model.layers.0.post_attention_layernorm", {4});
  add(a, "a.safetensors", "model.layers.0.mlp.gate_proj", {6, 4});
  add(a, "a.safetensors", "model.layers.0.mlp.up_proj", {6, 4});
  add(a, "a.safetensors", "model.layers.0.mlp.down_proj", {4, 6});
  return {{{"config.json", TinyConfig()},
           {"a.safetensors", a.Build()},
           {"b.safetensors", b.Build()},
           {"model.safetensors.index.json",
            absl::StrCat("{\"metadata\":{\"total_size\":0},\"weight_map\":{", map, "}}")}}};
}

void ReplaceInIndex(MemoryFolder& folder, const std::string& from, const std::string& to) {
  std::string& index = folder.files["model.safetensors.index.json"];
  size_t at = index.find(from);
  ASSERT_NE(at, std::string::npos);
  index.replace(at, from.size(), to);
}

TEST(Folder, OpensOneFile) {
  auto checkpoint = Checkpoint::FromFolder(TinyFolder().Folder());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tensors().size(), 11u);
  EXPECT_EQ((*checkpoint)->tokenizer(), nullptr);
  const TensorInfo& q = **(*checkpoint)->Find("model.layers.0.self_attn.q_proj.weight");
  EXPECT_FALSE(q.interleaved_rows);
  EXPECT_EQ((*checkpoint)->SourceRow(q, 3), 3u);
  EXPECT_EQ(q.rows(), 4u);
  EXPECT_EQ(q.row_bytes(), 16u);
}

TEST(Folder, EmptyTensorsThatNothingNeedsAreFine) {
  MemoryFolder folder = TinyFolder();
  std::string& weights = folder.files["model.safetensors"];
  std::string header = weights.substr(8, weights.find("}}") - 8 + 1);
  folder.files["model.safetensors"] = SafetensorsFile(
      header + ",\"none\":{\"dtype\":\"F32\",\"shape\":[5,0],\"data_offsets\":[0,0]}}",
      weights.substr(weights.find("}}") + 2));
  auto checkpoint = Checkpoint::FromFolder(folder.Folder());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TensorInfo& none = **(*checkpoint)->Find("none");
  EXPECT_EQ(none.bytes, 0u);
  EXPECT_EQ(none.rows(), 5u);
  EXPECT_EQ(none.row_bytes(), 0u);
}

TEST(Folder, OpensShards) {
  auto checkpoint = Checkpoint::FromFolder(ShardedFolder().Folder());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*(*checkpoint)->Find("model.norm.weight"))->source, 0u);
  EXPECT_EQ((*(*checkpoint)->Find("model.layers.0.self_attn.o_proj.weight"))->source, 1u);
  EXPECT_EQ((*(*checkpoint)->Find("model.norm.weight"))->dtype, FileDtype::kBf16);
}

TEST(Folder, MissingFiles) {
  MemoryFolder folder = TinyFolder();
  folder.files.erase("model.safetensors");
  EXPECT_THAT(Refusal(folder), HasSubstr("neither model.safetensors nor"));
  folder.files.erase("config.json");
  EXPECT_THAT(Refusal(folder), HasSubstr("no config.json"));
  folder = ShardedFolder();
  folder.files.erase("b.safetensors");
  EXPECT_THAT(Refusal(folder), HasSubstr("shard 'b.safetensors'"));
}

TEST(Folder, ShardNamesStayInTheFolder) {
  for (const char* name : {"../b.safetensors", "/etc/passwd", "", ".", "..", ".hidden", "x/y",
                           "x\\\\y", "b\\u0000.safetensors"}) {
    MemoryFolder folder = ShardedFolder();
    ReplaceInIndex(folder, "b.safetensors", name);
    EXPECT_THAT(Refusal(folder), HasSubstr("not a plain file name")) << name;
  }
}

TEST(Folder, IndexAndShardsMustAgree) {
  MemoryFolder folder = ShardedFolder();
  ReplaceInIndex(folder, "\"b.safetensors\"", "\"a.safetensors\"");
  EXPECT_THAT(Refusal(folder), AllOf(HasSubstr("self_attn.q_proj.weight"),
                                     HasSubstr("not in shard 'a.safetensors'")));
  folder = ShardedFolder();
  SafetensorsWriter more;
  more.Add("model.layers.0.self_attn.k_proj.weight", "BF16", 2, {2, 4});
  folder.files["c.safetensors"] = more.Build();
  ReplaceInIndex(folder, "self_attn.k_proj.weight\":\"b.", "self_attn.k_proj.weight\":\"c.");
  EXPECT_THAT(Refusal(folder), AllOf(HasSubstr("self_attn.k_proj.weight"), HasSubstr("two shards"),
                                     HasSubstr("'b.safetensors'"), HasSubstr("'c.safetensors'")));
  folder = ShardedFolder();
  ReplaceInIndex(folder, "\"model.norm.weight\"", "\"model.morn.weight\"");
  EXPECT_THAT(Refusal(folder), HasSubstr("'model.morn.weight' is not in shard"));
}

TEST(Folder, IndexOfTheWrongShape) {
  for (const char* index :
       {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{\"a\":null}}", "{\"weight_map\":{\"a\":\"f\",\"a\":\"f\"}}"}) {
    MemoryFolder folder = ShardedFolder();
    folder.files["model.safetensors.index.json"] = index;
    EXPECT_THAT(Refusal(folder), HasSubstr("index.json")) << index;
  }
}

TEST(Folder, ShapesMustFollowTheConfiguration) {
  MemoryFolder folder = TinyFolder();
  folder.files["config.json"] = TinyConfig("vocab_size", "4");
  EXPECT_THAT(Refusal(folder), AllOf(HasSubstr("model.embed_tokens.weight"), HasSubstr("[3, 4]"),
                                     HasSubstr("[4, 4]")));
  folder.files["config.json"] = TinyConfig("num_hidden_layers", "2");
  EXPECT_THAT(Refusal(folder), HasSubstr("model.layers.1.input_layernorm.weight"));
  folder.files["config.json"] = TinyConfig("tie_word_embeddings", "false");
  EXPECT_THAT(Refusal(folder), HasSubstr("lm_head.weight"));
  folder.files["config.json"] = TinyConfig("attention_bias", "true");
  EXPECT_THAT(Refusal(folder), HasSubstr("self_attn.q_proj.bias"));
  folder.files["config.json"] = TinyConfig("mlp_bias", "true");
  EXPECT_THAT(Refusal(folder), HasSubstr("mlp.gate_proj.bias"));
}

TEST(Folder, TypesThatAreNotReadAreNamedWhenUsed) {
  MemoryFolder folder = TinyFolder();
  std::string& weights = folder.files["model.safetensors"];
  size_t at = weights.find("F32", weights.find("v_proj"));
  weights.replace(at, 3, "I32");
  EXPECT_THAT(Refusal(folder), AllOf(HasSubstr("self_attn.v_proj.weight"), HasSubstr("I32")));
}

TEST(Folder, GenerationConfigAddsEndIds) {
  MemoryFolder folder = TinyFolder();
  folder.files["generation_config.json"] = "{\"eos_token_id\":[2,0],\"temperature\":1e9}";
  auto checkpoint = Checkpoint::FromFolder(folder.Folder());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().eos_ids, (std::vector<uint32_t>{2, 0}));
  folder.files["generation_config.json"] = "{\"eos_token_id\":3}";
  EXPECT_THAT(Refusal(folder), AllOf(HasSubstr("generation_config.json"), HasSubstr("is 3")));
  folder.files["generation_config.json"] = "[";
  EXPECT_THAT(Refusal(folder), HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace kvern
