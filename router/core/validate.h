// What a request must be before anything is done for it.
#pragma once

#include <cstdint>
#include <string>

#include "router/core/router.h"
#include "schemas/messages.h"

namespace kvern::router {

// Why a request is refused; kNone: it is not.
struct Refusal {
  ErrorCode code = ErrorCode::kNone;
  std::string message;
  ErrorDetails details;
  bool ok() const { return code == ErrorCode::kNone; }
};

// Checks every field against the model, the limits of the protocol and what this version supports.
// The message names the field, the value and what is allowed. invalid_argument: wrong for any
// service of this protocol; unsupported_parameter: not built; not_found: another model; never_fits:
// the output alone is longer than the model allows.
Refusal ValidateRequest(const RouterConfig& config, const GenerateRequest& request);

// Prompts must not be empty and their ids must be below vocab_size. The ids of long ones
// (kMinBytesInPlace) are left to the worker, which reads them all and refuses in the same words: a
// decision costs the same however long a prompt is.
Refusal ValidatePrompt(const RouterConfig& config, const TokenIds& ids);

// Bytes that the request's input holds in the queue.
uint64_t InputBytes(const GenerateRequest& request);

}  // namespace kvern::router
