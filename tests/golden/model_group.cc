#include "tests/golden/model_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "worker/comm/local.h"
#include "worker/device/cpu/cpu_device.h"

namespace kvern {
namespace {

using nlohmann::json;

constexpr double kClearGap = 1e-2;  // above it a correct implementation must agree

int64_t BlocksFor(int64_t tokens) { return (tokens + kBlockSize - 1) / kBlockSize; }

// One sequence's progress; every rank keeps its own, all alike.
struct Progress {
  std::vector<uint32_t> tokens;  // prompt, then drawn
  std::vector<uint32_t> blocks;
  int64_t computed = 0;
  int64_t prompt = 0;
  int64_t Drawn() const { return static_cast<int64_t>(tokens.size()) - prompt; }
};

std::vector<Progress> StartAll(const std::vector<std::vector<uint32_t>>& prompts, int steps,
                               int64_t num_blocks) {
  std::vector<Progress> all;
  // From the end of the pool downwards, so that no table is the identity.
  auto next = static_cast<uint32_t>(num_blocks);
  for (const auto& prompt : prompts) {
    Progress progress;
    progress.tokens = prompt;
    progress.prompt = static_cast<int64_t>(prompt.size());
    int64_t blocks = BlocksFor(progress.prompt + steps);
    for (int64_t b = 0; b < blocks; ++b) progress.blocks.push_back(--next);
    all.push_back(std::move(progress));
  }
  return all;
}

// Fills the next step and returns which sequences draw in it, in row order.
std::vector<size_t> NextStep(const std::vector<Progress>& all, const RunOptions& options,
                             int64_t budget, BatchLayout& layout, std::vector<size_t>& members) {
  layout = BatchLayout();
  members.clear();
  std::vector<size_t> draws;
  for (size_t i = 0; i < all.size() && budget > 0; ++i) {
    const Progress& p = all[i];
    if (p.Drawn() >= options.steps) continue;
    int64_t open = static_cast<int64_t>(p.tokens.size()) - p.computed;
    int64_t count = std::min({open, options.chunk, budget});
    auto first_row = static_cast<int64_t>(layout.token_ids.size());
    for (int64_t k = 0; k < count; ++k) {
      layout.token_ids.push_back(p.tokens[static_cast<size_t>(p.computed + k)]);
      layout.positions.push_back(static_cast<uint32_t>(p.computed + k));
    }
    layout.sequences.push_back({first_row, p.computed, count, p.blocks});
    members.push_back(i);
    if (count == open) {
      layout.logit_rows.push_back(first_row + count - 1);
      draws.push_back(i);
    }
    budget -= count;
  }
  return draws;
}

GoldenCase CaseOf(const json& item) {
  GoldenCase result;
  result.name = item.value("name", "n" + std::to_string(item["ids"].size()));
  result.ids = item["ids"].get<std::vector<uint32_t>>();
  if (item.contains("last_logits")) {
    result.last_logits = item["last_logits"].get<std::vector<float>>();
  }
  for (const json& step : item["greedy"]) {
    result.greedy.push_back({step["id"], step["logprob"], step["gap"]});
  }
  for (const json& pair : item.value("top20", json::array())) {
    result.top20.emplace_back(pair[0].get<uint32_t>(), pair[1].get<double>());
  }
  return result;
}

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path << " is missing";
  return json::parse(file);
}

}  // namespace

absl::Status ModelGroup::LoadRank(Rank& rank) {
  const int index = rank.comm->rank();
  if (options_.gpu == nullptr) {
    KVERN_ASSIGN_OR_RETURN(rank.device, NewCpuDevice({.threads = options_.threads}));
  } else {
    KVERN_ASSIGN_OR_RETURN(
        rank.device, options_.gpu->NewDevice({index, options_.threads, options_.batch_invariant}));
    std::unique_ptr<Buffer> gathered;
    if (options_.batch_invariant && options_.world > 1) {
      KVERN_ASSIGN_OR_RETURN(gathered,
                             rank.device->Allocate(options_.gpu->GatheredBytes(options_.world)));
    }
    KVERN_ASSIGN_OR_RETURN(
        rank.comm, options_.gpu->NewCommunicator(rank.device.get(), std::move(rank.comm), comm_id_,
                                                 std::move(gathered), 10 * kSecond));
  }
  KVERN_ASSIGN_OR_RETURN(rank.weights,
                         LoadWeights(*checkpoint_, options_.weights, index, options_.world,
                                     config().max_seq_len, *rank.device));
  KVERN_ASSIGN_OR_RETURN(
      rank.decoder, Decoder::Create(rank.weights.get(), rank.device.get(), rank.comm.get(),
                                    {.max_tokens = options_.max_tokens,
                                     .max_logit_rows = std::min<int64_t>(64, options_.max_tokens),
                                     .graphs = options_.graphs}));
  KvCacheShape shape;
  shape.num_blocks = BlocksFor(options_.kv_tokens);
  shape.num_layers = config().num_layers;
  shape.kv_heads = rank.weights->shard.kv_heads.size();
  shape.head_dim = config().head_dim;
  shape.dtype = options_.kv;
  KVERN_ASSIGN_OR_RETURN(rank.cache, rank.device->NewKvCache(shape));
  rank.sampler = std::make_unique<Sampler>(rank.device.get(), rank.comm.get(),
                                           rank.weights->shard.vocab, config().vocab_size);
  return absl::OkStatus();
}

std::unique_ptr<ModelGroup> ModelGroup::Load(const std::string& path, const GroupOptions& options) {
  return Load(Checkpoint::Open(path), options);
}

std::unique_ptr<ModelGroup> ModelGroup::Load(absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint,
                                             const GroupOptions& options) {
  std::vector<uint8_t> comm_id;
  if (options.gpu != nullptr) {
    auto id = options.gpu->NewCommId();
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) return nullptr;
    comm_id = *std::move(id);
  }
  return LoadRanks(std::move(checkpoint), options, comm_id, NewLocalGroup(options.world));
}

std::unique_ptr<ModelGroup> ModelGroup::LoadOne(const std::string& path,
                                                const GroupOptions& options,
                                                std::unique_ptr<Communicator> control,
                                                std::span<const uint8_t> comm_id) {
  std::vector<std::unique_ptr<Communicator>> comms;
  comms.push_back(std::move(control));
  return LoadRanks(Checkpoint::Open(path), options, comm_id, std::move(comms));
}

std::unique_ptr<ModelGroup> ModelGroup::LoadRanks(
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint, const GroupOptions& options,
    std::span<const uint8_t> comm_id, std::vector<std::unique_ptr<Communicator>> comms) {
  auto group = std::make_unique<ModelGroup>();
  group->options_ = options;
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  if (!checkpoint.ok()) return nullptr;
  group->checkpoint_ = *std::move(checkpoint);
  group->comm_id_.assign(comm_id.begin(), comm_id.end());
  group->ranks_.resize(comms.size());
  std::vector<absl::Status> results(group->ranks_.size());
  std::vector<std::thread> threads;  // GPUs meet when they are loaded
  for (size_t r = 0; r < group->ranks_.size(); ++r) {
    group->ranks_[r].comm = std::move(comms[r]);
    threads.emplace_back([&, r] { results[r] = group->LoadRank(group->ranks_[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : results) {
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return nullptr;
  }
  return group;
}

size_t ModelGroup::weights_bytes(int rank) const {
  return ranks_[static_cast<size_t>(rank)].weights->bytes();
}

std::vector<Generated> ModelGroup::Generate(const std::vector<std::vector<uint32_t>>& prompts,
                                            const RunOptions& options) {
  // Shared by the ranks: rank r fills its vocabulary columns of the logits, rank 0 the tokens.
  std::vector<Generated> out(prompts.size());
  auto kept = static_cast<size_t>(options.kept_logits);
  for (Generated& g : out) g.logits.assign(kept, std::vector<float>(config().vocab_size));
  std::vector<absl::Status> results(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([&, r] {
      results[r] = RunRank(ranks_[r], prompts, options, out);
      if (!results[r].ok()) ranks_[r].comm->Abort();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  return out;
}

absl::Status ModelGroup::RunRank(Rank& rank, const std::vector<std::vector<uint32_t>>& prompts,
                                 const RunOptions& options, std::vector<Generated>& out) {
  ResolvedSampling greedy;
  greedy.temperature = 0;
  if (options.logprobs > 0) greedy.logprobs = options.logprobs;
  int64_t num_blocks = BlocksFor(options_.kv_tokens);
  std::vector<Progress> all = StartAll(prompts, options.steps, num_blocks);
  const ShardRange& vocab = rank.weights->shard.vocab;
  BatchLayout layout;
  std::vector<size_t> members;
  while (true) {
    auto draws = NextStep(all, options, options_.max_tokens, layout, members);
    if (members.empty()) return absl::OkStatus();
    KVERN_ASSIGN_OR_RETURN(Tensor logits, rank.decoder->Forward(layout, *rank.cache));
    for (size_t m = 0; m < members.size(); ++m) {
      all[members[m]].computed += layout.sequences[m].count;
    }
    std::vector<SampleRow> rows;
    for (size_t row = 0; row < draws.size(); ++row) {
      Progress& p = all[draws[row]];
      auto draw = static_cast<size_t>(p.Drawn());
      std::vector<std::vector<float>>& kept = out[draws[row]].logits;
      if (draw < kept.size()) {
        const float* values = logits.f32() + static_cast<int64_t>(row) * logits.stride;
        KVERN_RETURN_IF_ERROR(rank.device->CopyToHost(kept[draw].data() + vocab.begin, values,
                                                      vocab.size() * sizeof(float)));
      }
      SampleRow what;
      what.slot = static_cast<Slot>(draws[row]);
      what.params = &greedy;
      what.position = static_cast<uint32_t>(draw);
      rows.push_back(what);
    }
    KVERN_ASSIGN_OR_RETURN(auto samples, rank.sampler->Sample(logits, rows));
    for (const SampledToken& sample : samples) {
      all[sample.slot].tokens.push_back(sample.token_id);
      if (rank.comm->rank() != 0) continue;
      out[sample.slot].tokens.push_back(sample.token_id);
      out[sample.slot].logprobs.push_back(sample.logprob);
    }
  }
}

std::vector<GoldenCase> TinyCases(const std::string& name) {
  std::vector<GoldenCase> cases;
  json golden = ReadJson("tests/golden/tiny/" + name + "/golden.json");
  for (const json& item : golden["cases"]) cases.push_back(CaseOf(item));
  return cases;
}

std::vector<GoldenCase> GgufCases(const std::string& file) {
  std::vector<GoldenCase> cases;
  json golden = ReadJson("tests/golden/tiny/llama_gqa_gguf/golden.json");
  for (const json& entry : golden["files"]) {
    if (entry["file"] != file) continue;
    for (const json& item : entry["cases"]) cases.push_back(CaseOf(item));
  }
  EXPECT_FALSE(cases.empty()) << "golden.json has no " << file;
  return cases;
}

std::vector<GoldenCase> SmolLm2Cases() {
  std::vector<GoldenCase> cases;
  std::ifstream lines("tests/golden/smollm2/logits.jsonl");
  std::ifstream rows("tests/golden/smollm2/last_logits_every16.f32", std::ios::binary);
  EXPECT_TRUE(lines.is_open() && rows.is_open()) << "tests/golden/smollm2 is incomplete";
  constexpr size_t kStride = 16;
  constexpr size_t kRow = 49152 / kStride;
  for (std::string line; std::getline(lines, line);) {
    json item = json::parse(line);
    GoldenCase golden = CaseOf(item);
    golden.logit_stride = kStride;
    golden.last_logits.resize(kRow);
    rows.seekg(static_cast<std::streamoff>(item["last_logits_row"].get<size_t>() * kRow * 4));
    rows.read(reinterpret_cast<char*>(golden.last_logits.data()), kRow * 4);
    EXPECT_TRUE(rows.good());
    cases.push_back(std::move(golden));
  }
  return cases;
}

std::string RealModelPath() {
  const char* path = std::getenv("KVERN_MODEL");
  return path != nullptr ? path : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

void ExpectFollowsReference(const GoldenCase& golden, const Generated& generated, float tolerance) {
  ASSERT_FALSE(generated.logits.empty());
  const std::vector<float>& logits = generated.logits[0];
  ASSERT_EQ(logits.size(), golden.last_logits.size() * golden.logit_stride);
  float worst = 0;
  for (size_t i = 0; i < golden.last_logits.size(); ++i) {
    float difference = std::fabs(logits[i * golden.logit_stride] - golden.last_logits[i]);
    worst = difference <= worst ? worst : difference;  // NaN stays
  }
  EXPECT_LE(worst, tolerance) << golden.name << ": logits";
  for (size_t i = 0; i < generated.tokens.size() && i < golden.greedy.size(); ++i) {
    if (generated.tokens[i] == golden.greedy[i].id) continue;
    EXPECT_LE(golden.greedy[i].gap, kClearGap)
        << golden.name << ": step " << i << " drew " << generated.tokens[i] << ", not "
        << golden.greedy[i].id;
    return;  // another text from here on
  }
}

}  // namespace kvern
