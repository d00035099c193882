#include "worker/engine/rank_options.h"

#include "cluster/base/machine.h"
#include "cluster/base/option_ranges.h"
#include "worker/comm/nccl/load_backend.h"

namespace kvern {
namespace {

WeightChoice WeightsByName(const std::string& name) {
  if (name == "f32") return WeightChoice::kF32;
  if (name == "bf16") return WeightChoice::kBf16;
  if (name == "int8") return WeightChoice::kInt8;
  if (name == "int4") return WeightChoice::kInt4;
  return WeightChoice::kAuto;
}

// Null for the CPU.
absl::StatusOr<const GpuBackend*> GpuByName(const std::string& device) {
  if (device == "emulated") return &EmulatedBackend();
  if (device == "auto") return CudaBackendIfUsable();
  if (device != "cuda") return nullptr;
  absl::StatusOr<const GpuBackend*> backend = CudaBackend();
  if (backend.ok()) return backend;
  return FailedPrecondition("--device: 'cuda': ", backend.status().message());
}

absl::StatusOr<int64_t> CountGpus(const GpuBackend& gpu) {
  absl::StatusOr<int> count = gpu.CountGpus();
  if (count.ok()) return *count;
  return FailedPrecondition("--device: '", gpu.name(), "': ", count.status().message());
}

}  // namespace

void AddRankOptions(Options& options, RankOptions& target) {
  constexpr int64_t kMaxBlocks = INT64_C(1) << 31;
  options.String("model", "PATH", "a GGUF file or a folder with config.json", &target.model);
  options.Choice("device", {"auto", "cpu", "cuda", "emulated"},
                 "where the ranks compute (auto: cuda where there is a GPU, else cpu)",
                 &target.device);
  options.Size("kv-memory", "KV cache per rank (default: memory / 4 / ranks; cuda: what is free)",
               &target.kv_memory_bytes, kKvMemoryRange);
  options.Count("kv-blocks", "N", "KV cache per group in blocks of 16 tokens (0: by memory)",
                &target.kv_blocks, 1, kMaxBlocks);
  options.Choice("kv-dtype", {"auto", "f32", "bf16"}, "type of keys and values (auto: bf16)",
                 &target.kv_dtype);
  options.Choice("weights", {"auto", "f32", "bf16", "int8", "int4"},
                 "type of weights (auto: as in the file)", &target.weights);
  options.Count("threads", "N", "threads per rank (0: cores / ranks)", &target.threads, 1, 1024);
  options.Count("max-seq-len", "N", "longest prompt + answer (0: the model's)", &target.max_seq_len,
                2, kMaxSeqLen);
  options.Count("max-batch-tokens", "N", "tokens computed in one step", &target.max_batch_tokens, 1,
                65536);
  options.Flag("batch-invariant", "same bytes in any batch; always so on the CPU",
               &target.batch_invariant);
  options.Exclusive("kv-memory", "kv-blocks");
}

absl::StatusOr<RankConfig> ToRankConfig(const RankOptions& options, int64_t ranks) {
  if (options.model.empty()) return InvalidArgument("--model: needed (see --help)");
  RankConfig config;
  KVERN_ASSIGN_OR_RETURN(config.gpu, GpuByName(options.device));
  config.batch_invariant = options.batch_invariant;
  if (config.gpu != nullptr && options.weights != "auto" && options.weights != "bf16") {
    return InvalidArgument("--weights: '", options.weights, "' on ", config.gpu->name(),
                           ", allowed: auto, bf16 (a GPU keeps all weights as bf16; others are not "
                           "there yet)");
  }
  config.threads = static_cast<int>(options.threads > 0 ? options.threads : DefaultThreads(ranks));
  config.weights = WeightsByName(options.weights);
  config.kv_dtype = options.kv_dtype == "f32" ? DType::kF32 : DType::kBf16;
  config.kv_blocks = static_cast<uint64_t>(options.kv_blocks);
  config.kv_memory_bytes = options.kv_memory_bytes;
  // An emulated GPU's memory is the host's.
  const bool own_memory = config.gpu != nullptr && config.gpu != &EmulatedBackend();
  if (config.kv_memory_bytes == 0 && !own_memory) config.kv_memory_bytes = DefaultKvMemory(ranks);
  config.max_seq_len = static_cast<uint32_t>(options.max_seq_len);
  config.max_batch_tokens = static_cast<uint32_t>(options.max_batch_tokens);
  return config;
}

absl::Status CheckTp(const RankConfig& config, int64_t tp) {
  if (config.gpu == nullptr) return absl::OkStatus();
  KVERN_ASSIGN_OR_RETURN(const int64_t count, CountGpus(*config.gpu));
  if (tp <= count) return absl::OkStatus();
  return InvalidArgument("--tp: ", tp, ", allowed: 1 to ", count, " (with --device ",
                         config.gpu->name(), " each rank has a GPU, and this machine has ", count,
                         ")");
}

absl::Status CheckGpuIndex(const RankConfig& config, int64_t index, int64_t ranks) {
  if (config.gpu == nullptr) return absl::OkStatus();
  KVERN_ASSIGN_OR_RETURN(const int64_t count, CountGpus(*config.gpu));
  if (index < count) return absl::OkStatus();
  return InvalidArgument("--gpu-index: ", index, ", allowed: 0 to ", count - 1, " (with --device ",
                         config.gpu->name(), " each rank has a GPU, and this machine has ", count,
                         "; ranks on it, --tp times --replicas of kvern-launch: ", ranks, ")");
}

}  // namespace kvern
