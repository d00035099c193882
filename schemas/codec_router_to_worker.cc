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

Body Put(Builder& builder, const GroupStart& start, std::vector<TokenIds>*) {
  auto rendezvous = PutText(builder, start.rendezvous);
  auto comm_id = PutList(builder, start.comm_id);
  return wire::CreateGroupStart(builder, start.router_incarnation, start.group_incarnation,
                                start.kv_blocks, rendezvous, start.lease_ms, comm_id)
      .Union();
}

Body Put(Builder& builder, const JoinRefused& refused, std::vector<TokenIds>*) {
  auto reason = PutText(builder, refused.reason);
  return wire::CreateJoinRefused(builder, reason).Union();
}

bool IsAttached(const Dispatch& dispatch, const std::vector<TokenIds>* attached) {
  return attached != nullptr && dispatch.prompt.size_bytes() >= kMinBytesInPlace;
}

flatbuffers::Offset<wire::Dispatch> PutDispatch(Builder& builder, const Dispatch& dispatch,
                                                std::vector<TokenIds>* attached) {
  flatbuffers::Offset<flatbuffers::Vector<uint32_t>> prompt;
  uint32_t attached_tokens = 0;
  if (IsAttached(dispatch, attached)) {
    attached->push_back(dispatch.prompt);
    attached_tokens = static_cast<uint32_t>(dispatch.prompt.size());
  } else if (!dispatch.prompt.empty()) {
    prompt = builder.PutIds(dispatch.prompt);
  }
  auto sampling = PutSampling(builder, dispatch.sampling);
  auto eos = PutList(builder, dispatch.eos_ids);
  std::vector<flatbuffers::Offset<wire::TokenList>> lists;
  for (const std::vector<uint32_t>& tokens : dispatch.emitted) {
    lists.push_back(wire::CreateTokenList(builder, PutList(builder, tokens)));
  }
  auto emitted = PutList(builder, lists);
  wire::RequestId id = ToWire(dispatch.request_id);
  return wire::CreateDispatch(builder, &id, dispatch.epoch, prompt, dispatch.n, sampling, eos,
                              emitted, static_cast<wire::ServiceClass>(dispatch.service_class),
                              attached_tokens);
}

Body Put(Builder& builder, const Commands& commands, std::vector<TokenIds>* attached) {
  std::vector<flatbuffers::Offset<wire::Dispatch>> dispatches;
  dispatches.reserve(commands.dispatches.size());
  for (const Dispatch& dispatch : commands.dispatches) {
    dispatches.push_back(PutDispatch(builder, dispatch, attached));
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
size_t ExpectedBytes(const Commands& commands, const std::vector<TokenIds>* attached) {
  constexpr size_t kOfADispatch = 512;
  size_t bytes = kOfADispatch;
  for (const Dispatch& dispatch : commands.dispatches) {
    size_t prompt = IsAttached(dispatch, attached) ? 0 : dispatch.prompt.size();
    bytes += kOfADispatch + sizeof(uint32_t) * (prompt + dispatch.eos_ids.size() +
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

// The frames behind a message, each of which belongs to one dispatch, in order.
struct Attached {
  std::span<const Bytes> left;

  TokenIds Take(uint32_t tokens, Checks& checks) {
    if (!checks.Count("attached_tokens", tokens, kMaxPromptTokens)) return {};
    size_t size = left.empty() ? 0 : left.front().size();
    if (size != tokens * sizeof(uint32_t)) {
      checks.OutOfRange("attached_tokens", tokens,
                        left.empty()
                            ? "0, as no frame is left"
                            : absl::StrCat("a fourth of the ", size, " bytes of its frame"));
      return {};
    }
    auto copy = std::make_shared_for_overwrite<uint32_t[]>(tokens);
    std::memcpy(copy.get(), left.front().data(), size);
    left = left.subspan(1);
    std::span<const uint32_t> ids(copy.get(), tokens);
    return TokenIds(ids, std::move(copy));
  }
};

TokenIds ReadPrompt(const wire::Dispatch& wire, Checks& checks, Attached& attached) {
  if (wire.attached_tokens() == 0) return checks.Ids("prompt", wire.prompt(), kMaxPromptTokens);
  if (wire.prompt() != nullptr) {
    checks.OutOfRange("prompt", absl::StrCat("of ", wire.prompt()->size(), " tokens"),
                      "none beside one that is attached");
    return {};
  }
  return attached.Take(wire.attached_tokens(), checks);
}

Dispatch Read(const wire::Dispatch& wire, Checks& checks, Attached& attached) {
  Dispatch dispatch;
  dispatch.request_id = FromWire(wire.request_id());
  dispatch.epoch = wire.epoch();
  dispatch.prompt = ReadPrompt(wire, checks, attached);
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

Commands Read(const wire::Commands& wire, Checks& checks, Attached& attached) {
  Commands commands;
  commands.group_incarnation = wire.group_incarnation();
  commands.sequence = wire.sequence();
  commands.drain = wire.drain();
  const auto* dispatches = wire.dispatches();
  if (dispatches != nullptr && checks.Count("dispatches", dispatches->size(), kMaxDispatches)) {
    commands.dispatches.reserve(dispatches->size());
    for (flatbuffers::uoffset_t i = 0; i < dispatches->size() && checks.ok(); ++i) {
      commands.dispatches.push_back(Read(*dispatches->Get(i), checks, attached));
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

bool ReadBody(const wire::RouterToWorker& root, Checks& checks, Decoded<RouterToWorker>& result,
              Attached& attached) {
  switch (root.body_type()) {
    case wire::RouterToWorkerBody::GroupStart:
      result.message = Read(*root.body_as_GroupStart(), checks);
      return true;
    case wire::RouterToWorkerBody::JoinRefused:
      result.message =
          JoinRefused{checks.Text("reason", root.body_as_JoinRefused()->reason(), kMaxReasonBytes)};
      return true;
    case wire::RouterToWorkerBody::Commands:
      result.message = Read(*root.body_as_Commands(), checks, attached);
      return true;
    case wire::RouterToWorkerBody::NONE:
      break;
  }
  return false;
}

}  // namespace
}  // namespace codec

std::string EncodeRouterToWorkerInParts(const RouterToWorker& message, Incarnation sender,
                                        std::vector<TokenIds>* attached) {
  const auto* commands = std::get_if<Commands>(&message);
  size_t expected = commands == nullptr ? 0 : codec::ExpectedBytes(*commands, attached);
  codec::MessageBuilder& builder = codec::ScratchBuilder(expected);
  auto body = std::visit([&](const auto& m) { return codec::Put(builder, m, attached); }, message);
  // The union's kinds have the numbers of the variant's alternatives, after NONE.
  auto kind = static_cast<wire::RouterToWorkerBody>(message.index() + 1);
  return codec::FinishMessage(
      builder, wire::CreateRouterToWorker(builder, kProtocolVersion, sender, kind, body),
      codec::kIdentifier);
}

std::string EncodeRouterToWorker(const RouterToWorker& message, Incarnation sender) {
  return EncodeRouterToWorkerInParts(message, sender, nullptr);
}

Decoded<RouterToWorker> DecodeRouterToWorkerInParts(Bytes bytes, std::span<const Bytes> frames) {
  codec::Attached attached{frames};
  auto read = [&](const wire::RouterToWorker& root, codec::Checks& checks,
                  Decoded<RouterToWorker>& result) {
    if (!codec::ReadBody(root, checks, result, attached)) return false;
    if (!attached.left.empty()) {
      checks.OutOfRange("frames", absl::StrCat(frames.size(), " attached"),
                        absl::StrCat(frames.size() - attached.left.size(), ", as named"));
    }
    return true;
  };
  return codec::DecodeEnvelope<wire::RouterToWorker, RouterToWorker>(
      bytes, kMaxWorkerMessageBytes, codec::kMaxTables, codec::kIdentifier, read);
}

Decoded<RouterToWorker> DecodeRouterToWorker(Bytes bytes) {
  return DecodeRouterToWorkerInParts(bytes, {});
}

}  // namespace kvern
