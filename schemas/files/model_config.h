// The shape of a model as its files state it, checked: nothing downstream sees an unchecked number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/status.h"

namespace kvern {

// Limits of what this program serves; a file beyond them is refused with the field and the value.
inline constexpr uint32_t kMaxLayers = 512;
inline constexpr uint32_t kMaxHidden = 1u << 17;
inline constexpr uint32_t kMaxHeads = 1024;
inline constexpr uint32_t kMaxHeadDim = 256;
inline constexpr uint32_t kMaxIntermediate = 1u << 20;
inline constexpr uint32_t kMaxVocab = 1u << 22;
inline constexpr uint32_t kMaxSeqLen = 1u << 24;
inline constexpr double kMaxRopeTheta = 1e12;

// Rotary embedding: plain, or stretched as Llama 3 does it (rope_type "llama3").
struct RopeConfig {
  double theta = 10000.0;
  struct Llama3Scaling {
    double factor = 1.0;
    double low_freq_factor = 1.0;
    double high_freq_factor = 4.0;
    uint32_t original_max_seq_len = 8192;
  };
  std::optional<Llama3Scaling> llama3;
};

struct ModelConfig {
  std::string architecture;  // "llama"
  uint32_t num_layers = 0;
  uint32_t hidden_size = 0;
  uint32_t num_heads = 0;  // query heads; a multiple of num_kv_heads
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;  // even
  uint32_t intermediate_size = 0;
  uint32_t vocab_size = 0;
  uint32_t max_seq_len = 0;  // tokens, prompt and output together
  float rms_norm_eps = 1e-5f;
  RopeConfig rope;
  bool tied_embeddings = false;   // the output matrix is the embedding table
  bool attention_bias = false;    // biases on q, k, v, o
  bool mlp_bias = false;          // biases on gate, up, down
  std::vector<uint32_t> eos_ids;  // ends a sequence unless ignore_eos; each < vocab_size
  std::optional<uint32_t> bos_id;
};

}  // namespace kvern
