#include "tests/router/text/golden_text.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "cluster/base/check.h"
#include "schemas/files/checkpoint.h"

namespace kvern {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void Sha256Block(std::array<uint32_t, 8>* state, const char* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = 0;
    for (size_t k = 0; k < 4; ++k) w[i] = w[i] << 8 | static_cast<uint8_t>(block[4 * i + k]);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t x = w[i - 15];
    const uint32_t y = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3)) +
           (std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = *state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kRoundConstants[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) (*state)[i] += mixed[i];
}

}  // namespace

std::string GoldenModelPath() {
  const char* path = std::getenv("KVERN_MODEL");
  return path != nullptr ? path : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

const Tokenizer& GoldenTokenizer() {
  static const Tokenizer* tokenizer = [] {
    auto checkpoint = Checkpoint::Open(GoldenModelPath());
    if (!checkpoint.ok()) {
      std::fprintf(stderr,
                   "the golden tests need the real model; run tools/fetch_model first: %s\n",
                   std::string(checkpoint.status().message()).c_str());
      std::exit(1);
    }
    KVERN_CHECK((*checkpoint)->tokenizer() != nullptr);
    absl::StatusOr<Tokenizer> created = Tokenizer::Create(*(*checkpoint)->tokenizer());
    KVERN_CHECK(created.ok()) << created.status().message();
    return new Tokenizer(*std::move(created));
  }();
  return *tokenizer;
}

std::vector<nlohmann::json> GoldenLines(const std::string& file, size_t count) {
  std::ifstream stream("tests/golden/smollm2/" + file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  KVERN_CHECK_EQ(lines.size(), count) << file;
  return lines;
}

std::string FromBase64(std::string_view text) {
  std::string bytes;
  KVERN_CHECK(absl::Base64Unescape(ToAbsl(text), &bytes));
  return bytes;
}

std::string Sha256Hex(std::string_view bytes) {
  std::string padded(bytes);
  padded.push_back('\x80');
  while (padded.size() % 64 != 56) padded.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8) {
    padded.push_back(static_cast<char>(uint64_t{bytes.size()} * 8 >> shift));
  }
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (size_t at = 0; at < padded.size(); at += 64) Sha256Block(&state, padded.data() + at);
  std::string hex;
  for (uint32_t word : state) absl::StrAppend(&hex, absl::Hex(word, absl::kZeroPad8));
  return hex;
}

std::string IdBytes(std::span<const uint32_t> ids) {
  std::string bytes;
  for (uint32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(id >> shift));
  }
  return bytes;
}

}  // namespace kvern
