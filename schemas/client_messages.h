// What clients and the router say to each other, as owned structs. The bytes are the codec's
// affair.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "schemas/ids.h"
#include "schemas/sampling.h"
#include "schemas/token_ids.h"

namespace kvern {

// ---- Limits of one request. The codec refuses what is beyond them, naming field, value and limit.
inline constexpr size_t kMaxPromptBytes = 4u << 20;
inline constexpr size_t kMaxPromptTokens = 1u << 20;
inline constexpr size_t kMaxMessages = 1024;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;
inline constexpr size_t kMaxStopTokenIds = 64;
inline constexpr size_t kMaxLogitBias = 300;
inline constexpr uint32_t kMaxChoices = 8;
inline constexpr uint32_t kMaxLogprobs = 20;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxConsumedStreams = 4096;  // of one Consumed
inline constexpr float kMaxTemperature = 100;
inline constexpr float kMaxRepetitionPenalty = 100;
inline constexpr float kMaxAbsPenalty = 2;  // presence and frequency
inline constexpr float kMaxAbsBias = 100;

struct ChatMessage {
  std::string role;
  std::string content;
  friend bool operator==(const ChatMessage&, const ChatMessage&) = default;
};

// Exactly one of the three inputs is set.
struct GenerateRequest {
  RequestId request_id;  // zero: the receiver draws one
  std::string model;     // empty: the served one
  std::optional<std::string> prompt;
  std::optional<TokenIds> prompt_token_ids;
  std::optional<std::vector<ChatMessage>> messages;
  SamplingParams sampling;
  std::optional<uint64_t> seed;        // absent: the router draws one and keeps it over epochs
  std::optional<uint32_t> max_tokens;  // absent: the service's default
  uint32_t n = 1;
  std::vector<std::string> stop;
  ServiceClass service_class = ServiceClass::kStandard;
  int32_t priority = 0;
  std::optional<uint32_t> ttft_deadline_ms;
  std::optional<uint32_t> deadline_ms;
  uint32_t detach_ms = 0;  // keep running this long after the client is lost
  // A resuming client's next position of each choice; empty for a new request.
  std::vector<uint32_t> resume_positions;
  friend bool operator==(const GenerateRequest&, const GenerateRequest&) = default;
};

// ---- client -> router
struct Hello {
  Incarnation client_incarnation = 0;
  std::string tenant;  // empty: the default tenant
  std::string client_name;
  bool gives_credit = false;  // it will say Consumed, so its streams may be paused
  friend bool operator==(const Hello&, const Hello&) = default;
};
// What a router answers to whoever it does not know: no Hello came, or it has forgotten the client
// (too many others were there, or it left too much unread), which then says Hello again.
inline constexpr char kHelloFirst[] = "the first message must be Hello";
struct CancelRequest {
  RequestId request_id;
  friend bool operator==(const CancelRequest&, const CancelRequest&) = default;
};
struct KeepAlive {
  friend bool operator==(const KeepAlive&, const KeepAlive&) = default;
};
struct CapacityQuery {
  friend bool operator==(const CapacityQuery&, const CapacityQuery&) = default;
};
// How much its readers have taken of each stream so far: tokens of all choices together. Gives the
// router credit to send more. Ids of streams that are over are ignored, like numbers that went
// back.
struct StreamConsumed {
  RequestId request_id;
  uint64_t tokens = 0;
  friend bool operator==(const StreamConsumed&, const StreamConsumed&) = default;
};
struct Consumed {
  std::vector<StreamConsumed> streams;
  friend bool operator==(const Consumed&, const Consumed&) = default;
};
using ClientMessage =
    std::variant<Hello, GenerateRequest, CancelRequest, KeepAlive, CapacityQuery, Consumed>;

// ---- router -> client
struct TokenLogprob {
  uint32_t token_id = 0;
  float logprob = 0.0f;
  std::vector<std::pair<uint32_t, float>> top;  // exactly K, best first, ties to the lower id
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;
  double queue_ms = 0;
  double ttft_ms = 0;
  double tpot_ms = 0;     // mean time per output token after the first; 0 with fewer than two
  double itl_ms_max = 0;  // longest gap between two deliveries
  friend bool operator==(const Usage&, const Usage&) = default;
};

// Where a choice ended: an id (stop id), a string (stop string), or neither (EOS, length).
using StopReason = std::variant<std::monostate, uint32_t, std::string>;

// A run of tokens of one choice. `position` is the index of the first of them in the choice's
// output.
struct Delta {
  RequestId request_id;
  uint32_t choice = 0;
  uint32_t position = 0;
  std::vector<uint32_t> token_ids;
  std::optional<std::string> text;     // absent when the service has no tokenizer
  std::vector<TokenLogprob> logprobs;  // as many as token_ids when asked for, else none
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
  std::optional<Usage> usage;  // on the request's last delta, and only there: the request is over
  friend bool operator==(const Delta&, const Delta&) = default;
};

struct ErrorDetails {
  std::optional<uint64_t> retry_after_ms;        // of what may be asked again
  std::optional<uint64_t> needed_blocks;         // never_fits
  std::optional<uint64_t> available_blocks;      // never_fits: of the largest group when empty
  std::optional<uint64_t> needed_total_tokens;   // never_fits: prompt + max_tokens, at least
  std::optional<uint64_t> largest_total_tokens;  // never_fits: with this n and prompt
  // The client sent the id of a request that it has open: this refuses the second one, the first
  // goes on.
  bool still_open = false;
  std::optional<uint32_t> credit;  // as in Accepted; with retry_after_ms
  friend bool operator==(const ErrorDetails&, const ErrorDetails&) = default;
};

struct Welcome {
  Incarnation router_incarnation = 0;
  std::string model;
  bool has_tokenizer = false;
  uint32_t max_seq_len = 0;
  uint32_t keep_alive_ms = 1000;  // a client with open requests speaks at least this often
  // Tokens of a stream sent and not yet consumed, beyond which it is paused; 0: without limit.
  uint32_t stream_window = 0;
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
struct Accepted {
  RequestId request_id;
  uint64_t seed = 0;
  uint32_t prompt_tokens = 0;
  // How many further requests of this tenant the router would line up now; absent: not said.
  std::optional<uint32_t> credit;
  friend bool operator==(const Accepted&, const Accepted&) = default;
};
// What one Deltas may hold; a turn that has more for a client sends several.
inline constexpr size_t kMaxDeltas = size_t{1} << 16;
inline constexpr size_t kMaxDeltasBytes = size_t{8} << 20;  // of the message's 64 MiB

// Tokens that one router turn has for this client.
struct Deltas {
  std::vector<Delta> deltas;
  friend bool operator==(const Deltas&, const Deltas&) = default;
};
// A request's terminal error. A zero request_id: the message itself could not be read.
struct RequestError {
  RequestId request_id;
  ErrorCode code = ErrorCode::kNone;
  std::string message;
  ErrorDetails details;
  friend bool operator==(const RequestError&, const RequestError&) = default;
};
struct KeepAliveReply {
  std::optional<uint32_t> credit;  // as in Accepted
  friend bool operator==(const KeepAliveReply&, const KeepAliveReply&) = default;
};

struct RankCapacity {
  uint32_t rank = 0;
  uint64_t bytes_per_token = 0;
  friend bool operator==(const RankCapacity&, const RankCapacity&) = default;
};
struct GroupCapacity {
  std::string id;
  std::string model;
  uint64_t total_blocks = 0;
  uint64_t reserved_blocks = 0;
  uint64_t used_blocks = 0;
  std::vector<RankCapacity> ranks;
  friend bool operator==(const GroupCapacity&, const GroupCapacity&) = default;
};
// free = total - reserved, per group and in sum.
struct CapacityReply {
  uint32_t block_size = kBlockSize;
  std::vector<GroupCapacity> groups;
  friend bool operator==(const CapacityReply&, const CapacityReply&) = default;
};
using RouterToClient =
    std::variant<Welcome, Accepted, Deltas, RequestError, KeepAliveReply, CapacityReply>;

}  // namespace kvern
