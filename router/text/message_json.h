// The `messages` field of JSON requests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cluster/base/status.h"
#include "router/text/chat_template.h"

namespace kvern {

// [{"role": string, "content": string or parts}, ...]; parts are [{"type": "text", "text": string},
// ...], whose texts are joined as they are. invalid_argument, with the place below `messages`
// ("[1]: content: [0]: ..."), for anything else: a missing or unknown field, null, a number, a part
// of another type.
absl::StatusOr<std::vector<Message>> ParseMessages(const nlohmann::json& messages);

}  // namespace kvern
