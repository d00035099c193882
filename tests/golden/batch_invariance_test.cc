// The same request alone, among others, and with its prompt cut into chunks: the same bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cluster/base/rng.h"
#include "tests/golden/model_group.h"

namespace kvern {
namespace {

std::vector<uint32_t> RandomPrompt(Rng& rng, size_t length, uint32_t vocab_size) {
  std::vector<uint32_t> prompt;
  for (size_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<uint32_t>(rng.Below(vocab_size)));
  }
  return prompt;
}

void ExpectSameBytes(const Generated& a, const Generated& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  ASSERT_EQ(a.logits.size(), b.logits.size());
  for (size_t draw = 0; draw < a.logits.size(); ++draw) {
    EXPECT_EQ(std::memcmp(a.logits[draw].data(), b.logits[draw].data(),
                          a.logits[draw].size() * sizeof(float)),
              0)
        << what << ": logits of draw " << draw;
  }
}

// The tiny model at `path` with room for longer sequences than it was made for.
absl::StatusOr<std::unique_ptr<Checkpoint>> Longer(const std::string& path, uint32_t positions) {
  const auto read = [](const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    EXPECT_TRUE(in.is_open()) << file;
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  if (path.ends_with(".gguf")) {
    constexpr std::string_view kKey = "llama.context_length";
    std::string bytes = read(path);
    // Behind the key lie its type, four bytes, and its value.
    std::memcpy(bytes.data() + bytes.find(kKey) + kKey.size() + 4, &positions, sizeof(positions));
    return Checkpoint::FromGguf(std::make_shared<MemorySource>(path, std::move(bytes)));
  }
  const auto open =
      [&](const std::string& file) -> absl::StatusOr<std::shared_ptr<const ByteSource>> {
    if (!std::filesystem::exists(path + "/" + file)) return absl::NotFoundError(file);
    std::string bytes = read(path + "/" + file);
    if (file == "config.json") {
      nlohmann::json config = nlohmann::json::parse(bytes);
      config["max_position_embeddings"] = positions;
      bytes = config.dump();
    }
    return std::make_shared<MemorySource>(file, std::move(bytes));
  };
  return Checkpoint::FromFolder({path, open});
}

// `length`: of the request's prompt; its neighbours are of all sizes. `chunks`: how it is cut.
void ExpectBatchInvariant(ModelGroup& group, size_t length, size_t neighbours, int steps,
                          const std::vector<int64_t>& chunks) {
  Rng rng(20261129);
  std::vector<uint32_t> request = RandomPrompt(rng, length, group.config().vocab_size);
  RunOptions run;
  run.steps = steps;
  run.kept_logits = steps;
  run.chunk = static_cast<int64_t>(length);
  Generated alone = group.Generate({request}, run)[0];
  for (int64_t chunk : chunks) {
    RunOptions chunked = run;
    chunked.chunk = chunk;
    ExpectSameBytes(alone, group.Generate({request}, chunked)[0],
                    "in chunks of " + std::to_string(chunk));
  }
  std::vector<std::vector<uint32_t>> crowd;
  for (size_t i = 0; i < neighbours; ++i) {
    crowd.push_back(RandomPrompt(rng, 1 + rng.Below(60), group.config().vocab_size));
  }
  crowd.insert(crowd.begin() + static_cast<std::ptrdiff_t>(neighbours / 2), request);
  for (int64_t chunk : {7, 512}) {
    RunOptions chunked = run;
    chunked.chunk = chunk;
    ExpectSameBytes(alone, group.Generate(crowd, chunked)[neighbours / 2],
                    "among others, in chunks of " + std::to_string(chunk));
  }
}

struct Shape {
  const char* name;
  int world;
  DType kv;
};

class TinyInvarianceTest : public testing::TestWithParam<Shape> {};

TEST_P(TinyInvarianceTest, SameBytes) {
  GroupOptions options;
  options.world = GetParam().world;
  options.kv = GetParam().kv;
  options.max_tokens = 1024;
  auto group =
      ModelGroup::Load(Longer(std::string("tests/golden/tiny/") + GetParam().name, 1024), options);
  ASSERT_NE(group, nullptr);
  // Attention merges splits of 256 keys: cuts before, at and behind their edges, and the usual 512.
  ExpectBatchInvariant(*group, 700, 31, 6, {1, 7, 64, 255, 256, 257, 512});
}

std::string ShapeName(const testing::TestParamInfo<Shape>& info) {
  std::string name = info.param.name;
  for (char& c : name) c = c == '/' || c == '.' || c == '-' ? '_' : c;
  return name + "_tp" + std::to_string(info.param.world) +
         (info.param.kv == DType::kBf16 ? "_bf16" : "_f32");
}

INSTANTIATE_TEST_SUITE_P(Shapes, TinyInvarianceTest,
                         testing::Values(Shape{"llama_9h_3kv", 1, DType::kF32},
                                         Shape{"llama_9h_3kv", 2, DType::kBf16},
                                         Shape{"llama_9h_3kv", 3, DType::kF32},
                                         Shape{"llama_gqa", 2, DType::kF32},
                                         Shape{"llama_gqa_gguf/tiny-q8_0.gguf", 1, DType::kBf16},
                                         Shape{"llama_gqa_gguf/tiny-q4_1.gguf", 2, DType::kF32}),
                         ShapeName);

TEST(RealModelInvarianceTest, SameBytesOnTwoRanks) {
  GroupOptions options;
  options.world = 2;
  options.kv = DType::kBf16;
  auto group = ModelGroup::Load(RealModelPath(), options);
  ASSERT_NE(group, nullptr) << "run tools/fetch_model, or name the file in KVERN_MODEL";
  ExpectBatchInvariant(*group, 70, 31, 2, {1, 7, 64});
}

}  // namespace
}  // namespace kvern
