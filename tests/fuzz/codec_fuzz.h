// One fuzz target for each decoder: it must not crash, and what it takes must come back unchanged.
#pragma once

#include <cstdint>

#include "cluster/base/check.h"
#include "schemas/codec.h"

namespace kvern {

template <typename Decode, typename Encode>
void FuzzDecoder(const uint8_t* data, size_t size, Decode decode, Encode encode) {
  auto first = decode(std::as_bytes(std::span(data, size)));
  KVERN_CHECK(first.ok() == first.error.empty());
  if (!first.ok()) return;
  std::string bytes = encode(first.message);
  auto second = decode(std::as_bytes(std::span(bytes)));
  KVERN_CHECK(second.ok()) << second.error;
  KVERN_CHECK(second.message == first.message);
}

}  // namespace kvern
