// Client -> router.
#include "schemas/codec_internal.h"
#include "wire/client_generated.h"

namespace kvern {
namespace codec {
namespace {

constexpr char kIdentifier[] = "KVCR";
// Envelope, body, sampling parameters and the messages of a chat; of these more than are allowed,
// so that whoever sends too many is told so under the request's id.
constexpr uint32_t kMaxTables = 3 + 16 * kMaxMessages;

using Builder = MessageBuilder;
using Body = flatbuffers::Offset<void>;

Body Put(Builder& builder, const Hello& hello) {
  auto tenant = PutText(builder, hello.tenant);
  auto name = PutText(builder, hello.client_name);
  return wire::CreateHello(builder, hello.client_incarnation, tenant, name, hello.gives_credit)
      .Union();
}

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ChatMessage>>> PutMessages(
    Builder& builder, const std::vector<ChatMessage>& messages) {
  std::vector<flatbuffers::Offset<wire::ChatMessage>> offsets;
  offsets.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    auto role = PutText(builder, message.role);
    auto content = PutText(builder, message.content);
    offsets.push_back(wire::CreateChatMessage(builder, role, content));
  }
  return builder.CreateVector(offsets);
}

Body Put(Builder& builder, const GenerateRequest& request) {
  auto model = PutText(builder, request.model);
  flatbuffers::Offset<flatbuffers::String> prompt;
  if (request.prompt) prompt = builder.CreateString(*request.prompt);
  flatbuffers::Offset<flatbuffers::Vector<uint32_t>> ids;
  if (request.prompt_token_ids) ids = builder.PutIds(*request.prompt_token_ids);
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ChatMessage>>> messages;
  if (request.messages) messages = PutMessages(builder, *request.messages);
  auto sampling = PutSampling(builder, request.sampling);
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>> stop;
  if (!request.stop.empty()) stop = builder.CreateVectorOfStrings(request.stop);
  auto resume = PutList(builder, request.resume_positions);
  wire::RequestId id = ToWire(request.request_id);

  wire::GenerateRequestBuilder table(builder);
  if (request.seed) table.add_seed(*request.seed);
  if (!request.request_id.IsZero()) table.add_request_id(&id);
  table.add_model(model);
  table.add_prompt(prompt);
  table.add_prompt_token_ids(ids);
  table.add_messages(messages);
  table.add_sampling(sampling);
  if (request.max_tokens) table.add_max_tokens(*request.max_tokens);
  table.add_n(request.n);
  table.add_stop(stop);
  table.add_service_class(static_cast<wire::ServiceClass>(request.service_class));
  table.add_priority(request.priority);
  if (request.ttft_deadline_ms) table.add_ttft_deadline_ms(*request.ttft_deadline_ms);
  if (request.deadline_ms) table.add_deadline_ms(*request.deadline_ms);
  table.add_detach_ms(request.detach_ms);
  table.add_resume_positions(resume);
  return table.Finish().Union();
}

Body Put(Builder& builder, const CancelRequest& cancel) {
  wire::RequestId id = ToWire(cancel.request_id);
  return wire::CreateCancelRequest(builder, &id).Union();
}
Body Put(Builder& builder, const KeepAlive&) { return wire::CreateKeepAlive(builder).Union(); }
Body Put(Builder& builder, const CapacityQuery&) {
  return wire::CreateCapacityQuery(builder).Union();
}

Body Put(Builder& builder, const Consumed& consumed) {
  auto streams =
      PutStructs<wire::StreamConsumed>(builder, consumed.streams, [](const StreamConsumed& stream) {
        return wire::StreamConsumed(ToWire(stream.request_id), stream.tokens);
      });
  return wire::CreateConsumed(builder, streams).Union();
}

// Of nearly all of it: the input.
size_t ExpectedBytes(const GenerateRequest& request) {
  size_t bytes = 2048;
  if (request.prompt) bytes += request.prompt->size();
  if (request.prompt_token_ids) bytes += request.prompt_token_ids->size() * sizeof(uint32_t);
  return bytes;
}

Hello Read(const wire::Hello& wire, Checks& checks) {
  Hello hello;
  hello.client_incarnation = wire.client_incarnation();
  hello.tenant = checks.Text("tenant", wire.tenant(), kMaxNameBytes);
  hello.client_name = checks.Text("client_name", wire.client_name(), kMaxNameBytes);
  hello.gives_credit = wire.gives_credit();
  return hello;
}

Consumed Read(const wire::Consumed& wire, Checks& checks) {
  Consumed consumed;
  if (wire.streams() == nullptr ||
      !checks.Structs("streams", *wire.streams(), kMaxConsumedStreams)) {
    return consumed;
  }
  consumed.streams.reserve(wire.streams()->size());
  for (const wire::StreamConsumed* stream : *wire.streams()) {
    consumed.streams.push_back({FromWire(&stream->request_id()), stream->tokens()});
  }
  return consumed;
}

std::vector<ChatMessage> ReadMessages(
    const flatbuffers::Vector<flatbuffers::Offset<wire::ChatMessage>>& list, Checks& checks) {
  std::vector<ChatMessage> messages;
  if (!checks.Count("messages", list.size(), kMaxMessages)) return messages;
  messages.reserve(list.size());
  size_t bytes = 0;
  for (flatbuffers::uoffset_t i = 0; i < list.size() && checks.ok(); ++i) {
    const wire::ChatMessage* entry = list.Get(i);
    ChatMessage& message = messages.emplace_back();
    message.role = checks.Text({"messages", i, "role"}, entry->role(), kMaxNameBytes);
    message.content = checks.Text({"messages", i, "content"}, entry->content(), kMaxPromptBytes);
    bytes += message.content.size();
    if (bytes > kMaxPromptBytes) {
      checks.OutOfRange("messages", absl::StrCat("of ", bytes, " bytes together"),
                        absl::StrCat(kMaxPromptBytes));
    }
  }
  return messages;
}

void ReadInput(const wire::GenerateRequest& wire, GenerateRequest& request, Checks& checks) {
  int inputs = (wire.prompt() != nullptr) + (wire.prompt_token_ids() != nullptr) +
               (wire.messages() != nullptr);
  if (inputs != 1) {
    checks.OutOfRange("prompt, prompt_token_ids and messages", absl::StrCat("set: ", inputs),
                      "exactly one of them");
    return;
  }
  if (wire.prompt() != nullptr) {
    request.prompt = checks.Text("prompt", wire.prompt(), kMaxPromptBytes);
  } else if (wire.prompt_token_ids() != nullptr) {
    request.prompt_token_ids =
        checks.Ids("prompt_token_ids", wire.prompt_token_ids(), kMaxPromptTokens);
  } else {
    request.messages = ReadMessages(*wire.messages(), checks);
  }
}

void ReadStop(const wire::GenerateRequest& wire, GenerateRequest& request, Checks& checks) {
  if (wire.stop() == nullptr || !checks.Count("stop", wire.stop()->size(), kMaxStopStrings)) return;
  for (flatbuffers::uoffset_t i = 0; i < wire.stop()->size(); ++i) {
    std::string stop = checks.Text({"stop", i}, wire.stop()->Get(i), kMaxStopStringBytes);
    if (stop.empty()) checks.OutOfRange({"stop", i}, "is empty", "1 to 256 bytes");
    request.stop.push_back(std::move(stop));
  }
}

GenerateRequest Read(const wire::GenerateRequest& wire, Checks& checks) {
  GenerateRequest request;
  request.request_id = FromWire(wire.request_id());
  request.model = checks.Text("model", wire.model(), kMaxNameBytes);
  ReadInput(wire, request, checks);
  request.sampling = ReadSampling(wire.sampling(), checks);
  request.seed = ToStd(wire.seed());
  request.max_tokens = ToStd(wire.max_tokens());
  if (request.max_tokens == 0u) checks.OutOfRange("max_tokens", 0, "1 or more");
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    checks.OutOfRange("min_tokens", request.sampling.min_tokens,
                      absl::StrCat("up to max_tokens ", *request.max_tokens));
  }
  request.n = checks.Within<uint32_t>("n", wire.n(), 1, kMaxChoices);
  ReadStop(wire, request, checks);
  request.service_class =
      checks.Enum<ServiceClass>("class", wire.service_class(), wire::ServiceClass::MAX);
  request.priority = wire.priority();
  request.ttft_deadline_ms = ToStd(wire.ttft_deadline_ms());
  request.deadline_ms = ToStd(wire.deadline_ms());
  request.detach_ms = wire.detach_ms();
  request.resume_positions = checks.List("resume_positions", wire.resume_positions(), kMaxChoices);
  if (!request.resume_positions.empty() && request.resume_positions.size() != request.n) {
    checks.OutOfRange("resume_positions",
                      absl::StrCat("with ", request.resume_positions.size(), " entries"),
                      absl::StrCat("none or n = ", request.n));
  }
  return request;
}

bool ReadBody(const wire::ClientToRouter& root, Checks& checks, Decoded<ClientMessage>& result) {
  switch (root.body_type()) {
    case wire::ClientBody::Hello:
      result.message = Read(*root.body_as_Hello(), checks);
      return true;
    case wire::ClientBody::GenerateRequest: {
      const wire::GenerateRequest& request = *root.body_as_GenerateRequest();
      result.message = Read(request, checks);
      if (!checks.ok()) result.request_id = FromWire(request.request_id());
      return true;
    }
    case wire::ClientBody::CancelRequest:
      result.message = CancelRequest{FromWire(root.body_as_CancelRequest()->request_id())};
      return true;
    case wire::ClientBody::KeepAlive:
      result.message = KeepAlive{};
      return true;
    case wire::ClientBody::CapacityQuery:
      result.message = CapacityQuery{};
      return true;
    case wire::ClientBody::Consumed:
      result.message = Read(*root.body_as_Consumed(), checks);
      return true;
    case wire::ClientBody::NONE:
      break;
  }
  return false;
}

}  // namespace
}  // namespace codec

std::string EncodeClientMessage(const ClientMessage& message, Incarnation sender) {
  const auto* request = std::get_if<GenerateRequest>(&message);
  size_t expected = request == nullptr ? 0 : codec::ExpectedBytes(*request);
  codec::MessageBuilder& builder = codec::ScratchBuilder(expected);
  auto body = std::visit([&](const auto& m) { return codec::Put(builder, m); }, message);
  // The union's kinds have the numbers of the variant's alternatives, after NONE.
  auto kind = static_cast<wire::ClientBody>(message.index() + 1);
  return codec::FinishMessage(
      builder, wire::CreateClientToRouter(builder, kProtocolVersion, sender, kind, body),
      codec::kIdentifier);
}

Decoded<ClientMessage> DecodeClientMessage(Bytes bytes) {
  return codec::DecodeEnvelope<wire::ClientToRouter, ClientMessage>(
      bytes, kMaxClientMessageBytes, codec::kMaxTables, codec::kIdentifier, codec::ReadBody);
}

Decoded<ClientMessage> DecodeClientMessageInPlace(Bytes bytes, const KeepInput& keep) {
  return codec::DecodeEnvelope<wire::ClientToRouter, ClientMessage>(
      bytes, kMaxClientMessageBytes, codec::kMaxTables, codec::kIdentifier, codec::ReadBody, &keep);
}

}  // namespace kvern
