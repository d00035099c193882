// A safetensors file of any bytes: refused, or its tensors tile the buffer.
#include "cluster/base/check.h"
#include "schemas/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvern;
  MemorySource source("fuzz.safetensors", std::string(reinterpret_cast<const char*>(data), size));
  auto tensors = ParseSafetensors(source);
  if (!tensors.ok() || tensors->empty()) return 0;
  uint64_t end = tensors->front().offset;
  for (const SafetensorsTensor& tensor : *tensors) {
    KVERN_CHECK_EQ(tensor.offset, end);
    end += tensor.bytes;
    KVERN_CHECK(!tensor.name.empty() && tensor.type != nullptr);
  }
  KVERN_CHECK_EQ(end, size);
  return 0;
}
