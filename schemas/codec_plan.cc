// Leader -> ranks: plans, with a hash behind them.
#include "cluster/base/rng.h"
#include "schemas/codec_internal.h"
#include "wire/worker_generated.h"

namespace kvern {
namespace codec {
namespace {

constexpr char kIdentifier[] = "KVPL";
constexpr size_t kMaxSlots = 1u << 16;  // sequences that run at once
constexpr size_t kMaxRows = 1u << 16;
constexpr size_t kMaxCopies = 1u << 20;
constexpr size_t kMaxSequenceTokens = 2 * kMaxPromptTokens;  // prompt and what was emitted
// Envelope, plan; a start has its own table and sampling parameters, an append one table.
constexpr uint32_t kMaxTables = 2 + 2 * kMaxSlots + kMaxSlots;

using Builder = flatbuffers::FlatBufferBuilder;

// One multiplication for each 8 bytes: a plan is hashed by every rank in every step. Not for
// adversaries: it finds a rank that read other bytes than its leader wrote.
uint64_t HashBytes(Bytes bytes) {
  constexpr uint64_t kMultiplier = 0x9fb21c651e98df25ull;  // Odd; from Pelle Evensen's rrmxmx.
  uint64_t hash = Mix64(bytes.size());
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 29;
  }
  uint64_t tail = 0;
  if (i < bytes.size()) std::memcpy(&tail, bytes.data() + i, bytes.size() - i);
  return Mix64(hash ^ tail);
}

flatbuffers::Offset<wire::SequenceStart> PutStart(Builder& builder, const SequenceStart& start) {
  auto tokens = PutList(builder, start.tokens);
  auto sampling = PutSampling(builder, start.sampling);
  auto eos = PutList(builder, start.eos_ids);
  return wire::CreateSequenceStart(builder, start.slot, tokens, start.prompt_tokens, start.choice,
                                   sampling, eos);
}

flatbuffers::Offset<wire::Plan> PutPlan(Builder& builder, const StepPlan& plan) {
  auto releases = PutList(builder, plan.releases);
  std::vector<flatbuffers::Offset<wire::SequenceStart>> starts;
  for (const SequenceStart& start : plan.starts) starts.push_back(PutStart(builder, start));
  auto starts_offset = PutList(builder, starts);
  auto forks = PutStructs<wire::SequenceFork>(builder, plan.forks, [](const SequenceFork& fork) {
    return wire::SequenceFork(fork.from, fork.to, fork.choice);
  });
  std::vector<flatbuffers::Offset<wire::BlockAppend>> appends;
  for (const BlockAppend& append : plan.appends) {
    auto blocks = PutList(builder, append.blocks);
    appends.push_back(wire::CreateBlockAppend(builder, append.slot, append.first, blocks));
  }
  auto appends_offset = PutList(builder, appends);
  auto copies = PutStructs<wire::BlockCopy>(builder, plan.copies, [](const BlockCopy& copy) {
    return wire::BlockCopy(copy.from, copy.to);
  });
  auto rows = PutStructs<wire::PlanRow>(builder, plan.rows, [](const PlanRow& row) {
    return wire::PlanRow(row.slot, row.start, row.count, row.sample);
  });
  return wire::CreatePlan(builder, plan.step_id, plan.previous_samples_hash, releases,
                          starts_offset, forks, appends_offset, copies, rows, plan.stop);
}

SequenceStart Read(const wire::SequenceStart& wire, Checks& checks) {
  SequenceStart start;
  start.slot = wire.slot();
  start.tokens = checks.List("tokens", wire.tokens(), kMaxSequenceTokens);
  start.prompt_tokens = checks.Within<uint32_t>("prompt_tokens", wire.prompt_tokens(), 0,
                                                static_cast<uint32_t>(start.tokens.size()));
  start.choice = checks.Within<uint32_t>("choice", wire.choice(), 0, kMaxChoices - 1);
  start.sampling = ReadResolvedSampling(wire.sampling(), checks);
  start.eos_ids = checks.List("eos_ids", wire.eos_ids(), kMaxStopTokenIds);
  return start;
}

// Calls `read` for each entry of a list of at most `max`.
template <typename List, typename ReadEntry>
void ForEach(const Field& field, const List* list, size_t max, Checks& checks, ReadEntry read) {
  if (list == nullptr || !checks.Count(field, list->size(), max)) return;
  for (flatbuffers::uoffset_t i = 0; i < list->size() && checks.ok(); ++i) read(*list->Get(i));
}

StepPlan Read(const wire::Plan& wire, Checks& checks) {
  StepPlan plan;
  plan.step_id = wire.step_id();
  plan.previous_samples_hash = wire.previous_samples_hash();
  plan.releases = checks.List("releases", wire.releases(), kMaxSlots);
  ForEach("starts", wire.starts(), kMaxSlots, checks,
          [&](const auto& start) { plan.starts.push_back(Read(start, checks)); });
  ForEach("forks", wire.forks(), kMaxSlots, checks, [&](const auto& fork) {
    uint32_t choice = checks.Within<uint32_t>("choice", fork.choice(), 0, kMaxChoices - 1);
    plan.forks.push_back({fork.from(), fork.to(), choice});
  });
  ForEach("appends", wire.appends(), kMaxSlots, checks, [&](const auto& append) {
    plan.appends.push_back({append.slot(), append.first(),
                            checks.List("blocks", append.blocks(), kMaxSequenceTokens)});
  });
  ForEach("copies", wire.copies(), kMaxCopies, checks, [&](const auto& copy) {
    plan.copies.push_back({copy.from(), copy.to()});
  });
  ForEach("rows", wire.rows(), kMaxRows, checks, [&](const auto& row) {
    plan.rows.push_back({row.slot(), row.start(), row.count(), row.sample()});
  });
  plan.stop = wire.stop();
  return plan;
}

}  // namespace
}  // namespace codec

std::string EncodePlan(const StepPlan& plan) {
  codec::MessageBuilder& builder = codec::ScratchBuilder();
  auto body = codec::PutPlan(builder, plan);
  builder.Finish(wire::CreatePlanMessage(builder, kProtocolVersion, body), codec::kIdentifier);
  std::string message;
  message.reserve(builder.GetSize() + sizeof(uint64_t));
  message.assign(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
  uint64_t hash = codec::HashBytes(std::as_bytes(std::span(message)));
  message.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  return message;
}

Decoded<StepPlan> DecodePlan(Bytes bytes) {
  Decoded<StepPlan> result;
  if (bytes.size() < sizeof(uint64_t)) {
    result.failure = DecodeFailure::kMalformed;
    result.error = absl::StrCat("a plan of ", bytes.size(), " bytes");
    return result;
  }
  Bytes body = bytes.first(bytes.size() - sizeof(uint64_t));
  std::optional<codec::AlignedInput> input;
  const auto* root = codec::OpenEnvelope<wire::PlanMessage>(body, kMaxPlanBytes, codec::kMaxTables,
                                                            codec::kIdentifier, input,
                                                            &result.failure, &result.error);
  if (root == nullptr) return result;
  uint64_t hash;
  std::memcpy(&hash, bytes.data() + body.size(), sizeof(hash));
  if (hash != codec::HashBytes(body)) {
    result.failure = DecodeFailure::kMalformed;
    result.error =
        absl::StrCat("plan hash ", hash, " is not that of the ", body.size(), " bytes before it");
    return result;
  }
  codec::Checks checks(body, nullptr);
  if (root->plan() == nullptr) {
    checks.Missing("plan");
  } else {
    result.message = codec::Read(*root->plan(), checks);
  }
  if (!checks.ok()) {
    result.failure = checks.failure();
    result.error = checks.TakeError();
  }
  return result;
}

}  // namespace kvern
