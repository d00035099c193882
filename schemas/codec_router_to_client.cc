// Router -> client.
#include "schemas/codec_internal.h"
#include "wire/client_generated.h"

namespace kvern {
namespace codec {
namespace {

constexpr char kIdentifier[] = "KVRC";
constexpr size_t kMaxDeltaTokens = 1u << 20;
constexpr size_t kMaxDeltaTextBytes = 32u << 20;
constexpr size_t kMaxErrorTextBytes = 64u << 10;
constexpr size_t kMaxGroups = 1u << 14;
// Envelope, body, and a delta's two tables (itself and its usage).
constexpr uint32_t kMaxTables = 2 + 2 * kMaxDeltas;

using Builder = flatbuffers::FlatBufferBuilder;
using Body = flatbuffers::Offset<void>;

Body Put(Builder& builder, const Welcome& welcome) {
  auto model = PutText(builder, welcome.model);
  return wire::CreateWelcome(builder, welcome.router_incarnation, model, welcome.has_tokenizer,
                             welcome.max_seq_len, welcome.keep_alive_ms, welcome.stream_window)
      .Union();
}

Body Put(Builder& builder, const Accepted& accepted) {
  wire::RequestId id = ToWire(accepted.request_id);
  wire::AcceptedBuilder table(builder);
  table.add_seed(accepted.seed);
  table.add_request_id(&id);
  table.add_prompt_tokens(accepted.prompt_tokens);
  if (accepted.credit) table.add_credit(*accepted.credit);
  return table.Finish().Union();
}

flatbuffers::Offset<wire::Usage> PutUsage(Builder& builder, const Usage& usage) {
  return wire::CreateUsage(builder, usage.prompt_tokens, usage.completion_tokens,
                           usage.cached_tokens, usage.queue_ms, usage.ttft_ms, usage.tpot_ms,
                           usage.itl_ms_max);
}

flatbuffers::Offset<wire::Delta> PutDelta(Builder& builder, const Delta& delta) {
  auto ids = PutList(builder, delta.token_ids);
  flatbuffers::Offset<flatbuffers::String> text;
  if (delta.text) text = builder.CreateString(*delta.text);
  LogprobOffsets logprobs = PutLogprobs(builder, delta.logprobs);
  flatbuffers::Offset<flatbuffers::String> stop;
  const auto* stop_string = std::get_if<std::string>(&delta.stop_reason);
  if (stop_string != nullptr) stop = builder.CreateString(*stop_string);
  flatbuffers::Offset<wire::Usage> usage;
  if (delta.usage) usage = PutUsage(builder, *delta.usage);
  wire::RequestId id = ToWire(delta.request_id);

  wire::DeltaBuilder table(builder);
  table.add_request_id(&id);
  table.add_choice(delta.choice);
  table.add_position(delta.position);
  table.add_token_ids(ids);
  table.add_text(text);
  table.add_logprobs(logprobs.tokens);
  table.add_logprobs_top(logprobs.top);
  table.add_finish_reason(static_cast<wire::FinishReason>(delta.finish_reason));
  const auto* stop_id = std::get_if<uint32_t>(&delta.stop_reason);
  if (stop_id != nullptr) table.add_stop_token_id(*stop_id);
  table.add_stop_string(stop);
  table.add_usage(usage);
  return table.Finish();
}

Body Put(Builder& builder, const Deltas& deltas) {
  std::vector<flatbuffers::Offset<wire::Delta>> offsets;
  offsets.reserve(deltas.deltas.size());
  for (const Delta& delta : deltas.deltas) offsets.push_back(PutDelta(builder, delta));
  return wire::CreateDeltas(builder, builder.CreateVector(offsets)).Union();
}

Body Put(Builder& builder, const RequestError& error) {
  auto message = PutText(builder, error.message);
  wire::ErrorDetailsBuilder details(builder);
  const ErrorDetails& from = error.details;
  if (from.retry_after_ms) details.add_retry_after_ms(*from.retry_after_ms);
  if (from.needed_blocks) details.add_needed_blocks(*from.needed_blocks);
  if (from.available_blocks) details.add_available_blocks(*from.available_blocks);
  if (from.largest_total_tokens) details.add_largest_total_tokens(*from.largest_total_tokens);
  if (from.needed_total_tokens) details.add_needed_total_tokens(*from.needed_total_tokens);
  details.add_still_open(from.still_open);
  if (from.credit) details.add_credit(*from.credit);
  auto details_offset = details.Finish();
  wire::RequestId id = ToWire(error.request_id);
  return wire::CreateRequestError(builder, &id, static_cast<wire::ErrorCode>(error.code), message,
                                  details_offset)
      .Union();
}

Body Put(Builder& builder, const KeepAliveReply& reply) {
  wire::KeepAliveReplyBuilder table(builder);
  if (reply.credit) table.add_credit(*reply.credit);
  return table.Finish().Union();
}

Body Put(Builder& builder, const CapacityReply& reply) {
  std::vector<flatbuffers::Offset<wire::GroupCapacity>> groups;
  groups.reserve(reply.groups.size());
  for (const GroupCapacity& group : reply.groups) {
    auto id = PutText(builder, group.id);
    auto model = PutText(builder, group.model);
    auto ranks = PutStructs<wire::RankCapacity>(builder, group.ranks, [](const RankCapacity& rank) {
      return wire::RankCapacity(rank.rank, rank.bytes_per_token);
    });
    groups.push_back(wire::CreateGroupCapacity(builder, id, model, group.total_blocks,
                                               group.reserved_blocks, group.used_blocks, ranks));
  }
  auto groups_offset = builder.CreateVector(groups);
  return wire::CreateCapacityReply(builder, reply.block_size, groups_offset).Union();
}

Welcome Read(const wire::Welcome& wire, Checks& checks) {
  Welcome welcome;
  welcome.router_incarnation = wire.router_incarnation();
  welcome.model = checks.Text("model", wire.model(), kMaxNameBytes);
  welcome.has_tokenizer = wire.has_tokenizer();
  welcome.max_seq_len = wire.max_seq_len();
  welcome.keep_alive_ms = checks.Within<uint32_t>("keep_alive_ms", wire.keep_alive_ms(), 1, 600000);
  welcome.stream_window = wire.stream_window();
  return welcome;
}

Usage Read(const wire::Usage& wire, Checks& checks) {
  Usage usage;
  usage.prompt_tokens = wire.prompt_tokens();
  usage.completion_tokens = wire.completion_tokens();
  usage.cached_tokens = wire.cached_tokens();
  usage.queue_ms = checks.Measure("queue_ms", wire.queue_ms());
  usage.ttft_ms = checks.Measure("ttft_ms", wire.ttft_ms());
  usage.tpot_ms = checks.Measure("tpot_ms", wire.tpot_ms());
  usage.itl_ms_max = checks.Measure("itl_ms_max", wire.itl_ms_max());
  return usage;
}

Delta Read(const wire::Delta& wire, Checks& checks) {
  Delta delta;
  delta.request_id = FromWire(wire.request_id());
  delta.choice = checks.Within<uint32_t>("choice", wire.choice(), 0, kMaxChoices - 1);
  delta.position = wire.position();
  delta.token_ids = checks.List("token_ids", wire.token_ids(), kMaxDeltaTokens);
  if (wire.text() != nullptr) delta.text = checks.Text("text", wire.text(), kMaxDeltaTextBytes);
  delta.logprobs =
      ReadLogprobs(wire.logprobs(), wire.logprobs_top(), delta.token_ids.size(), checks);
  delta.finish_reason =
      checks.Enum<FinishReason>("finish_reason", wire.finish_reason(), wire::FinishReason::MAX);
  if (wire.stop_token_id().has_value()) {
    delta.stop_reason = *wire.stop_token_id();
  } else if (wire.stop_string() != nullptr) {
    delta.stop_reason = checks.Text("stop_string", wire.stop_string(), kMaxStopStringBytes);
  }
  if (wire.usage() != nullptr) delta.usage = Read(*wire.usage(), checks);
  return delta;
}

Deltas Read(const wire::Deltas& wire, Checks& checks) {
  Deltas deltas;
  if (wire.deltas() == nullptr || !checks.Count("deltas", wire.deltas()->size(), kMaxDeltas)) {
    return deltas;
  }
  deltas.deltas.reserve(wire.deltas()->size());
  for (flatbuffers::uoffset_t i = 0; i < wire.deltas()->size() && checks.ok(); ++i) {
    deltas.deltas.push_back(Read(*wire.deltas()->Get(i), checks));
  }
  return deltas;
}

RequestError Read(const wire::RequestError& wire, Checks& checks) {
  RequestError error;
  error.request_id = FromWire(wire.request_id());
  error.code = checks.Enum<ErrorCode>("code", wire.code(), wire::ErrorCode::MAX);
  error.message = checks.Text("message", wire.message(), kMaxErrorTextBytes);
  const wire::ErrorDetails* details = wire.details();
  if (details == nullptr) return error;
  error.details.still_open = details->still_open();
  error.details.retry_after_ms = ToStd(details->retry_after_ms());
  error.details.needed_blocks = ToStd(details->needed_blocks());
  error.details.available_blocks = ToStd(details->available_blocks());
  error.details.largest_total_tokens = ToStd(details->largest_total_tokens());
  error.details.needed_total_tokens = ToStd(details->needed_total_tokens());
  error.details.credit = ToStd(details->credit());
  return error;
}

GroupCapacity Read(const wire::GroupCapacity& wire, Checks& checks) {
  GroupCapacity group;
  group.id = checks.Text("id", wire.id(), kMaxNameBytes);
  group.model = checks.Text("model", wire.model(), kMaxNameBytes);
  group.total_blocks = wire.total_blocks();
  group.reserved_blocks = wire.reserved_blocks();
  group.used_blocks = wire.used_blocks();
  if (wire.ranks() == nullptr || !checks.Structs("ranks", *wire.ranks(), kMaxRanks)) {
    return group;
  }
  for (const wire::RankCapacity* rank : *wire.ranks()) {
    group.ranks.push_back({rank->rank(), rank->bytes_per_token()});
  }
  return group;
}

CapacityReply Read(const wire::CapacityReply& wire, Checks& checks) {
  CapacityReply reply;
  reply.block_size = checks.Within<uint32_t>("block_size", wire.block_size(), 1, 4096);
  if (wire.groups() == nullptr || !checks.Count("groups", wire.groups()->size(), kMaxGroups)) {
    return reply;
  }
  for (flatbuffers::uoffset_t i = 0; i < wire.groups()->size() && checks.ok(); ++i) {
    reply.groups.push_back(Read(*wire.groups()->Get(i), checks));
  }
  return reply;
}

bool ReadBody(const wire::RouterToClient& root, Checks& checks, Decoded<RouterToClient>& result) {
  switch (root.body_type()) {
    case wire::RouterToClientBody::Welcome:
      result.message = Read(*root.body_as_Welcome(), checks);
      return true;
    case wire::RouterToClientBody::Accepted: {
      const wire::Accepted& accepted = *root.body_as_Accepted();
      result.message = Accepted{FromWire(accepted.request_id()), accepted.seed(),
                                accepted.prompt_tokens(), ToStd(accepted.credit())};
      return true;
    }
    case wire::RouterToClientBody::Deltas:
      result.message = Read(*root.body_as_Deltas(), checks);
      return true;
    case wire::RouterToClientBody::RequestError:
      result.message = Read(*root.body_as_RequestError(), checks);
      return true;
    case wire::RouterToClientBody::KeepAliveReply:
      result.message = KeepAliveReply{ToStd(root.body_as_KeepAliveReply()->credit())};
      return true;
    case wire::RouterToClientBody::CapacityReply:
      result.message = Read(*root.body_as_CapacityReply(), checks);
      return true;
    case wire::RouterToClientBody::NONE:
      break;
  }
  return false;
}

}  // namespace
}  // namespace codec

std::string EncodeRouterToClient(const RouterToClient& message, Incarnation sender) {
  codec::MessageBuilder& builder = codec::ScratchBuilder();
  auto body = std::visit([&](const auto& m) { return codec::Put(builder, m); }, message);
  // The union's kinds have the numbers of the variant's alternatives, after NONE.
  auto kind = static_cast<wire::RouterToClientBody>(message.index() + 1);
  return codec::FinishMessage(
      builder, wire::CreateRouterToClient(builder, kProtocolVersion, sender, kind, body),
      codec::kIdentifier);
}

Decoded<RouterToClient> DecodeRouterToClient(Bytes bytes) {
  return codec::DecodeEnvelope<wire::RouterToClient, RouterToClient>(
      bytes, kMaxRouterToClientBytes, codec::kMaxTables, codec::kIdentifier, codec::ReadBody);
}

}  // namespace kvern
