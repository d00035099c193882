#include "schemas/files/gguf_model.h"

#include <algorithm>

namespace kvern {
namespace {

constexpr uint64_t kMaxNameBytes = 256;        // architecture, tokenizer kind and the like
constexpr uint64_t kMaxTokenBytes = 64 << 10;  // Whitespace runs are the longest real ones.
constexpr uint64_t kMaxMerges = 1 << 20;       // The largest vocabularies have under half of that.
constexpr uint64_t kMaxTemplateBytes = 1 << 20;

absl::Status Refuse(const GgufFile& file, const std::string& problem) {
  return Unimplemented(file.source().name(), ": ", problem);
}

absl::StatusOr<uint32_t> Uint32(const GgufFile& file, std::string_view key, uint64_t min,
                                uint64_t max) {
  KVERN_ASSIGN_OR_RETURN(uint64_t value, file.Uint(key, min, max));
  return static_cast<uint32_t>(value);
}

absl::StatusOr<uint32_t> Uint32Or(const GgufFile& file, std::string_view key, uint64_t min,
                                  uint64_t max, uint32_t absent) {
  if (!file.Has(key)) return absent;
  return Uint32(file, key, min, max);
}

absl::StatusOr<std::optional<uint32_t>> TokenId(const GgufFile& file, std::string_view key,
                                                uint32_t vocab_size) {
  if (!file.Has(key)) return std::nullopt;
  KVERN_ASSIGN_OR_RETURN(uint32_t id, Uint32(file, key, 0, vocab_size - 1));
  return id;
}

const GgufTensor* FindTensor(const GgufFile& file, std::string_view name) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// Variants that share the architecture name but compute something else.
absl::Status RefuseVariants(const GgufFile& file) {
  KVERN_ASSIGN_OR_RETURN(std::string architecture,
                         file.String("general.architecture", kMaxNameBytes));
  if (architecture != "llama") {
    return Refuse(file, absl::StrCat("general.architecture is ", Quoted(architecture),
                                     ", only 'llama' is supported"));
  }
  for (const char* key : {"split.count", "llama.expert_count", "llama.attention.sliding_window"}) {
    uint64_t plain = std::string_view(key) == "split.count" ? 1 : 0;
    KVERN_ASSIGN_OR_RETURN(uint32_t value, Uint32Or(file, key, 0, UINT32_MAX, 0));
    if (value > plain) {
      return Refuse(file, absl::StrCat(key, " is ", value, ", only ", plain, " is supported"));
    }
  }
  if (file.Has("llama.rope.scaling.type")) {
    KVERN_ASSIGN_OR_RETURN(std::string scaling,
                           file.String("llama.rope.scaling.type", kMaxNameBytes));
    if (scaling != "none") {
      return Refuse(file, absl::StrCat("llama.rope.scaling.type is ", Quoted(scaling),
                                       ", only 'none' is supported"));
    }
  }
  if (FindTensor(file, "rope_freqs.weight") != nullptr) {
    return Refuse(file, "tensor 'rope_freqs.weight' (stretched rope in GGUF) is not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const GgufFile& file, ModelConfig* config) {
  KVERN_ASSIGN_OR_RETURN(config->num_heads,
                         Uint32(file, "llama.attention.head_count", 1, kMaxHeads));
  KVERN_ASSIGN_OR_RETURN(config->num_kv_heads, Uint32Or(file, "llama.attention.head_count_kv", 1,
                                                        kMaxHeads, config->num_heads));
  if (config->num_heads % config->num_kv_heads != 0) {
    return InvalidArgument(file.source().name(), ": llama.attention.head_count ", config->num_heads,
                           " is not a multiple of head_count_kv ", config->num_kv_heads);
  }
  if (file.Has("llama.attention.key_length")) {
    KVERN_ASSIGN_OR_RETURN(config->head_dim,
                           Uint32(file, "llama.attention.key_length", 1, kMaxHeadDim));
  } else if (config->hidden_size % config->num_heads != 0) {
    return InvalidArgument(file.source().name(), ": llama.embedding_length ", config->hidden_size,
                           " is not a multiple of llama.attention.head_count ", config->num_heads);
  } else {
    config->head_dim = config->hidden_size / config->num_heads;
  }
  if (config->head_dim % 2 != 0 || config->head_dim > kMaxHeadDim) {
    return InvalidArgument(file.source().name(), ": head size ", config->head_dim,
                           " must be even and at most ", kMaxHeadDim);
  }
  for (const char* key : {"llama.attention.value_length", "llama.rope.dimension_count"}) {
    KVERN_ASSIGN_OR_RETURN(uint32_t value, Uint32Or(file, key, 0, UINT32_MAX, config->head_dim));
    if (value != config->head_dim) {
      return Refuse(file, absl::StrCat(key, " is ", value, ", only the head size ",
                                       config->head_dim, " is supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFloats(const GgufFile& file, ModelConfig* config) {
  constexpr const char* kEps = "llama.attention.layer_norm_rms_epsilon";
  KVERN_ASSIGN_OR_RETURN(double eps, file.Float(kEps));
  if (!(eps > 0 && eps <= 1)) {
    return InvalidArgument(file.source().name(), ": ", kEps, " is ", eps,
                           ", must be above 0 and at most 1");
  }
  config->rms_norm_eps = static_cast<float>(eps);
  constexpr const char* kTheta = "llama.rope.freq_base";
  if (file.Has(kTheta)) {
    KVERN_ASSIGN_OR_RETURN(config->rope.theta, file.Float(kTheta));
  }
  if (!(config->rope.theta >= 1 && config->rope.theta <= kMaxRopeTheta)) {
    return InvalidArgument(file.source().name(), ": ", kTheta, " is ", config->rope.theta,
                           ", must be 1 to ", kMaxRopeTheta);
  }
  return absl::OkStatus();
}

// The embedding table is the one place that always states the vocabulary; the others must agree.
absl::Status ReadVocab(const GgufFile& file, ModelConfig* config) {
  const GgufTensor* table = FindTensor(file, "token_embd.weight");
  if (table == nullptr || table->shape.size() != 2) {
    return InvalidArgument(file.source().name(), ": tensor 'token_embd.weight' (",
                           "model.embed_tokens.weight) is missing or not a matrix");
  }
  uint64_t rows = table->shape[0];
  if (rows > kMaxVocab) {
    return InvalidArgument(file.source().name(), ": 'token_embd.weight' has ", rows,
                           " rows, the limit is ", kMaxVocab);
  }
  config->vocab_size = static_cast<uint32_t>(rows);
  if (file.Has("llama.vocab_size")) {
    KVERN_RETURN_IF_ERROR(file.Uint("llama.vocab_size", rows, rows).status());
  }
  if (file.Has("tokenizer.ggml.tokens")) {
    KVERN_ASSIGN_OR_RETURN(uint64_t tokens, file.StringCount("tokenizer.ggml.tokens"));
    if (tokens != rows) {
      return InvalidArgument(file.source().name(), ": tokenizer.ggml.tokens has ", tokens,
                             " entries but 'token_embd.weight' has ", rows, " rows");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadSpecialIds(const GgufFile& file, ModelConfig* config) {
  KVERN_ASSIGN_OR_RETURN(config->bos_id,
                         TokenId(file, "tokenizer.ggml.bos_token_id", config->vocab_size));
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    KVERN_ASSIGN_OR_RETURN(std::optional<uint32_t> id, TokenId(file, key, config->vocab_size));
    std::vector<uint32_t>& ids = config->eos_ids;
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  }
  return absl::OkStatus();
}

void DetectOptionalTensors(const GgufFile& file, ModelConfig* config) {
  config->tied_embeddings = FindTensor(file, "output.weight") == nullptr;
  auto any = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const char* name) { return FindTensor(file, name) != nullptr; });
  };
  config->attention_bias = any(
      {"blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias", "blk.0.attn_output.bias"});
  config->mlp_bias = any({"blk.0.ffn_gate.bias", "blk.0.ffn_up.bias", "blk.0.ffn_down.bias"});
}

absl::Status ReadTokens(const GgufFile& file, uint32_t vocab_size, TokenizerData* data) {
  data->tokens.reserve(vocab_size);
  KVERN_RETURN_IF_ERROR(file.ForEachString("tokenizer.ggml.tokens", kMaxTokenBytes,
                                           [&](uint64_t, std::string&& token) {
                                             data->tokens.push_back(std::move(token));
                                             return absl::OkStatus();
                                           }));
  data->kinds.assign(vocab_size, TokenKind::kNormal);
  if (!file.Has("tokenizer.ggml.token_type")) return absl::OkStatus();
  // ggml's numbers: 0 undefined, then in TokenKind's order from 1.
  return file.ForEachInt("tokenizer.ggml.token_type", [&](uint64_t i, int64_t kind) {
    if (kind < 0 || kind > 6) {
      return InvalidArgument(file.source().name(), ": tokenizer.ggml.token_type[", i, "] is ", kind,
                             ", must be 0 to 6");
    }
    if (kind > 0) data->kinds[i] = static_cast<TokenKind>(kind - 1);
    return absl::OkStatus();
  });
}

absl::Status ReadMerges(const GgufFile& file, TokenizerData* data) {
  constexpr const char* kKey = "tokenizer.ggml.merges";
  KVERN_ASSIGN_OR_RETURN(uint64_t count, file.StringCount(kKey));
  if (count > kMaxMerges) {
    return InvalidArgument(file.source().name(), ": ", kKey, " has ", count,
                           " entries, the limit is ", kMaxMerges);
  }
  data->merges.reserve(count);
  return file.ForEachString(kKey, 2 * kMaxTokenBytes, [&](uint64_t, std::string&& merge) {
    data->merges.push_back(std::move(merge));
    return absl::OkStatus();
  });
}

// Arrays that run beside the tokens must be as long, before anything is read from them.
absl::Status CheckTokenArrays(const GgufFile& file, uint32_t vocab_size) {
  KVERN_RETURN_IF_ERROR(file.StringCount("tokenizer.ggml.tokens").status());  // Length: ReadVocab.
  for (const char* key : {"tokenizer.ggml.token_type", "tokenizer.ggml.scores"}) {
    if (!file.Has(key)) continue;
    KVERN_ASSIGN_OR_RETURN(uint64_t count, file.ArrayCount(key));
    if (count != vocab_size) {
      return InvalidArgument(file.source().name(), ": ", key, " has ", count,
                             " entries but there are ", vocab_size, " tokens");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTokenizerOptions(const GgufFile& file, TokenizerData* data) {
  if (file.Has("tokenizer.ggml.pre")) {
    KVERN_ASSIGN_OR_RETURN(data->pre_tokenizer, file.String("tokenizer.ggml.pre", kMaxNameBytes));
  }
  if (file.Has("tokenizer.chat_template")) {
    KVERN_ASSIGN_OR_RETURN(data->chat_template,
                           file.String("tokenizer.chat_template", kMaxTemplateBytes));
  }
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    KVERN_ASSIGN_OR_RETURN(data->add_bos, file.Bool("tokenizer.ggml.add_bos_token"));
  }
  if (file.Has("tokenizer.ggml.add_space_prefix")) {
    KVERN_ASSIGN_OR_RETURN(data->add_space_prefix, file.Bool("tokenizer.ggml.add_space_prefix"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> GgufModelConfig(const GgufFile& file) {
  KVERN_RETURN_IF_ERROR(RefuseVariants(file));
  ModelConfig config;
  config.architecture = "llama";
  KVERN_ASSIGN_OR_RETURN(config.num_layers, Uint32(file, "llama.block_count", 1, kMaxLayers));
  KVERN_ASSIGN_OR_RETURN(config.hidden_size, Uint32(file, "llama.embedding_length", 1, kMaxHidden));
  KVERN_ASSIGN_OR_RETURN(config.intermediate_size,
                         Uint32(file, "llama.feed_forward_length", 1, kMaxIntermediate));
  KVERN_ASSIGN_OR_RETURN(config.max_seq_len, Uint32(file, "llama.context_length", 1, kMaxSeqLen));
  KVERN_RETURN_IF_ERROR(ReadHeads(file, &config));
  KVERN_RETURN_IF_ERROR(ReadFloats(file, &config));
  KVERN_RETURN_IF_ERROR(ReadVocab(file, &config));
  KVERN_RETURN_IF_ERROR(ReadSpecialIds(file, &config));
  DetectOptionalTensors(file, &config);
  return config;
}

absl::StatusOr<std::optional<TokenizerData>> GgufTokenizer(const GgufFile& file,
                                                           uint32_t vocab_size) {
  if (!file.Has("tokenizer.ggml.model")) return std::nullopt;
  TokenizerData data;
  KVERN_ASSIGN_OR_RETURN(data.model, file.String("tokenizer.ggml.model", kMaxNameBytes));
  if (data.model == "none" || data.model == "no_vocab") return std::nullopt;
  KVERN_RETURN_IF_ERROR(CheckTokenArrays(file, vocab_size));
  KVERN_RETURN_IF_ERROR(ReadTokenizerOptions(file, &data));
  KVERN_ASSIGN_OR_RETURN(data.bos_id, TokenId(file, "tokenizer.ggml.bos_token_id", vocab_size));
  KVERN_ASSIGN_OR_RETURN(data.eos_id, TokenId(file, "tokenizer.ggml.eos_token_id", vocab_size));
  KVERN_RETURN_IF_ERROR(ReadTokens(file, vocab_size, &data));
  if (data.model == "gpt2" || file.Has("tokenizer.ggml.merges")) {
    KVERN_RETURN_IF_ERROR(ReadMerges(file, &data));
  }
  return data;
}

}  // namespace kvern
