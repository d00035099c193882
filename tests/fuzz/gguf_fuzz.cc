// A GGUF file of any bytes: refused or opened, and what opens can be read to the last byte.
#include <algorithm>

#include "cluster/base/check.h"
#include "schemas/files/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvern;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  auto checkpoint =
      Checkpoint::FromGguf(std::make_shared<MemorySource>("fuzz.gguf", std::move(bytes)));
  if (!checkpoint.ok()) return 0;
  for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
    std::vector<std::byte> all(std::min<uint64_t>(tensor.bytes, size));
    KVERN_CHECK_LE(tensor.bytes, size);
    KVERN_CHECK((*checkpoint)->ReadBytes(tensor, 0, all).ok());
    KVERN_CHECK(!(*checkpoint)->ReadBytes(tensor, 1, all).ok() || all.empty());
  }
  if (const TokenizerData* tokenizer = (*checkpoint)->tokenizer()) {
    KVERN_CHECK_EQ(tokenizer->tokens.size(), (*checkpoint)->config().vocab_size);
    KVERN_CHECK_EQ(tokenizer->kinds.size(), tokenizer->tokens.size());
  }
  return 0;
}
