// JSON of any bytes, as a tree, as config.json and as the index of shards.
#include <nlohmann/json.hpp>

#include "cluster/base/check.h"
#include "schemas/files/checkpoint.h"
#include "schemas/files/hf_config.h"
#include "schemas/files/json.h"

namespace kvern {
namespace {

// A parsed tree is written and parsed again to the same tree.
void CheckTree(const std::string& text) {
  auto tree = ParseJson(text, "fuzz.json");
  if (!tree.ok()) return;
  auto again = ParseJson(tree->dump(), "fuzz.json");
  KVERN_CHECK(again.ok());
  KVERN_CHECK(*again == *tree);
}

void CheckConfig(const std::string& text) {
  auto config = ParseHfConfig(text, text, "fuzz.json");
  if (!config.ok()) return;
  KVERN_CHECK_EQ(config->num_heads % config->num_kv_heads, 0u);
  KVERN_CHECK(config->head_dim > 0 && config->head_dim % 2 == 0);
  for (uint32_t id : config->eos_ids) KVERN_CHECK_LT(id, config->vocab_size);
}

void CheckIndex(const std::string& text) {
  static constexpr const char* kConfig =
      R"({"model_type":"llama","vocab_size":3,"hidden_size":4,"intermediate_size":6,)"
      R"("num_hidden_layers":1,"num_attention_heads":2,"max_position_embeddings":64})";
  auto open =
      [&text](const std::string& file) -> absl::StatusOr<std::shared_ptr<const ByteSource>> {
    if (file == "config.json") return std::make_shared<MemorySource>(file, kConfig);
    if (file == "model.safetensors.index.json") return std::make_shared<MemorySource>(file, text);
    // Whatever the index names must be a file of this folder.
    KVERN_CHECK(file.find('/') == std::string::npos && file != ".." && !file.empty());
    return absl::NotFoundError(file);
  };
  KVERN_CHECK(!Checkpoint::FromFolder({"fuzz", open}).ok());  // There are no weights.
}

}  // namespace
}  // namespace kvern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  kvern::CheckTree(text);
  kvern::CheckConfig(text);
  kvern::CheckIndex(text);
  return 0;
}
