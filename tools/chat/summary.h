// What an answer took, as a person reads it and as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/base/time.h"
#include "tools/clients/cpp/client.h"

namespace kvern {

// Times as the person at the terminal sees them, from the moment the request was sent.
struct AnswerTimes {
  Time sent = 0;
  Time first_token = 0;     // 0: none came
  size_t first_tokens = 0;  // how many came with the first
  Time last_token = 0;
};

// "24 tokens, first after 143 ms, 41.2 tokens/s, queued 0 ms"; queued is absent when the answer did
// not come to its end. Says so if a limit cut the answer: `max_tokens`, or the service's if it is
// absent. Empty when there was an error before the first token.
std::string SummaryLine(const Answer& answer, const AnswerTimes& times,
                        std::optional<uint32_t> max_tokens);

// One line: {"text","token_ids","finish_reason","stop_reason","seed","usage"} or {"error":{…}}.
std::string AnswerJson(const Answer& answer);

// "code: message (needed_blocks 9, …)".
std::string ErrorLine(const RequestError& error);

// `text` without the control characters that a terminal would obey, except newline and tab.
std::string Printable(std::string_view text);

}  // namespace kvern
