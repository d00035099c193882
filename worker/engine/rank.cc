#include "worker/engine/rank.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cluster/base/clock.h"
#include "cluster/base/machine.h"
#include "cluster/base/options.h"
#include "cluster/base/rng.h"
#include "cluster/capacity/kv_budget.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/ops.h"
#include "worker/engine/leader_loop.h"
#include "worker/engine/rank_loop.h"

namespace kvern {
namespace {

// Bounds the logits of a step: 50 MB for 256 rows of 49,152 columns.
constexpr uint32_t kMaxSampleRows = 256;
// Choices that run at once; what a plan can name.
constexpr uint32_t kMaxSequences = 1u << 16;
// One part in so many of a GPU's memory is left to what comes later: NCCL's buffers, recorded
// steps, kernels that are loaded when they are first used.
constexpr size_t kKeptShare = 10;

double SecondsSince(Time start) { return static_cast<double>(MonotonicNow() - start) / 1e9; }

// Runs `phase` and notes how long it took; parts of a phase add up.
template <typename Phase>
absl::Status Timed(Join& join, const char* name, Phase phase) {
  Time start = MonotonicNow();
  KVERN_RETURN_IF_ERROR(phase());
  auto known = std::find_if(join.startup.begin(), join.startup.end(),
                            [name](const StartupPhase& other) { return other.name == name; });
  if (known == join.startup.end()) known = join.startup.insert(known, {name, 0});
  known->seconds += SecondsSince(start);
  return absl::OkStatus();
}

// Differs when ranks were started with options that must agree.
uint64_t OptionsFingerprint(uint64_t checkpoint, const RankConfig& config) {
  uint64_t types =
      static_cast<uint64_t>(config.weights) << 8 | static_cast<uint64_t>(config.kv_dtype);
  uint64_t arithmetic = config.gpu == nullptr ? 0 : config.batch_invariant ? 2 : 1;
  return HashCounter(checkpoint, types | arithmetic << 16, config.max_seq_len,
                     config.max_batch_tokens);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rank>> Rank::Open(const Checkpoint& checkpoint,
                                                 const RankConfig& config) {
  std::unique_ptr<Rank> rank(new Rank(checkpoint, config));
  KVERN_RETURN_IF_ERROR(rank->Allocate(checkpoint));
  Join& join = rank->join_;
  join.rank = config.rank;
  join.world = config.world;
  join.build = KVERN_VERSION;
  join.weights_fingerprint = OptionsFingerprint(checkpoint.Fingerprint(), rank->config_);
  join.device = rank->device_->name();
  // All weights are kept as one type there, whatever the file has.
  if (config.gpu != nullptr) join.device += " bf16";
  join.max_seq_len = rank->config_.max_seq_len;
  join.vocab_size = rank->model_.vocab_size;
  join.max_batch_tokens = rank->config_.max_batch_tokens;
  if (config.gpu != nullptr && config.world > 1 && config.rank == 0) {
    KVERN_ASSIGN_OR_RETURN(join.comm_id, config.gpu->NewCommId());
  }
  return rank;
}

Rank::~Rank() {
  if (decoder_ != nullptr) decoder_->ForgetRecordedSteps();
  comm_.Leave();
}

// A GPU's memory is laid out before any is taken, keys and values last, since they may take what is
// left. What a host has left shows only when the weights are there.
absl::Status Rank::Allocate(const Checkpoint& checkpoint) {
  PlannedWeights weights;
  KVERN_RETURN_IF_ERROR(Timed(join_, "weights", [&] { return PlanShard(checkpoint, weights); }));
  KVERN_RETURN_IF_ERROR(Timed(join_, "workspace", [&] { return AllocateWorkspace(); }));
  const auto allocate_kv = [&] {
    return Timed(join_, "kv", [&]() -> absl::Status {
      KVERN_RETURN_IF_ERROR(AllocateKv());
      return device_->Commit();
    });
  };
  if (!device_->host_memory()) KVERN_RETURN_IF_ERROR(allocate_kv());
  if (device_->host_memory()) KVERN_RETURN_IF_ERROR(CheckHostMemory());
  KVERN_RETURN_IF_ERROR(Timed(join_, "weights", weights.fill));
  if (device_->host_memory()) KVERN_RETURN_IF_ERROR(allocate_kv());
  executor_ =
      std::make_unique<ModelExecutor>(device_.get(), decoder_.get(), cache_.get(), sampler_.get());
  return absl::OkStatus();
}

absl::Status Rank::OpenDevice() {
  if (config_.gpu == nullptr) {
    CpuDeviceConfig device;
    device.threads = config_.threads;
    KVERN_ASSIGN_OR_RETURN(device_, NewCpuDevice(device));
    return absl::OkStatus();
  }
  GpuDeviceConfig device;
  device.index = config_.gpu_index >= 0 ? config_.gpu_index : static_cast<int>(config_.rank);
  device.host_threads = config_.threads;
  device.batch_invariant = config_.batch_invariant;
  KVERN_ASSIGN_OR_RETURN(device_, config_.gpu->NewDevice(device));
  return absl::OkStatus();
}

absl::Status Rank::PlanShard(const Checkpoint& checkpoint, PlannedWeights& planned) {
  if (config_.max_seq_len == 0) config_.max_seq_len = model_.max_seq_len;
  if (config_.max_seq_len > model_.max_seq_len) {
    return InvalidArgument("--max-seq-len: ", config_.max_seq_len, ", the model allows ",
                           model_.max_seq_len);
  }
  KVERN_RETURN_IF_ERROR(OpenDevice());
  KVERN_RETURN_IF_ERROR(BoundKv());
  // No sequence is longer than all blocks together, whatever the model claims.
  const auto longest = static_cast<uint32_t>(std::min<uint64_t>(
      config_.max_seq_len, static_cast<uint64_t>(kv_shape_.num_blocks) * kBlockSize));
  device_->BeginLayout();
  KVERN_ASSIGN_OR_RETURN(planned,
                         PlanWeights(checkpoint, config_.weights, static_cast<int>(config_.rank),
                                     static_cast<int>(config_.world), longest, *device_));
  weights_ = std::move(planned.weights);
  join_.weights_bytes = weights_->bytes();
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Rank::KvMemory() {
  if (config_.kv_memory_bytes > 0) return config_.kv_memory_bytes;
  KVERN_ASSIGN_OR_RETURN(const Device::Memory memory, device_->OwnMemory());
  const size_t kept = memory.total_bytes / kKeptShare;
  if (memory.free_bytes > kept) return memory.free_bytes - kept;
  return absl::ResourceExhaustedError(absl::StrCat(
      "no memory for keys and values: ", FormatSize(memory.free_bytes), " of the device's ",
      FormatSize(memory.total_bytes), " are free beside weights (", FormatSize(join_.weights_bytes),
      ") and workspace (", FormatSize(join_.workspace_bytes), "), of which ", FormatSize(kept),
      " are to stay free"));
}

absl::StatusOr<uint64_t> Rank::KvBlocks(const KvCacheShape& shape) {
  const uint64_t block_bytes = shape.BlockBytes();
  uint64_t blocks = config_.kv_blocks;
  if (blocks == 0) {
    KVERN_ASSIGN_OR_RETURN(const uint64_t bytes, KvMemory());
    blocks = bytes / block_bytes;
    if (blocks == 0) {
      return InvalidArgument("--kv-memory: ", FormatSize(bytes),
                             ", allowed: ", FormatSize(block_bytes),
                             " or more (this rank's part of one block)");
    }
  }
  return std::min<uint64_t>(blocks, std::numeric_limits<BlockId>::max());
}

// Before anything takes memory: no fewer blocks than there will be, as the rope tables are made for
// what fits into them.
absl::Status Rank::BoundKv() {
  KVERN_ASSIGN_OR_RETURN(const std::vector<ShardRange> kv_heads,
                         SplitKvHeads(model_.num_kv_heads, config_.world));
  kv_shape_.num_layers = model_.num_layers;
  kv_shape_.kv_heads = kv_heads[config_.rank].size();
  kv_shape_.head_dim = model_.head_dim;
  kv_shape_.dtype = config_.kv_dtype;
  KVERN_ASSIGN_OR_RETURN(const uint64_t blocks, KvBlocks(kv_shape_));
  kv_shape_.num_blocks = static_cast<int64_t>(blocks);
  return absl::OkStatus();
}

// The system promises more than it has, and ends a process that takes it at its word.
absl::Status Rank::CheckHostMemory() const {
  const uint64_t available = AvailableMemory();
  if (join_.weights_bytes + join_.workspace_bytes <= available) return absl::OkStatus();
  return ResourceExhausted("weights of ", FormatSize(join_.weights_bytes), " (",
                           FormatSize(weights_->rope_bytes()), " of them for ",
                           weights_->max_seq_len, " positions of max_seq_len) and workspace of ",
                           FormatSize(join_.workspace_bytes), "; of the memory ",
                           FormatSize(available), " are available");
}

absl::Status Rank::AllocateKv() {
  KvCacheShape shape = kv_shape_;
  KVERN_ASSIGN_OR_RETURN(const uint64_t blocks, KvBlocks(shape));
  // A GPU that another process has left meanwhile has room for more than the rope tables.
  shape.num_blocks = std::min(shape.num_blocks, static_cast<int64_t>(blocks));
  absl::StatusOr<std::unique_ptr<KvCache>> cache = device_->NewKvCache(shape);
  if (absl::IsResourceExhausted(cache.status())) {
    return ResourceExhausted(config_.kv_blocks > 0 ? "--kv-blocks" : "--kv-memory", ": ",
                             cache.status().message());
  }
  KVERN_RETURN_IF_ERROR(cache.status());
  cache_ = *std::move(cache);
  join_.kv_blocks = static_cast<uint64_t>(shape.num_blocks);
  join_.bytes_per_token = shape.BlockBytes() / kBlockSize;
  return absl::OkStatus();
}

absl::Status Rank::AllocateWorkspace() {
  KVERN_ASSIGN_OR_RETURN(decoder_, Decoder::Create(weights_.get(), device_.get(), &comm_,
                                                   {.max_tokens = config_.max_batch_tokens,
                                                    .max_logit_rows = max_sample_rows(),
                                                    .graphs = config_.graphs}));
  sampler_ =
      std::make_unique<Sampler>(device_.get(), &comm_, weights_->shard.vocab, model_.vocab_size);
  join_.workspace_bytes = decoder_->workspace_bytes() + device_->own_bytes();
  if (config_.gpu != nullptr && config_.batch_invariant && config_.world > 1) {
    const size_t bytes = config_.gpu->GatheredBytes(static_cast<int>(config_.world));
    KVERN_ASSIGN_OR_RETURN(gathered_, device_->Allocate(bytes));
    join_.workspace_bytes += gathered_->bytes();
  }
  return absl::OkStatus();
}

uint32_t Rank::max_sample_rows() const {
  return std::min(config_.max_batch_tokens, kMaxSampleRows);
}

void Rank::AddPhase(std::string name, double seconds) {
  join_.startup.insert(join_.startup.begin(), {std::move(name), seconds});
}

absl::Status Rank::SetCommunicator(std::unique_ptr<Communicator> comm,
                                   std::span<const uint8_t> comm_id, Duration timeout) {
  // Every rank is up by now, so what is left takes no longer than this, twice.
  constexpr Duration kConnectTimeout = 25 * kSecond;
  if (config_.gpu != nullptr && config_.world > 1) {
    KVERN_ASSIGN_OR_RETURN(comm,
                           config_.gpu->NewCommunicator(device_.get(), std::move(comm), comm_id,
                                                        std::move(gathered_), kConnectTimeout));
  }
  comm->SetTimeout(kConnectTimeout);
  comm_.Set(std::move(comm));
  if (config_.gpu != nullptr) KVERN_RETURN_IF_ERROR(WarmUp());
  comm_.SetTimeout(timeout);
  return absl::OkStatus();
}

// At first use a GPU loads kernels, chooses algorithms and connects to its peers: seconds that
// would be the first request's. What this leaves in block 0 is overwritten before it is read.
absl::Status Rank::WarmUp() {
  const uint32_t longest = weights_->max_seq_len;
  const uint32_t prompt = std::min({uint32_t{kBlockSize - 1}, config_.max_batch_tokens, longest});
  const std::vector<uint32_t> blocks = {0};
  std::vector<LogitAnswer> answers;
  for (const uint32_t start : {0u, prompt}) {  // a prompt, then one more token
    if (start == longest) break;
    const uint32_t count = start == 0 ? prompt : 1;
    BatchLayout layout;
    layout.sequences.push_back({0, start, count, blocks});
    layout.token_ids.assign(count, 0);
    for (uint32_t i = 0; i < count; ++i) layout.positions.push_back(start + i);
    layout.logit_rows = {count - 1};
    KVERN_ASSIGN_OR_RETURN(Tensor logits, decoder_->Forward(layout, *cache_));
    device_->ops().AskLogits(logits, weights_->shard.vocab.begin, {{LogitQuery{}}}, answers);
    KVERN_RETURN_IF_ERROR(device_->Synchronize());
  }
  return absl::OkStatus();
}

absl::Status Rank::Run(const GroupStart& start, LeaderPort* port,
                       const std::function<void()>& between) {
  PlanChannel channel(&comm_);
  absl::Status status = port != nullptr ? RunLeader(start, *port, channel)
                                        : RunRankLoop(channel, *executor_, between);
  if (!status.ok()) comm_.Abort();
  return status;
}

absl::Status Rank::RunLeader(const GroupStart& start, LeaderPort& port, PlanChannel& channel) {
  if (start.kv_blocks == 0 || start.kv_blocks > join_.kv_blocks) {
    return Internal("the group was given ", start.kv_blocks, " blocks, this rank has ",
                    join_.kv_blocks);
  }
  SchedulerConfig config;
  config.num_blocks = start.kv_blocks;
  config.max_batch_tokens = config_.max_batch_tokens;
  config.max_sequences = static_cast<uint32_t>(std::min<uint64_t>(start.kv_blocks, kMaxSequences));
  config.max_sample_rows = max_sample_rows();
  config.max_seq_len = config_.max_seq_len;
  config.vocab_size = model_.vocab_size;
  config.plans_in_flight = config_.plans_in_flight;
  if (config.plans_in_flight == 0) config.plans_in_flight = config_.gpu == nullptr ? 1 : 2;
  Scheduler scheduler(config);
  LeaderConfig leader;
  leader.group_incarnation = start.group_incarnation;
  leader.world = config_.world;
  leader.heartbeat = start.lease_ms * kMillisecond / 4;
  return LeaderLoop(leader, &scheduler, executor_.get(), &channel, &port).Run();
}

}  // namespace kvern
