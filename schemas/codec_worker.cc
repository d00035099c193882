// Worker, or launcher -> router.
#include "cluster/base/check.h"
#include "schemas/codec_internal.h"
#include "wire/worker_generated.h"

namespace kvern {
namespace codec {
namespace {

constexpr char kIdentifier[] = "KVWR";
constexpr size_t kMaxRuns = 1u << 16;  // choices that one step can serve
constexpr size_t kMaxNacks = 1u << 16;
constexpr size_t kMaxRunTokens = 1u << 20;
constexpr size_t kMaxStartupPhases = 64;
constexpr size_t kMaxReasonBytes = 64u << 10;
constexpr size_t kMaxRendezvousBytes = 1024;
// Counts stay far from where their sums over all groups would overflow.
constexpr uint64_t kMaxBlocks = 1ull << 40;
constexpr uint64_t kMaxBytes = 1ull << 50;
// Envelope, body, and a table for each run and nack.
constexpr uint32_t kMaxTables = 2 + kMaxRuns + kMaxNacks;

using Builder = flatbuffers::FlatBufferBuilder;
using Body = flatbuffers::Offset<void>;

Body Put(Builder& builder, const Join& join) {
  auto group = PutText(builder, join.group);
  auto build = PutText(builder, join.build);
  auto model = PutText(builder, join.model);
  auto device = PutText(builder, join.device);
  auto host = PutText(builder, join.host);
  auto rendezvous = PutText(builder, join.rendezvous);
  std::vector<flatbuffers::Offset<wire::StartupPhase>> phases;
  for (const StartupPhase& phase : join.startup) {
    auto name = PutText(builder, phase.name);
    phases.push_back(wire::CreateStartupPhase(builder, name, phase.seconds));
  }
  auto startup = builder.CreateVector(phases);
  auto comm_id = PutList(builder, join.comm_id);
  wire::JoinBuilder table(builder);
  table.add_group(group);
  table.add_group_incarnation(join.group_incarnation);
  table.add_rank(join.rank);
  table.add_world(join.world);
  table.add_build(build);
  table.add_weights_fingerprint(join.weights_fingerprint);
  table.add_model(model);
  table.add_device(device);
  table.add_host(host);
  table.add_pid(join.pid);
  table.add_kv_blocks(join.kv_blocks);
  table.add_bytes_per_token(join.bytes_per_token);
  table.add_weights_bytes(join.weights_bytes);
  table.add_workspace_bytes(join.workspace_bytes);
  table.add_max_seq_len(join.max_seq_len);
  table.add_vocab_size(join.vocab_size);
  table.add_rendezvous(rendezvous);
  table.add_startup(startup);
  table.add_max_batch_tokens(join.max_batch_tokens);
  table.add_comm_id(comm_id);
  return table.Finish().Union();
}

flatbuffers::Offset<wire::TokenRun> PutRun(Builder& builder, const TokenRun& run) {
  auto ids = PutList(builder, run.token_ids);
  LogprobOffsets logprobs = PutLogprobs(builder, run.logprobs);
  wire::RequestId id = ToWire(run.request_id);
  KVERN_CHECK(!std::holds_alternative<std::string>(run.stop_reason));
  wire::TokenRunBuilder table(builder);
  table.add_request_id(&id);
  table.add_epoch(run.epoch);
  table.add_choice(run.choice);
  table.add_position(run.position);
  table.add_token_ids(ids);
  table.add_logprobs(logprobs.tokens);
  table.add_logprobs_top(logprobs.top);
  table.add_finish_reason(static_cast<wire::FinishReason>(run.finish_reason));
  const auto* stop_id = std::get_if<uint32_t>(&run.stop_reason);
  if (stop_id != nullptr) table.add_stop_token_id(*stop_id);
  return table.Finish();
}

Body Put(Builder& builder, const StepReport& report) {
  std::vector<flatbuffers::Offset<wire::TokenRun>> runs;
  runs.reserve(report.runs.size());
  for (const TokenRun& run : report.runs) runs.push_back(PutRun(builder, run));
  std::vector<flatbuffers::Offset<wire::Nack>> nacks;
  for (const Nack& nack : report.nacks) {
    auto message = PutText(builder, nack.message);
    wire::RequestId id = ToWire(nack.request_id);
    nacks.push_back(wire::CreateNack(builder, &id, nack.epoch,
                                     static_cast<wire::ErrorCode>(nack.code), message));
  }
  auto ages = PutStructs<wire::RankAge>(builder, report.ages, [](const RankAge& age) {
    return wire::RankAge(age.rank, age.step_age_ms);
  });
  auto runs_offset = PutList(builder, runs);
  auto nacks_offset = PutList(builder, nacks);
  return wire::CreateStepReport(builder, report.group_incarnation, report.step_id,
                                report.acked_command, report.used_blocks, report.reserved_blocks,
                                report.running, runs_offset, nacks_offset, ages, report.waiting,
                                report.step_us, report.prefill_tokens, report.preemptions,
                                report.recomputed_tokens)
      .Union();
}

Body Put(Builder& builder, const GroupDown& down) {
  auto group = PutText(builder, down.group);
  auto reason = PutText(builder, down.reason);
  return wire::CreateGroupDown(builder, group, down.group_incarnation, reason).Union();
}

Body Put(Builder& builder, const Leave& leave) {
  return wire::CreateLeave(builder, leave.group_incarnation).Union();
}

Body Put(Builder& builder, const LeaveSoon& leave) {
  return wire::CreateLeaveSoon(builder, leave.group_incarnation).Union();
}

void ReadStartup(const wire::Join& wire, Join& join, Checks& checks) {
  const auto* phases = wire.startup();
  if (phases == nullptr || !checks.Count("startup", phases->size(), kMaxStartupPhases)) return;
  for (flatbuffers::uoffset_t i = 0; i < phases->size(); ++i) {
    StartupPhase& phase = join.startup.emplace_back();
    phase.name = checks.Text({"startup", i, "name"}, phases->Get(i)->name(), kMaxNameBytes);
    phase.seconds = checks.Measure({"startup", i, "seconds"}, phases->Get(i)->seconds());
  }
}

Join Read(const wire::Join& wire, Checks& checks) {
  Join join;
  join.group = checks.Text("group", wire.group(), kMaxNameBytes);
  if (join.group.empty()) checks.OutOfRange("group", "is empty", "1 to 256 bytes");
  join.group_incarnation = wire.group_incarnation();
  join.world = checks.Within<uint32_t>("world", wire.world(), 1, kMaxRanks);
  join.rank = checks.Within<uint32_t>("rank", wire.rank(), 0, std::max(join.world, 1u) - 1);
  join.build = checks.Text("build", wire.build(), kMaxNameBytes);
  join.weights_fingerprint = wire.weights_fingerprint();
  join.model = checks.Text("model", wire.model(), kMaxNameBytes);
  join.device = checks.Text("device", wire.device(), kMaxNameBytes);
  join.host = checks.Text("host", wire.host(), kMaxNameBytes);
  join.pid = wire.pid();
  join.kv_blocks = checks.Within<uint64_t>("kv_blocks", wire.kv_blocks(), 0, kMaxBlocks);
  join.bytes_per_token =
      checks.Within<uint64_t>("bytes_per_token", wire.bytes_per_token(), 0, kMaxBytes);
  join.weights_bytes = checks.Within<uint64_t>("weights_bytes", wire.weights_bytes(), 0, kMaxBytes);
  join.workspace_bytes =
      checks.Within<uint64_t>("workspace_bytes", wire.workspace_bytes(), 0, kMaxBytes);
  join.max_seq_len = wire.max_seq_len();
  join.vocab_size = wire.vocab_size();
  join.max_batch_tokens = wire.max_batch_tokens();
  join.rendezvous = checks.Text("rendezvous", wire.rendezvous(), kMaxRendezvousBytes);
  join.comm_id = checks.List("comm_id", wire.comm_id(), kMaxCommIdBytes);
  ReadStartup(wire, join, checks);
  return join;
}

TokenRun Read(const wire::TokenRun& wire, Checks& checks) {
  TokenRun run;
  run.request_id = FromWire(wire.request_id());
  run.epoch = wire.epoch();
  run.choice = checks.Within<uint32_t>("choice", wire.choice(), 0, kMaxChoices - 1);
  run.position = wire.position();
  run.token_ids = checks.List("token_ids", wire.token_ids(), kMaxRunTokens);
  run.logprobs = ReadLogprobs(wire.logprobs(), wire.logprobs_top(), run.token_ids.size(), checks);
  run.finish_reason =
      checks.Enum<FinishReason>("finish_reason", wire.finish_reason(), wire::FinishReason::MAX);
  if (wire.stop_token_id().has_value()) run.stop_reason = *wire.stop_token_id();
  return run;
}

Nack Read(const wire::Nack& wire, Checks& checks) {
  Nack nack;
  nack.request_id = FromWire(wire.request_id());
  nack.epoch = wire.epoch();
  nack.code = checks.Enum<ErrorCode>("code", wire.code(), wire::ErrorCode::MAX);
  nack.message = checks.Text("message", wire.message(), kMaxReasonBytes);
  return nack;
}

// Reads a list of tables.
template <typename To, typename From>
std::vector<To> ReadTables(const Field& field, const From* list, size_t max, Checks& checks) {
  std::vector<To> result;
  if (list == nullptr || !checks.Count(field, list->size(), max)) return result;
  result.reserve(list->size());
  for (flatbuffers::uoffset_t i = 0; i < list->size() && checks.ok(); ++i) {
    result.push_back(Read(*list->Get(i), checks));
  }
  return result;
}

StepReport Read(const wire::StepReport& wire, Checks& checks) {
  StepReport report;
  report.group_incarnation = wire.group_incarnation();
  report.step_id = wire.step_id();
  report.acked_command = wire.acked_command();
  report.used_blocks = checks.Within<uint64_t>("used_blocks", wire.used_blocks(), 0, kMaxBlocks);
  report.reserved_blocks =
      checks.Within<uint64_t>("reserved_blocks", wire.reserved_blocks(), 0, kMaxBlocks);
  report.running = wire.running();
  report.runs = ReadTables<TokenRun>("runs", wire.runs(), kMaxRuns, checks);
  report.nacks = ReadTables<Nack>("nacks", wire.nacks(), kMaxNacks, checks);
  report.waiting = wire.waiting();
  report.step_us = wire.step_us();
  report.prefill_tokens = wire.prefill_tokens();
  report.preemptions = wire.preemptions();
  report.recomputed_tokens = wire.recomputed_tokens();
  if (wire.ages() != nullptr && checks.Structs("ages", *wire.ages(), kMaxRanks)) {
    for (const wire::RankAge* age : *wire.ages()) {
      report.ages.push_back({age->rank(), age->step_age_ms()});
    }
  }
  return report;
}

GroupDown Read(const wire::GroupDown& wire, Checks& checks) {
  GroupDown down;
  down.group = checks.Text("group", wire.group(), kMaxNameBytes);
  down.group_incarnation = wire.group_incarnation();
  down.reason = checks.Text("reason", wire.reason(), kMaxReasonBytes);
  return down;
}

bool ReadBody(const wire::WorkerToRouter& root, Checks& checks, Decoded<WorkerToRouter>& result) {
  switch (root.body_type()) {
    case wire::WorkerBody::Join:
      result.message = Read(*root.body_as_Join(), checks);
      return true;
    case wire::WorkerBody::StepReport:
      result.message = Read(*root.body_as_StepReport(), checks);
      return true;
    case wire::WorkerBody::GroupDown:
      result.message = Read(*root.body_as_GroupDown(), checks);
      return true;
    case wire::WorkerBody::Leave:
      result.message = Leave{root.body_as_Leave()->group_incarnation()};
      return true;
    case wire::WorkerBody::LeaveSoon:
      result.message = LeaveSoon{root.body_as_LeaveSoon()->group_incarnation()};
      return true;
    case wire::WorkerBody::NONE:
      break;
  }
  return false;
}

}  // namespace
}  // namespace codec

std::string EncodeWorkerToRouter(const WorkerToRouter& message, Incarnation sender) {
  codec::MessageBuilder& builder = codec::ScratchBuilder();
  auto body = std::visit([&](const auto& m) { return codec::Put(builder, m); }, message);
  // The union's kinds have the numbers of the variant's alternatives, after NONE.
  auto kind = static_cast<wire::WorkerBody>(message.index() + 1);
  return codec::FinishMessage(
      builder, wire::CreateWorkerToRouter(builder, kProtocolVersion, sender, kind, body),
      codec::kIdentifier);
}

Decoded<WorkerToRouter> DecodeWorkerToRouter(Bytes bytes) {
  return codec::DecodeEnvelope<wire::WorkerToRouter, WorkerToRouter>(
      bytes, kMaxWorkerMessageBytes, codec::kMaxTables, codec::kIdentifier, codec::ReadBody);
}

}  // namespace kvern
