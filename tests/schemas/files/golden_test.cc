// The committed model files: tiny models of every type, and broken ones with what their error
// names.
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schemas/files/checkpoint.h"
#include "schemas/files/dequantize.h"
#include "schemas/files/model_tensors.h"
#include "tests/schemas/files/sha256.h"

namespace kvern {
namespace {

constexpr char kGolden[] = "tests/golden/";

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(kGolden + path);
  return nlohmann::json::parse(file);
}

// The whole tensor as float32, in the file's order of rows.
std::vector<float> Dequantized(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  std::vector<std::byte> bytes(tensor.bytes);
  EXPECT_TRUE(checkpoint.ReadBytes(tensor, 0, bytes).ok());
  uint64_t elements = tensor.bytes / Info(tensor.dtype).block_bytes;
  std::vector<float> values(elements * Info(tensor.dtype).block_elements);
  DequantizeRow(tensor.dtype, bytes, values);
  return values;
}

TEST(Golden, GgufTensorsDequantizeToTheReference) {
  size_t files = 0;
  nlohmann::json golden = ReadJson("tiny/llama_gqa_gguf/golden.json");
  for (const auto& entry : golden["files"]) {
    std::string type = entry["type"];
    if (type == "Q4_K" || type == "Q6_K") continue;  // Not read by Kvern, not committed.
    ++files;
    std::string file = entry["file"];
    auto checkpoint = Checkpoint::Open(std::string(kGolden) + "tiny/llama_gqa_gguf/" + file);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ASSERT_EQ((*checkpoint)->tensors().size(), entry["tensors"].size());
    for (const auto& [name, expected] : entry["tensors"].items()) {
      auto tensor = (*checkpoint)->Find(HfNameOfGguf(name));
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      EXPECT_EQ((*tensor)->shape, expected["shape"].get<std::vector<uint64_t>>()) << file << name;
      std::vector<float> values = Dequantized(**checkpoint, **tensor);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(values[i], expected["first4"][i].get<float>()) << file << " " << name << " " << i;
      }
      EXPECT_EQ(Sha256Hex(std::as_bytes(std::span(values))), expected["sha256_f32le"])
          << file << " " << name;
    }
  }
  EXPECT_EQ(files, 6u);
}

TEST(Golden, TinyFoldersOpen) {
  struct Expected {
    const char* name;
    FileDtype dtype;
    uint32_t layers, heads, kv_heads, head_dim;
    bool tied;
  };
  const Expected kModels[] = {
      {"llama_gqa", FileDtype::kF32, 4, 4, 2, 16, true},
      {"llama_mha", FileDtype::kBf16, 3, 4, 4, 16, false},
      {"llama_9h_3kv", FileDtype::kBf16, 3, 9, 3, 16, true},
      {"llama3_rope", FileDtype::kF32, 4, 4, 2, 16, true},
      {"llama3_rope_v5config", FileDtype::kF32, 2, 4, 2, 16, true},
      {"llama_head_dim32", FileDtype::kF16, 3, 4, 1, 32, false},
      {"llama_sharded", FileDtype::kBf16, 4, 4, 2, 16, false},
      {"llama_attn_mlp_bias", FileDtype::kF32, 2, 4, 2, 16, true},
  };
  for (const Expected& model : kModels) {
    auto checkpoint = Checkpoint::Open(std::string(kGolden) + "tiny/" + model.name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.num_layers, model.layers) << model.name;
    EXPECT_EQ(config.num_heads, model.heads) << model.name;
    EXPECT_EQ(config.num_kv_heads, model.kv_heads) << model.name;
    EXPECT_EQ(config.head_dim, model.head_dim) << model.name;
    EXPECT_EQ(config.tied_embeddings, model.tied) << model.name;
    auto embedding = (*checkpoint)->Find("model.embed_tokens.weight");
    EXPECT_EQ((*embedding)->dtype, model.dtype) << model.name;
  }
}

TEST(Golden, BothSpellingsOfStretchedRope) {
  auto v4 = Checkpoint::Open(std::string(kGolden) + "tiny/llama3_rope");
  auto v5 = Checkpoint::Open(std::string(kGolden) + "tiny/llama3_rope_v5config");
  ASSERT_TRUE(v4.ok() && v5.ok());
  EXPECT_EQ((*v4)->config().rope.theta, 5000.0);
  EXPECT_EQ((*v4)->config().rope.llama3->original_max_seq_len, 32u);
  EXPECT_EQ((*v5)->config().rope.theta, 8000.0);
  EXPECT_EQ((*v5)->config().rope.llama3->factor, 4.0);
}

// The real model of the examples (tools/fetch_model), against the listing of an independent reader.
TEST(Golden, SmolLm2HasWhatItsListingSays) {
  const char* path = std::getenv("KVERN_MODEL");
  auto checkpoint =
      Checkpoint::Open(path != nullptr ? path : "models/SmolLM2-135M-Instruct.Q4_1.gguf");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.num_layers, 30u);
  EXPECT_EQ(config.vocab_size, 49152u);
  EXPECT_EQ(config.rope.theta, 100000.0);
  EXPECT_EQ(config.eos_ids, std::vector<uint32_t>{2});
  EXPECT_TRUE(config.tied_embeddings);
  ASSERT_NE((*checkpoint)->tokenizer(), nullptr);
  EXPECT_EQ((*checkpoint)->tokenizer()->tokens.size(), 49152u);
  EXPECT_EQ((*checkpoint)->tokenizer()->merges.size(), 48900u);
  EXPECT_EQ((*checkpoint)->tokenizer()->tokens[2], "<|im_end|>");
  // "  name, type, [dims fastest first], bytes, offset in the file" per tensor.
  std::ifstream listing(std::string(kGolden) + "smollm2/gguf_info.txt");
  size_t tensors = 0;
  for (std::string line; std::getline(listing, line);) {
    std::smatch match;
    static const std::regex kLine("  ([a-z0-9_.]+), ([A-Z0-9_]+), \\[[0-9, ]+\\], (\\d+), (\\d+)");
    if (!std::regex_match(line, match, kLine)) continue;
    ++tensors;
    auto tensor = (*checkpoint)->Find(HfNameOfGguf(match[1].str()));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(Info((*tensor)->dtype).name, match[2].str()) << line;
    EXPECT_EQ(std::to_string((*tensor)->bytes), match[3].str()) << line;
    EXPECT_EQ(std::to_string((*tensor)->offset), match[4].str()) << line;
  }
  EXPECT_EQ(tensors, 272u);
}

// What the column "the error should name" of the folder's README means in our words.
const std::map<std::string, std::vector<std::string>>& WordsOfErrors() {
  static const std::map<std::string, std::vector<std::string>> kWords = {
      {"gguf_truncated_in_metadata.gguf", {"1500 bytes", "'tokenizer.ggml.tokens'"}},
      {"gguf_wrong_magic.gguf", {"'GGML'"}},
      {"gguf_unknown_tensor_type.gguf", {"'blk.0.ffn_up.weight'", "type 200"}},
      {"gguf_tensor_past_end.gguf", {"'blk.0.ffn_down.weight'", "1099511627776", "73504 bytes"}},
      {"st_header_length_past_end", {"header length 1125899906842624", "69144 bytes"}},
      {"st_overlapping_offsets", {"k_proj.weight'", "q_proj.weight'", "41152", "41216"}},
      {"st_missing_tensor", {"model.layers.0.self_attn.v_proj.weight"}},
      {"config_vocab_size_0", {"vocab_size is 0"}},
  };
  return kWords;
}

TEST(Golden, BrokenModelsAreRefusedWithTheirReason) {
  size_t refused = 0;
  for (const auto& entry : ReadJson("bad_models/manifest.json")) {
    std::string path = entry["path"];
    auto checkpoint = Checkpoint::Open(std::string(kGolden) + "bad_models/" + path);
    if (entry["expect"] == "loads") {
      EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
      continue;
    }
    ++refused;
    ASSERT_FALSE(checkpoint.ok()) << path;
    auto words = WordsOfErrors().find(path);
    ASSERT_NE(words, WordsOfErrors().end()) << path << " has no expected words here";
    for (const std::string& word : words->second) {
      EXPECT_THAT(std::string(checkpoint.status().message()), ::testing::HasSubstr(word)) << path;
    }
  }
  EXPECT_EQ(refused, WordsOfErrors().size());
}

TEST(Golden, TheTestsOwnSha256IsRight) {
  // FIPS 180-4 examples: "abc" and the two-block message.
  auto hash = [](const std::string& text) { return Sha256Hex(std::as_bytes(std::span(text))); };
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace
}  // namespace kvern
