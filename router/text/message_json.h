// The `messages` field of JSON requests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cluster/base/status.h"
#include "router/text/chat_template.h"

namespace kvern {

// [{"role": string, "content": string}, ...]. invalid_argument, with the field and its index, for
// anything else: a missing or unknown field, null, a list of parts, a number.
absl::StatusOr<std::vector<Message>> ParseMessages(const nlohmann::json& messages);

}  // namespace kvern
