#include "schemas/files/hf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "schemas/files/byte_source.h"
#include "schemas/files/json.h"

namespace kvern {
namespace {

// Refuses `key` unless it is absent or has the one value that is supported.
absl::Status OnlyString(const JsonFields& fields, const std::string& key,
                        const std::string& supported) {
  KVERN_ASSIGN_OR_RETURN(std::string value, fields.StringOr(key, supported));
  if (value == supported) return absl::OkStatus();
  return fields.Error(key,
                      absl::StrCat("is ", Quoted(value), ", only '", supported, "' is supported"));
}

absl::Status CheckArchitecture(const JsonFields& fields) {
  const nlohmann::json* architectures = fields.Find("architectures");
  if (architectures == nullptr && !fields.Has("model_type")) {
    return fields.Error("model_type", "and architectures are missing");
  }
  KVERN_RETURN_IF_ERROR(OnlyString(fields, "model_type", "llama"));
  if (architectures != nullptr && *architectures != nlohmann::json{"LlamaForCausalLM"}) {
    return fields.Error("architectures", absl::StrCat("is ", ShownJson(*architectures),
                                                      ", only LlamaForCausalLM is supported"));
  }
  KVERN_RETURN_IF_ERROR(OnlyString(fields, "hidden_act", "silu"));
  for (const char* key : {"quantization_config", "sliding_window"}) {
    if (!fields.Has(key)) continue;
    return fields.Error(key, absl::StrCat("is ", ShownJson(*fields.Find(key)), ", not supported"));
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const JsonFields& fields, ModelConfig* config) {
  KVERN_ASSIGN_OR_RETURN(config->num_heads, fields.Uint("num_attention_heads", 1, kMaxHeads));
  KVERN_ASSIGN_OR_RETURN(config->num_kv_heads,
                         fields.UintOr("num_key_value_heads", 1, kMaxHeads, config->num_heads));
  if (config->num_heads % config->num_kv_heads != 0) {
    return fields.Error(
        "num_attention_heads",
        absl::StrCat("is ", config->num_heads, ", not a multiple of num_key_value_heads ",
                     config->num_kv_heads));
  }
  if (fields.Has("head_dim")) {
    KVERN_ASSIGN_OR_RETURN(config->head_dim, fields.Uint("head_dim", 1, kMaxHeadDim));
  } else if (config->hidden_size % config->num_heads != 0) {
    return fields.Error(
        "hidden_size", absl::StrCat("is ", config->hidden_size,
                                    ", not a multiple of num_attention_heads ", config->num_heads));
  } else {
    config->head_dim = config->hidden_size / config->num_heads;
  }
  if (config->head_dim % 2 == 0 && config->head_dim <= kMaxHeadDim) return absl::OkStatus();
  return fields.Error("head_dim", absl::StrCat("is ", config->head_dim,
                                               ", must be even and at most ", kMaxHeadDim));
}

absl::Status ReadLlama3Scaling(const JsonFields& fields, RopeConfig* rope) {
  RopeConfig::Llama3Scaling scaling;
  constexpr double kMaxFactor = 1e6;
  KVERN_ASSIGN_OR_RETURN(scaling.factor, fields.Number("factor", 1, kMaxFactor));
  KVERN_ASSIGN_OR_RETURN(scaling.low_freq_factor,
                         fields.Number("low_freq_factor", 1e-6, kMaxFactor));
  KVERN_ASSIGN_OR_RETURN(scaling.high_freq_factor,
                         fields.Number("high_freq_factor", 1e-6, kMaxFactor));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return fields.Error("high_freq_factor",
                        absl::StrCat("is ", scaling.high_freq_factor,
                                     ", must be above low_freq_factor ", scaling.low_freq_factor));
  }
  KVERN_ASSIGN_OR_RETURN(scaling.original_max_seq_len,
                         fields.Uint("original_max_position_embeddings", 1, kMaxSeqLen));
  rope->llama3 = scaling;
  return absl::OkStatus();
}

// `fields` has rope_theta itself (transformers 4) or in rope_parameters (5).
absl::Status ReadRope(const JsonFields& fields, RopeConfig* rope) {
  KVERN_ASSIGN_OR_RETURN(rope->theta, fields.NumberOr("rope_theta", 1, kMaxRopeTheta, rope->theta));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(key)) continue;
    KVERN_ASSIGN_OR_RETURN(JsonFields inner, fields.Object(key));
    KVERN_ASSIGN_OR_RETURN(rope->theta,
                           inner.NumberOr("rope_theta", 1, kMaxRopeTheta, rope->theta));
    const char* type_key = inner.Has("rope_type") ? "rope_type" : "type";
    KVERN_ASSIGN_OR_RETURN(std::string type, inner.StringOr(type_key, "default"));
    if (type == "llama3") {
      KVERN_RETURN_IF_ERROR(ReadLlama3Scaling(inner, rope));
    } else if (type != "default") {
      return inner.Error(type_key, absl::StrCat("is ", Quoted(type),
                                                ", only 'llama3' and 'default' are supported"));
    }
    KVERN_RETURN_IF_ERROR(inner.NumberOr("partial_rotary_factor", 1, 1, 1).status());
  }
  return fields.NumberOr("partial_rotary_factor", 1, 1, 1).status();
}

// `key` holds one id, a list of ids, or nothing.
absl::Status AddIds(const JsonFields& fields, const std::string& key, uint32_t vocab_size,
                    std::vector<uint32_t>* ids) {
  constexpr size_t kMaxIds = 64;
  const nlohmann::json* value = fields.Find(key);
  if (value == nullptr) return absl::OkStatus();
  bool list = value->is_array();
  size_t count = list ? value->size() : 1;
  if (count > kMaxIds) {
    return fields.Error(key, absl::StrCat("has ", count, " ids, the limit is ", kMaxIds));
  }
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& entry = list ? (*value)[i] : *value;
    absl::StatusOr<uint32_t> id = JsonUint(entry, 0, vocab_size - 1, "an id");
    if (!id.ok()) return fields.Error(key, absl::StrCat(": ", id.status().message()));
    if (std::find(ids->begin(), ids->end(), *id) == ids->end()) ids->push_back(*id);
  }
  return absl::OkStatus();
}

absl::Status ReadSpecialIds(const JsonFields& fields, ModelConfig* config) {
  std::vector<uint32_t> bos;
  KVERN_RETURN_IF_ERROR(AddIds(fields, "bos_token_id", config->vocab_size, &bos));
  if (!bos.empty()) config->bos_id = bos[0];
  return AddIds(fields, "eos_token_id", config->vocab_size, &config->eos_ids);
}

absl::StatusOr<ModelConfig> ReadConfig(const JsonFields& fields) {
  KVERN_RETURN_IF_ERROR(CheckArchitecture(fields));
  ModelConfig config;
  config.architecture = "llama";
  KVERN_ASSIGN_OR_RETURN(config.vocab_size, fields.Uint("vocab_size", 1, kMaxVocab));
  KVERN_ASSIGN_OR_RETURN(config.hidden_size, fields.Uint("hidden_size", 1, kMaxHidden));
  KVERN_ASSIGN_OR_RETURN(config.intermediate_size,
                         fields.Uint("intermediate_size", 1, kMaxIntermediate));
  KVERN_ASSIGN_OR_RETURN(config.num_layers, fields.Uint("num_hidden_layers", 1, kMaxLayers));
  KVERN_RETURN_IF_ERROR(ReadHeads(fields, &config));
  KVERN_ASSIGN_OR_RETURN(config.max_seq_len, fields.Uint("max_position_embeddings", 1, kMaxSeqLen));
  KVERN_ASSIGN_OR_RETURN(double eps, fields.NumberOr("rms_norm_eps", 1e-30, 1, 1e-6));
  config.rms_norm_eps = static_cast<float>(eps);
  KVERN_RETURN_IF_ERROR(ReadRope(fields, &config.rope));
  KVERN_ASSIGN_OR_RETURN(config.tied_embeddings, fields.BoolOr("tie_word_embeddings", false));
  KVERN_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
  KVERN_ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
  KVERN_RETURN_IF_ERROR(ReadSpecialIds(fields, &config));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view config_json,
                                          std::optional<std::string_view> generation_config_json,
                                          const std::string& where) {
  KVERN_ASSIGN_OR_RETURN(nlohmann::json tree, ParseJson(config_json, where));
  KVERN_ASSIGN_OR_RETURN(JsonFields fields, JsonFields::Of(tree, where));
  KVERN_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(fields));
  if (generation_config_json) {
    std::string there = absl::StrCat(where, " (generation_config.json beside it)");
    KVERN_ASSIGN_OR_RETURN(nlohmann::json generation, ParseJson(*generation_config_json, there));
    KVERN_ASSIGN_OR_RETURN(JsonFields more, JsonFields::Of(generation, there));
    KVERN_RETURN_IF_ERROR(AddIds(more, "eos_token_id", config.vocab_size, &config.eos_ids));
  }
  return config;
}

}  // namespace kvern
