// Checkpoint::FromFolder: config.json beside one safetensors file, or shards and their index.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "schemas/files/checkpoint.h"
#include "schemas/files/hf_config.h"
#include "schemas/files/json.h"
#include "schemas/files/limits.h"
#include "schemas/files/safetensors.h"

namespace kvern {
namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr uint64_t kMaxIndexBytes = 32 << 20;
constexpr size_t kMaxShards = 512;  // Each stays open: bounded below the usual limit on files.
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// A small text file of the folder; absent when there is none.
absl::StatusOr<std::optional<std::string>> ReadText(const ModelFolder& folder,
                                                    const std::string& file, uint64_t max_bytes) {
  absl::StatusOr<std::shared_ptr<const ByteSource>> source = folder.open(file);
  if (absl::IsNotFound(source.status())) return std::nullopt;
  if (!source.ok()) return source.status();
  if ((*source)->size() > max_bytes) {
    return InvalidArgument((*source)->name(), " has ", (*source)->size(), " bytes, the limit is ",
                           max_bytes);
  }
  std::string text((*source)->size(), '\0');
  KVERN_RETURN_IF_ERROR((*source)->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// A file of this very folder: nothing that leads out of it, nothing hidden.
bool IsPlainFileName(const std::string& name) {
  if (name.empty() || name.size() > 255 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
  });
}

// Tensor name -> shard file name, in the order of the names.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ParseIndex(const std::string& text, const std::string& where) {
  JsonLimits limits;
  limits.max_bytes = kMaxIndexBytes;
  limits.max_depth = 8;
  limits.max_values = kMaxTensors + 1024;
  limits.max_string_bytes = 4096;
  KVERN_ASSIGN_OR_RETURN(nlohmann::json tree, ParseJson(text, where, limits));
  KVERN_ASSIGN_OR_RETURN(JsonFields fields, JsonFields::Of(tree, where));
  KVERN_RETURN_IF_ERROR(fields.Object("weight_map").status());
  WeightMap map;
  for (const auto& [tensor, file] : fields.Find("weight_map")->items()) {
    if (!file.is_string()) {
      return fields.Error("weight_map", absl::StrCat("gives tensor ", Quoted(tensor), " the shard ",
                                                     ShownJson(file)));
    }
    const std::string& name = file.get_ref<const std::string&>();
    if (!IsPlainFileName(name)) {
      return fields.Error("weight_map",
                          absl::StrCat("gives tensor ", Quoted(tensor), " the shard ", Quoted(name),
                                       ", which is not a plain file name"));
    }
    map.emplace(tensor, name);
  }
  if (map.empty()) return fields.Error("weight_map", "is empty");
  return map;
}

absl::StatusOr<std::vector<std::string>> ShardNames(const WeightMap& map,
                                                    const std::string& where) {
  std::vector<std::string> names;
  for (const auto& [tensor, file] : map) {
    auto at = std::lower_bound(names.begin(), names.end(), file);
    if (at != names.end() && *at == file) continue;
    if (names.size() == kMaxShards) {
      return InvalidArgument(where, ": more shards than the limit of ", kMaxShards);
    }
    names.insert(at, file);
  }
  return names;
}

absl::Status AddTensors(const ByteSource& source, uint32_t index,
                        std::vector<TensorInfo>* tensors) {
  KVERN_ASSIGN_OR_RETURN(std::vector<SafetensorsTensor> found, ParseSafetensors(source));
  if (found.size() > kMaxTensors - tensors->size()) {
    return InvalidArgument(source.name(), ": more tensors than the limit of ", kMaxTensors);
  }
  for (SafetensorsTensor& tensor : found) {
    TensorInfo info;
    info.name = std::move(tensor.name);
    info.shape = std::move(tensor.shape);
    info.bytes = tensor.bytes;
    info.source = index;
    info.offset = tensor.offset;
    if (tensor.type->dtype) {
      info.dtype = *tensor.type->dtype;
    } else {
      info.unread_type = tensor.type->name;
    }
    tensors->push_back(std::move(info));
  }
  return absl::OkStatus();
}

// Every tensor of the index is in the shard that the index says.
absl::Status CheckIndex(const WeightMap& map, const std::vector<std::string>& shards,
                        std::vector<TensorInfo>& tensors, const std::string& where) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.name != b.name ? a.name < b.name : a.source < b.source;
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i - 1].name != tensors[i].name) continue;
    return InvalidArgument(where, ": tensor ", Quoted(tensors[i].name), " is in two shards, ",
                           Quoted(shards[tensors[i - 1].source]), " and ",
                           Quoted(shards[tensors[i].source]));
  }
  for (const auto& [name, shard] : map) {
    auto it = std::lower_bound(
        tensors.begin(), tensors.end(), name,
        [](const TensorInfo& tensor, const std::string& n) { return tensor.name < n; });
    bool there = it != tensors.end() && it->name == name && shards[it->source] == shard;
    if (there) continue;
    return InvalidArgument(where, ": tensor ", Quoted(name), " is not in shard ", Quoted(shard));
  }
  return absl::OkStatus();
}

struct Weights {
  std::vector<std::shared_ptr<const ByteSource>> sources;
  std::vector<TensorInfo> tensors;
};

absl::StatusOr<Weights> OpenShards(const ModelFolder& folder, const std::string& index) {
  std::string where = absl::StrCat(folder.name, "/", kIndexFile);
  KVERN_ASSIGN_OR_RETURN(WeightMap map, ParseIndex(index, where));
  KVERN_ASSIGN_OR_RETURN(std::vector<std::string> shards, ShardNames(map, where));
  Weights weights;
  for (const std::string& shard : shards) {
    absl::StatusOr<std::shared_ptr<const ByteSource>> source = folder.open(shard);
    if (!source.ok()) {
      return absl::Status(source.status().code(), absl::StrCat(where, ": shard ", Quoted(shard),
                                                               ": ", source.status().message()));
    }
    auto number = static_cast<uint32_t>(weights.sources.size());
    KVERN_RETURN_IF_ERROR(AddTensors(**source, number, &weights.tensors));
    weights.sources.push_back(*std::move(source));
  }
  KVERN_RETURN_IF_ERROR(CheckIndex(map, shards, weights.tensors, where));
  return weights;
}

// As transformers does: the single file is preferred to an index.
absl::StatusOr<Weights> OpenWeights(const ModelFolder& folder) {
  absl::StatusOr<std::shared_ptr<const ByteSource>> single = folder.open(kSingleFile);
  if (single.ok()) {
    Weights weights;
    KVERN_RETURN_IF_ERROR(AddTensors(**single, 0, &weights.tensors));
    weights.sources.push_back(*std::move(single));
    return weights;
  }
  if (!absl::IsNotFound(single.status())) return single.status();
  KVERN_ASSIGN_OR_RETURN(std::optional<std::string> index,
                         ReadText(folder, kIndexFile, kMaxIndexBytes));
  if (!index) {
    return absl::NotFoundError(
        absl::StrCat(folder.name, " has neither ", kSingleFile, " nor ", kIndexFile));
  }
  return OpenShards(folder, *index);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::FromFolder(const ModelFolder& folder) {
  KVERN_ASSIGN_OR_RETURN(std::optional<std::string> config,
                         ReadText(folder, "config.json", kMaxConfigBytes));
  if (!config) return absl::NotFoundError(absl::StrCat(folder.name, " has no config.json"));
  KVERN_ASSIGN_OR_RETURN(std::optional<std::string> generation,
                         ReadText(folder, "generation_config.json", kMaxConfigBytes));
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint());
  KVERN_ASSIGN_OR_RETURN(
      checkpoint->config_,
      ParseHfConfig(*config, generation, absl::StrCat(folder.name, "/config.json")));
  KVERN_ASSIGN_OR_RETURN(Weights weights, OpenWeights(folder));
  checkpoint->name_ = folder.name;
  checkpoint->sources_ = std::move(weights.sources);
  checkpoint->tensors_ = std::move(weights.tensors);
  KVERN_RETURN_IF_ERROR(checkpoint->Finish());
  return checkpoint;
}

}  // namespace kvern
