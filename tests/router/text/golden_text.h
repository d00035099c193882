// The golden cases of the real model's tokenizer, and that tokenizer itself.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "router/text/tokenizer.h"

namespace kvern {

// $KVERN_MODEL, or where tools/fetch_model puts the file.
std::string GoldenModelPath();

// The model's tokenizer, loaded once. Ends the test program with a clear message without the file.
const Tokenizer& GoldenTokenizer();

// The objects of tests/golden/smollm2/FILE, one a line; fails the program if there are not `count`.
std::vector<nlohmann::json> GoldenLines(const std::string& file, size_t count);

// Base64 to bytes. REQUIRES: well-formed.
std::string FromBase64(std::string_view text);

// SHA-256 (FIPS 180-4) in lower-case hexadecimal.
std::string Sha256Hex(std::string_view bytes);

// The bytes of the ids as little-endian uint32.
std::string IdBytes(std::span<const uint32_t> ids);

}  // namespace kvern
