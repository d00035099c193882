// What one line of input is answered with.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "schemas/client_messages.h"

namespace kvern {

struct ChoiceAnswer {
  std::vector<uint32_t> token_ids;
  std::optional<std::string> text;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

// Filled in as the router's messages come.
struct Answer {
  nlohmann::json id;  // a string, or null if the line had none
  bool echo_prompt = false;
  bool wants_logprobs = false;
  size_t input_bytes = 0;
  std::vector<uint32_t> prompt;
  uint64_t seed = 0;
  std::vector<ChoiceAnswer> choices;
  std::optional<Usage> usage;
  std::optional<RequestError> error;

  bool done() const { return usage || error; }
  void Add(Delta delta);
  void Refuse(ErrorCode code, std::string message);
};

// The line of output, without its newline.
std::string ResultLine(const Answer& answer);

}  // namespace kvern
