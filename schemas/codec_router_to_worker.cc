// Router -> worker.
#include "schemas/codec_internal.h"
#include "wire/worker_generated.h"

namespace kvern {
namespace codec {
namespace {

constexpr char kIdentifier[] = "KVRW";
constexpr size_t kMaxReasonBytes = 64u << 10;
constexpr size_t kMaxRendezvousBytes = 1024;
// Envelope, body; a dispatch has its own table, its sampling parameters and a list for each choice.
constexpr uint32_t kMaxTables = 2 + kMaxDispatches * (2 + kMaxChoices) + kMaxCancels;

using Builder = MessageBuilder;
using Body = flatbuffers::Offset<void>;

Body Put(Builder& builder, const GroupStart& start) {
  auto rendezvous = PutText(builder, start.rendezvous);
  auto comm_id = PutList(builder, start.comm_id);
  return wire::CreateGroupStart(builder, start.router_incarnation, start.group_incarnation,
                                start.kv_blocks, rendezvous, start.lease_ms, comm_id)
      .Union();
}

Body Put(Builder& builder, const JoinRefused& refused) {
  auto reason = PutText(builder, refused.reason);
  return wire::CreateJoinRefused(builder, reason).Union();
}

flatbuffers::Offset<wire::Dispatch> PutDispatch(Builder& builder, const Dispatch& dispatch) {
  flatbuffers::Offset<flatbuffers::Vector<uint32_t>> prompt;
  if (!dispatch.prompt.empty()) prompt = builder.PutIds(dispatch.prompt);
  auto sampling = PutSampling(builder, dispatch.sampling);
  auto eos = PutList(builder, dispatch.eos_ids);
  std::vector<flatbuffers::Offset<wire::TokenList>> lists;
  for (const std::vector<uint32_t>& tokens : dispatch.emitted) {
    lists.push_back(wire::CreateTokenList(builder, PutList(builder, tokens)));
  }
  auto emitted = PutList(builder, lists);
  wire::RequestId id = ToWire(dispatch.request_id);
  return wire::CreateDispatch(builder, &id, dispatch.epoch, prompt, dispatch.n, sampling, eos,
                              emitted, static_cast<wire::ServiceClass>(dispatch.service_class));
}

Body Put(Builder& builder, const Commands& commands) {
  std::vector<flatbuffers::Offset<wire::Dispatch>> dispatches;
  dispatches.reserve(commands.dispatches.size());
  for (const Dispatch& dispatch : commands.dispatches) {
    dispatches.push_back(PutDispatch(builder, dispatch));
  }
  std::vector<flatbuffers::Offset<wire::CancelDispatch>> cancels;
  for (const CancelDispatch& cancel : commands.cancels) {
    wire::RequestId id = ToWire(cancel.request_id);
    cancels.push_back(
        wire::CreateCancelDispatch(builder, &id, cancel.epoch, cancel.all_choices, cancel.choice));
  }
  auto dispatches_offset = PutList(builder, dispatches);
  auto cancels_offset = PutList(builder, cancels);
  return wire::CreateCommands(builder, commands.group_incarnation, commands.sequence,
                              dispatches_offset, cancels_offset, commands.drain)
      .Union();
}

// Of nearly all of it: the lists.
size_t ExpectedBytes(const Commands& commands) {
  constexpr size_t kOfADispatch = 512;
  size_t bytes = kOfADispatch;
  for (const Dispatch& dispatch : commands.dispatches) {
    bytes += kOfADispatch + sizeof(uint32_t) * (dispatch.prompt.size() + dispatch.eos_ids.size() +
                                                dispatch.sampling.stop_token_ids.size() +
                                                2 * dispatch.sampling.logit_bias.size());
    for (const std::vector<uint32_t>& tokens : dispatch.emitted) {
      bytes += sizeof(uint32_t) * (2 + tokens.size());
    }
  }
  return bytes;
}

GroupStart Read(const wire::GroupStart& wire, Checks& checks) {
  GroupStart start;
  start.router_incarnation = wire.router_incarnation();
  start.group_incarnation = wire.group_incarnation();
  start.kv_blocks = wire.kv_blocks();
  start.rendezvous = checks.Text("rendezvous", wire.rendezvous(), kMaxRendezvousBytes);
  start.comm_id = checks.List("comm_id", wire.comm_id(), kMaxCommIdBytes);
  start.lease_ms = wire.lease_ms();
  return start;
}

Dispatch Read(const wire::Dispatch& wire, Checks& checks) {
  Dispatch dispatch;
  dispatch.request_id = FromWire(wire.request_id());
  dispatch.epoch = wire.epoch();
  dispatch.prompt = checks.Ids("prompt", wire.prompt(), kMaxPromptTokens);
  dispatch.n = checks.Within<uint32_t>("n", wire.n(), 1, kMaxChoices);
  dispatch.sampling = ReadResolvedSampling(wire.sampling(), checks);
  dispatch.eos_ids = checks.List("eos_ids", wire.eos_ids(), kMaxStopTokenIds);
  dispatch.service_class =
      checks.Enum<ServiceClass>("class", wire.service_class(), wire::ServiceClass::MAX);
  const auto* emitted = wire.emitted();
  if (emitted == nullptr || !checks.Count("emitted", emitted->size(), kMaxChoices)) return dispatch;
  if (emitted->size() != 0 && emitted->size() != dispatch.n) {
    checks.OutOfRange("emitted", absl::StrCat("with ", emitted->size(), " entries"),
                      absl::StrCat("none or n = ", dispatch.n));
  }
  for (flatbuffers::uoffset_t i = 0; i < emitted->size(); ++i) {
    dispatch.emitted.push_back(
        checks.List({"emitted", i}, emitted->Get(i)->token_ids(), kMaxPromptTokens));
  }
  return dispatch;
}

CancelDispatch Read(const wire::CancelDispatch& wire, Checks& checks) {
  CancelDispatch cancel;
  cancel.request_id = FromWire(wire.request_id());
  cancel.epoch = wire.epoch();
  cancel.all_choices = wire.all_choices();
  cancel.choice = checks.Within<uint32_t>("choice", wire.choice(), 0, kMaxChoices - 1);
  return cancel;
}

Commands Read(const wire::Commands& wire, Checks& checks) {
  Commands commands;
  commands.group_incarnation = wire.group_incarnation();
  commands.sequence = wire.sequence();
  commands.drain = wire.drain();
  const auto* dispatches = wire.dispatches();
  if (dispatches != nullptr && checks.Count("dispatches", dispatches->size(), kMaxDispatches)) {
    commands.dispatches.reserve(dispatches->size());
    for (flatbuffers::uoffset_t i = 0; i < dispatches->size() && checks.ok(); ++i) {
      commands.dispatches.push_back(Read(*dispatches->Get(i), checks));
    }
  }
  const auto* cancels = wire.cancels();
  if (cancels != nullptr && checks.Count("cancels", cancels->size(), kMaxCancels)) {
    commands.cancels.reserve(cancels->size());
    for (flatbuffers::uoffset_t i = 0; i < cancels->size() && checks.ok(); ++i) {
      commands.cancels.push_back(Read(*cancels->Get(i), checks));
    }
  }
  return commands;
}

bool ReadBody(const wire::RouterToWorker& root, Checks& checks, Decoded<RouterToWorker>& result) {
  switch (root.body_type()) {
    case wire::RouterToWorkerBody::GroupStart:
      result.message = Read(*root.body_as_GroupStart(), checks);
      return true;
    case wire::RouterToWorkerBody::JoinRefused:
      result.message =
          JoinRefused{checks.Text("reason", root.body_as_JoinRefused()->reason(), kMaxReasonBytes)};
      return true;
    case wire::RouterToWorkerBody::Commands:
      result.message = Read(*root.body_as_Commands(), checks);
      return true;
    case wire::RouterToWorkerBody::NONE:
      break;
  }
  return false;
}

}  // namespace
}  // namespace codec

std::string EncodeRouterToWorker(const RouterToWorker& message, Incarnation sender) {
  const auto* commands = std::get_if<Commands>(&message);
  size_t expected = commands == nullptr ? 0 : codec::ExpectedBytes(*commands);
  codec::MessageBuilder& builder = codec::ScratchBuilder(expected);
  auto body = std::visit([&](const auto& m) { return codec::Put(builder, m); }, message);
  // The union's kinds have the numbers of the variant's alternatives, after NONE.
  auto kind = static_cast<wire::RouterToWorkerBody>(message.index() + 1);
  return codec::FinishMessage(
      builder, wire::CreateRouterToWorker(builder, kProtocolVersion, sender, kind, body),
      codec::kIdentifier);
}

Decoded<RouterToWorker> DecodeRouterToWorker(Bytes bytes) {
  return codec::DecodeEnvelope<wire::RouterToWorker, RouterToWorker>(
      bytes, kMaxWorkerMessageBytes, codec::kMaxTables, codec::kIdentifier, codec::ReadBody);
}

}  // namespace kvern
