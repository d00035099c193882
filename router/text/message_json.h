// The `messages` field of JSON requests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cluster/base/status.h"
#include "router/text/chat_template.h"

namespace kvern {

// What `content` may be. A template takes text and nothing else; a request may also bring parts,
// [{"type": "text", "text": string}, ...], whose texts are joined as they are before the template.
enum class ContentForm { kText, kTextOrParts };

// [{"role": string, "content": ...}, ...]. invalid_argument, with the place below `messages` ("[1]:
// content: [0]: ..."), for anything else: a missing or unknown field, null, a number, a part of
// another type.
absl::StatusOr<std::vector<Message>> ParseMessages(const nlohmann::json& messages,
                                                   ContentForm form);

}  // namespace kvern
