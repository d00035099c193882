#include "tests/sim/checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/rng.h"
#include "cluster/capacity/kv_budget.h"

namespace kvern::sim {
namespace {

char Letter(uint32_t token) { return static_cast<char>('a' + token % 26); }

uint64_t NeedOf(const Seen& seen) {
  return BlocksNeeded(seen.prompt_tokens, seen.max_tokens, seen.request.n, kBlockSize);
}

uint32_t PromptTokens(const GenerateRequest& request) {
  if (request.prompt_token_ids) return static_cast<uint32_t>(request.prompt_token_ids->size());
  if (request.prompt) return static_cast<uint32_t>(request.prompt->size());
  uint32_t tokens = 0;
  for (const ChatMessage& m : *request.messages) tokens += static_cast<uint32_t>(m.content.size());
  return tokens;
}

}  // namespace

uint32_t FakeToken(uint64_t sampling_seed, uint32_t choice, uint32_t position) {
  return static_cast<uint32_t>(HashCounter(sampling_seed, choice, position) % kVocab);
}

std::vector<uint32_t> FakeTokenize(const std::string& text) {
  std::vector<uint32_t> ids;
  for (char c : text) ids.push_back(static_cast<uint32_t>(c - 'a') + 1);
  return ids;
}

void Checker::Issued(PeerId client, const GenerateRequest& request) {
  auto seen = std::make_unique<Seen>();
  seen->request = request;
  seen->client = client;
  seen->prompt_tokens = PromptTokens(request);
  seen->max_tokens = request.max_tokens.value_or(kDefaultMaxTokens);
  seen->choices.resize(request.n);
  seen_.Insert(request.request_id, std::move(seen));
  ids_.push_back(request.request_id);
  ++tally_.issued;
}

void Checker::Arrived(Time now, const RequestId& id) { seen_.At(id)->arrived = now; }

void Checker::ClientLost(PeerId client) {
  for (const RequestId& id : ids_) {
    Seen& seen = *seen_.At(id);
    if (seen.client == client) seen.client_lost = true;
  }
}

const Seen* Checker::Find(const RequestId& id) const {
  const std::unique_ptr<Seen>* seen = seen_.Find(id);
  return seen == nullptr ? nullptr : seen->get();
}

void Checker::Dispatched(Time now, const Dispatch& dispatch, uint64_t group_blocks) {
  const RequestId& id = dispatch.request_id;
  std::unique_ptr<Seen>* found = seen_.Find(id);
  if (found == nullptr) return Violate("S3", id, "dispatched, but nobody asked for it");
  Seen& seen = **found;
  if (seen.dispatched) Violate("S2", id, "dispatched twice without a new epoch");
  seen.dispatched = true;
  Time ttft = seen.arrived + (seen.request.ttft_deadline_ms
                                  ? Time{*seen.request.ttft_deadline_ms} * kMillisecond
                                  : 10 * kSecond);
  if (now >= ttft) Violate("S7", id, "started after its deadline");
  if (NeedOf(seen) > group_blocks) Violate("S8", id, "larger than the group it was sent to");
  if (dispatch.prompt.size() != seen.prompt_tokens || dispatch.n != seen.request.n ||
      dispatch.sampling.max_tokens != seen.max_tokens) {
    Violate("S1", id, "the dispatch is not what was asked for");
  }
}

Seen* Checker::FindFor(PeerId client, const RequestId& id, const char* what) {
  std::unique_ptr<Seen>* found = seen_.Find(id);
  if (found == nullptr || (*found)->client != client) {
    Violate("S3", id, absl::StrCat(what, " for a request that client ", client, " did not make"));
    return nullptr;
  }
  Seen* seen = found->get();
  if (seen->over) {
    Violate(seen->error == ErrorCode::kCancelled ? "S10" : "S3", id,
            absl::StrCat(what, " after the terminal answer"));
    return nullptr;
  }
  return seen;
}

void Checker::Read(PeerId client, const RouterToClient& message) {
  if (const auto* accepted = std::get_if<Accepted>(&message)) {
    if (Seen* seen = FindFor(client, accepted->request_id, "Accepted")) {
      ReadAccepted(*seen, *accepted);
    }
  } else if (const auto* deltas = std::get_if<Deltas>(&message)) {
    for (const Delta& delta : deltas->deltas) {
      if (Seen* seen = FindFor(client, delta.request_id, "a delta")) ReadDelta(*seen, delta);
    }
  } else if (const auto* error = std::get_if<RequestError>(&message)) {
    if (error->request_id.IsZero()) return;
    if (Seen* seen = FindFor(client, error->request_id, "an error")) ReadError(*seen, *error);
  }
}

void Checker::ReadAccepted(Seen& seen, const Accepted& accepted) {
  const RequestId& id = accepted.request_id;
  if (seen.accepted) Violate("S3", id, "accepted twice");
  seen.accepted = true;
  seen.seed = accepted.seed;
  if (seen.request.seed && *seen.request.seed != accepted.seed) {
    Violate("S1", id, "another seed than the client's");
  }
  if (accepted.prompt_tokens != seen.prompt_tokens) Violate("S1", id, "prompt_tokens is wrong");
}

void Checker::ReadDelta(Seen& seen, const Delta& delta) {
  const RequestId& id = delta.request_id;
  if (!seen.accepted) return Violate("S3", id, "a delta before Accepted");
  if (delta.choice >= seen.choices.size()) return Violate("S1", id, "an unknown choice");
  Seen::Choice& choice = seen.choices[delta.choice];
  if (choice.finished) return Violate("S1", id, "a delta after the choice's end");
  if (delta.position != choice.tokens.size()) {
    return Violate("S1", id,
                   absl::StrCat("position ", delta.position, ", expected ", choice.tokens.size()));
  }
  for (uint32_t token : delta.token_ids) {
    auto position = static_cast<uint32_t>(choice.tokens.size());
    if (token != FakeToken(seen.seed, delta.choice, position)) {
      return Violate("S1", id, absl::StrCat("token ", token, " at position ", position));
    }
    choice.tokens.push_back(token);
    ++tally_.tokens;
  }
  if (choice.tokens.size() > seen.max_tokens) Violate("S1", id, "more than max_tokens");
  size_t logprobs = seen.request.sampling.logprobs ? delta.token_ids.size() : 0;
  if (delta.logprobs.size() != logprobs) Violate("S1", id, "logprobs differ in number");
  choice.text += delta.text.value_or("");
  if (delta.finish_reason != FinishReason::kNone) ReadFinish(seen, choice, delta);

  bool all = true;
  uint32_t completion = 0;
  for (const Seen::Choice& each : seen.choices) {
    all = all && each.finished;
    completion += static_cast<uint32_t>(each.tokens.size());
  }
  if (all != delta.usage.has_value()) Violate("S3", id, "usage is not on the last delta alone");
  if (delta.usage && delta.usage->completion_tokens != completion) {
    Violate("S3", id, "usage counts other tokens than were delivered");
  }
  seen.over = all;
  if (all) ++tally_.completed;
}

void Checker::ReadFinish(Seen& seen, Seen::Choice& choice, const Delta& delta) {
  const RequestId& id = delta.request_id;
  choice.finished = true;
  const SamplingParams& sampling = seen.request.sampling;
  bool length = delta.finish_reason == FinishReason::kLength;
  const auto* stop = std::get_if<std::string>(&delta.stop_reason);
  const auto* stop_id = std::get_if<uint32_t>(&delta.stop_reason);
  if (choice.tokens.empty()) return Violate("S1", id, "an end without a token");
  uint32_t last = choice.tokens.back();
  bool eos = last == kEos && !sampling.ignore_eos;
  if (length && choice.tokens.size() != seen.max_tokens) Violate("S1", id, "ended too early");
  if (stop_id != nullptr && last != *stop_id) Violate("S1", id, "another stop id");
  if (!length && stop == nullptr && stop_id == nullptr && !eos) {
    Violate("S1", id, "stopped for no reason");
  }
  std::string letters;
  for (uint32_t token : choice.tokens) letters += Letter(token);
  if (!length && stop == nullptr) letters.pop_back();  // EOS and stop ids show no text
  if (stop != nullptr) {
    ++tally_.stop_strings;
    if (!letters.ends_with(*stop)) Violate("S1", id, "stopped before the stop string");
    letters.resize(letters.size() - std::min(letters.size(), stop->size()));
  }
  if (choice.text != letters) Violate("S1", id, "the text is not that of the tokens");
}

void Checker::ReadError(Seen& seen, const RequestError& error) {
  seen.over = true;
  seen.error = error.code;
  ++tally_.errors[static_cast<size_t>(error.code)];
  const ErrorDetails& details = error.details;
  if (error.code == ErrorCode::kNeverFits) {
    bool too_long = seen.prompt_tokens + seen.max_tokens > kMaxSeqLen;
    bool too_big = details.available_blocks && NeedOf(seen) > *details.available_blocks;
    if (!too_long && !too_big) Violate("S8", error.request_id, "never_fits, but it does");
  }
  if (error.code == ErrorCode::kDeadlineExceeded && seen.dispatched && !seen.request.deadline_ms) {
    Violate("S7", error.request_id, "ended while running by a deadline that was met");
  }
  if (error.code == ErrorCode::kOverloaded && details.retry_after_ms.value_or(0) < 100) {
    Violate("S6", error.request_id, "overloaded without advice");
  }
}

void Checker::AllAnswered() {
  for (const RequestId& id : ids_) {
    const Seen& seen = *seen_.At(id);
    if (!seen.over && !seen.client_lost) Violate("L1", id, "no terminal answer");
  }
}

void Checker::Violate(const char* name, const RequestId& id, const std::string& what) {
  violation_(absl::StrCat(name, ": request ", id.low, ": ", what));
}

}  // namespace kvern::sim
