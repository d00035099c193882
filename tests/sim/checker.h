// What must hold, seen from outside: every message to a client and every dispatch is compared with
// what the fake model would have said. The letters are those of the invariants in README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/base/id_map.h"
#include "cluster/base/time.h"
#include "router/core/router.h"
#include "schemas/messages.h"

namespace kvern::sim {

inline constexpr uint32_t kVocab = 64;
inline constexpr uint32_t kEos = 0;
inline constexpr uint32_t kMaxSeqLen = 160;
inline constexpr uint32_t kDefaultMaxTokens = 24;

// The model: which token follows does not depend on anything but these.
uint32_t FakeToken(uint64_t sampling_seed, uint32_t choice, uint32_t position);
// The tokenizer: one letter, one token, never EOS.
std::vector<uint32_t> FakeTokenize(const std::string& text);

// One request, as its client and the wire saw it.
struct Seen {
  struct Choice {
    std::vector<uint32_t> tokens;
    std::string text;
    bool finished = false;
  };
  GenerateRequest request;
  PeerId client = 0;
  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 0;
  Time arrived = -1;  // at the router
  bool accepted = false;
  uint64_t seed = 0;
  bool over = false;
  ErrorCode error = ErrorCode::kNone;
  bool dispatched = false;
  bool client_lost = false;  // nobody reads its answer any more
  std::vector<Choice> choices;
};

struct Tally {
  uint64_t issued = 0;
  uint64_t completed = 0;
  uint64_t errors[size_t{kLastErrorCode} + 1] = {};
  uint64_t stop_strings = 0;
  uint64_t tokens = 0;
};

class Checker {
 public:
  using Report = std::function<void(const std::string&)>;
  explicit Checker(Report violation) : violation_(std::move(violation)) {}

  // ---- What the world did.
  void Issued(PeerId client, const GenerateRequest& request);
  void Arrived(Time now, const RequestId& id);
  void ClientLost(PeerId client);

  // ---- What the router did.
  void Dispatched(Time now, const Dispatch& dispatch, uint64_t group_blocks);
  // A client read this.
  void Read(PeerId client, const RouterToClient& message);

  // L1: everything asked for by clients that still read has its answer.
  void AllAnswered();

  const Tally& tally() const { return tally_; }
  const Seen* Find(const RequestId& id) const;

 private:
  void ReadAccepted(Seen& seen, const Accepted& accepted);
  void ReadDelta(Seen& seen, const Delta& delta);
  void ReadFinish(Seen& seen, Seen::Choice& choice, const Delta& delta);
  void ReadError(Seen& seen, const RequestError& error);
  void Violate(const char* name, const RequestId& id, const std::string& what);
  Seen* FindFor(PeerId client, const RequestId& id, const char* what);

  Report violation_;
  IdMap<RequestId, std::unique_ptr<Seen>> seen_;
  std::vector<RequestId> ids_;  // in the order of asking
  Tally tally_;
};

}  // namespace kvern::sim
