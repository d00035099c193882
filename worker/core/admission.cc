#include "worker/core/admission.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/capacity/kv_budget.h"

namespace kvern {
namespace {

bool Contains(const std::vector<uint32_t>& ids, uint32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The first id that is not in the vocabulary, as an error text; empty when all are.
std::string CheckTokens(const char* field, std::span<const uint32_t> ids, uint32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      return absl::StrCat("token id in ", field, " is ", ids[i], ", allowed: below ", vocab_size);
    }
  }
  return "";
}

std::string CheckShape(const SchedulerConfig& config, const Dispatch& dispatch) {
  const ResolvedSampling& sampling = dispatch.sampling;
  if (dispatch.prompt.empty()) return "prompt is empty";
  if (dispatch.n == 0 || dispatch.n > kMaxChoices) {
    return absl::StrCat("n is ", dispatch.n, ", allowed are 1 to ", kMaxChoices);
  }
  if (sampling.max_tokens == 0) return "max_tokens is 0, at least 1 is needed";
  uint64_t total = uint64_t{dispatch.prompt.size()} + sampling.max_tokens;
  if (total > config.max_seq_len) {
    return absl::StrCat("prompt and max_tokens are ", total, " tokens, max_seq_len is ",
                        config.max_seq_len);
  }
  if (!dispatch.emitted.empty() && dispatch.emitted.size() != dispatch.n) {
    return absl::StrCat("emitted has ", dispatch.emitted.size(), " choices, n is ", dispatch.n);
  }
  std::string error = CheckTokens("the prompt", dispatch.prompt, config.vocab_size);
  for (const std::vector<uint32_t>& emitted : dispatch.emitted) {
    if (emitted.size() > sampling.max_tokens) {
      return absl::StrCat("emitted has ", emitted.size(), " tokens, max_tokens is ",
                          sampling.max_tokens);
    }
    if (error.empty()) error = CheckTokens("emitted", emitted, config.vocab_size);
  }
  if (!error.empty()) return error;
  return UnfinishedChoices(dispatch).empty() ? "every choice is already over" : "";
}

// The largest worst case among the accepted requests of class standard.
uint64_t LargestStandard(const GroupState& state) {
  uint64_t largest = 0;
  auto visit = [&](const Request* request) {
    if (request->dispatch.service_class != ServiceClass::kStandard) return;
    largest = std::max(largest, request->reserved);
  };
  if (state.reserved == state.reserved_by_class) return 0;
  std::for_each(state.started.begin(), state.started.end(), visit);
  std::for_each(state.waiting.begin(), state.waiting.end(), visit);
  return largest;
}

// The router's ledger should have kept these from coming up. The worst cases of the guaranteed
// requests and of any one standard request fit into the pool together, so that the oldest of those
// can always finish.
std::string CheckRoom(const GroupState& state, const Dispatch& dispatch) {
  uint64_t needed =
      BlocksNeeded(dispatch.prompt.size(), dispatch.sampling.max_tokens, dispatch.n, kBlockSize);
  uint64_t taken = state.reserved_by_class;
  if (dispatch.service_class == ServiceClass::kGuaranteed) taken += LargestStandard(state);
  if (needed > state.config.num_blocks - taken) {
    return absl::StrCat("needs ", needed, " blocks, ", taken, " of ", state.config.num_blocks,
                        " are reserved");
  }
  if (dispatch.n > state.config.max_sequences) {
    return absl::StrCat("needs ", dispatch.n, " sequences, there are ", state.config.max_sequences);
  }
  return "";
}

}  // namespace

std::optional<Nack> CheckDispatch(const GroupState& state, const Dispatch& dispatch) {
  auto refuse = [&](ErrorCode code, std::string message) {
    return Nack{dispatch.request_id, dispatch.epoch, code, std::move(message)};
  };
  if (state.requests.Find(dispatch.request_id) != nullptr) {
    return refuse(ErrorCode::kInternal, "the request runs already");
  }
  if (dispatch.service_class == ServiceClass::kBatch) {
    return refuse(ErrorCode::kUnsupportedParameter, "class batch is not built");
  }
  if (dispatch.sampling.prompt_logprobs) {
    return refuse(ErrorCode::kUnsupportedParameter, "prompt_logprobs is not supported yet");
  }
  if (std::string error = CheckShape(state.config, dispatch); !error.empty()) {
    return refuse(ErrorCode::kInvalidArgument, std::move(error));
  }
  if (std::string error = CheckRoom(state, dispatch); !error.empty()) {
    return refuse(ErrorCode::kInternal, std::move(error));
  }
  return std::nullopt;
}

std::vector<uint32_t> UnfinishedChoices(const Dispatch& dispatch) {
  std::vector<uint32_t> choices;
  for (uint32_t choice = 0; choice < dispatch.n; ++choice) {
    if (!dispatch.emitted.empty() && !dispatch.emitted[choice].empty()) {
      const std::vector<uint32_t>& emitted = dispatch.emitted[choice];
      StopReason ignored;
      if (FinishOf(dispatch, emitted.back(), emitted.size(), ignored) != FinishReason::kNone) {
        continue;
      }
    }
    choices.push_back(choice);
  }
  return choices;
}

uint64_t EndingBits(const Dispatch& dispatch) {
  uint64_t bits = 0;
  if (!dispatch.sampling.ignore_eos) {
    for (uint32_t id : dispatch.eos_ids) bits |= uint64_t{1} << (id % 64);
  }
  for (uint32_t id : dispatch.sampling.stop_token_ids) bits |= uint64_t{1} << (id % 64);
  return bits;
}

FinishReason FinishOf(const Dispatch& dispatch, uint32_t token, size_t output,
                      StopReason& stop_reason) {
  const ResolvedSampling& sampling = dispatch.sampling;
  if (!sampling.ignore_eos && Contains(dispatch.eos_ids, token)) return FinishReason::kStop;
  if (Contains(sampling.stop_token_ids, token)) {
    stop_reason = token;
    return FinishReason::kStop;
  }
  if (output >= sampling.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

}  // namespace kvern
