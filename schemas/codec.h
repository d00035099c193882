// Bytes <-> structs, for every message between processes. Nothing else parses wire bytes. Decoding
// checks size, FlatBuffers structure (depth 8, few tables), protocol version, enumerations,
// lengths, counts, UTF-8, NaN; then copies into owned structs. No decoder keeps a pointer into its
// input, but for DecodeClientMessageInPlace, and the input need not be aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cluster/base/status.h"
#include "schemas/messages.h"

namespace kvern {

using Bytes = std::span<const std::byte>;

// Largest message each side accepts; also ZMQ_MAXMSGSIZE of the socket.
inline constexpr size_t kMaxClientMessageBytes = 8u << 20;
inline constexpr size_t kMaxRouterToClientBytes = 64u << 20;
inline constexpr size_t kMaxWorkerMessageBytes = 64u << 20;
inline constexpr size_t kMaxPlanBytes = 64u << 20;

// Why a message was refused; counted per reason by whoever owns the socket.
enum class DecodeFailure : uint8_t {
  kNone,
  kTooLarge,
  kMalformed,     // not a FlatBuffer of this schema
  kWrongVersion,  // another protocol version
  kUnknownKind,   // a union member this build does not know
  kOutOfRange,    // a field beyond its limit; the status names field, value and limit
};
std::string_view DecodeFailureName(DecodeFailure failure);

// The result of decoding: the message, or why not. With kOutOfRange, `request_id` is set when the
// message was a GenerateRequest whose id could be read, so that the refusal can be addressed.
template <typename Message>
struct Decoded {
  DecodeFailure failure = DecodeFailure::kNone;
  std::string error;
  RequestId request_id;
  Incarnation sender = 0;  // of the process that encoded it; 0: it did not say
  Message message;

  bool ok() const { return failure == DecodeFailure::kNone; }
};

// `sender` is the incarnation of the encoding process: with the routing id it tells the receiver
// whom it hears.
std::string EncodeClientMessage(const ClientMessage& message, Incarnation sender = 0);
Decoded<ClientMessage> DecodeClientMessage(Bytes bytes);

// Called at most once: the input of the decoder stays where and as it is for as long as anybody
// holds the result.
using KeepInput = std::function<std::shared_ptr<const void>()>;

// As DecodeClientMessage, but the ids of a long prompt stay in the message that brought them. Only
// if it is hardly more than them (an eighth), so that who counts the bytes of prompts counts what
// is held.
Decoded<ClientMessage> DecodeClientMessageInPlace(Bytes bytes, const KeepInput& keep);

std::string EncodeRouterToClient(const RouterToClient& message, Incarnation sender = 0);
Decoded<RouterToClient> DecodeRouterToClient(Bytes bytes);

std::string EncodeWorkerToRouter(const WorkerToRouter& message, Incarnation sender = 0);
Decoded<WorkerToRouter> DecodeWorkerToRouter(Bytes bytes);

std::string EncodeRouterToWorker(const RouterToWorker& message, Incarnation sender = 0);
Decoded<RouterToWorker> DecodeRouterToWorker(Bytes bytes);

// The same in several frames: the ids of prompts of kMinBytesInPlace and more are put into
// `attached`, each a frame behind the message, in this order.
std::string EncodeRouterToWorkerInParts(const RouterToWorker& message, Incarnation sender,
                                        std::vector<TokenIds>* attached);
// Copies them. out_of_range: a frame that no dispatch names, or one of another size.
Decoded<RouterToWorker> DecodeRouterToWorkerInParts(Bytes bytes, std::span<const Bytes> attached);

// Plans end with a hash of their bytes: a rank that reads other bytes than the leader wrote, or a
// step out of order, refuses the plan.
std::string EncodePlan(const StepPlan& plan);
Decoded<StepPlan> DecodePlan(Bytes bytes);

}  // namespace kvern
