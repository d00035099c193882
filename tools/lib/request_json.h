// A request as JSON: the fields of kvern-run's lines, and of everything else that takes requests as
// JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"
#include "schemas/client_messages.h"

namespace kvern {

struct RequestJsonRules {
  // Whether the fields that only mean something to a service are allowed: class, priority, model,
  // ...
  bool service_fields = true;
  // Fields of the object that the caller reads itself.
  std::vector<std::string_view> own_fields;
};

// Checks types and names only; what the values may be depends on the model and is the router's to
// check. A field that is null counts as absent. Errors name the field, its value and what is
// allowed. InvalidArgument: not an object, an unknown field, a wrong type. Unimplemented: a field
// of the service where `rules` exclude it.
absl::StatusOr<GenerateRequest> ParseRequestJson(const nlohmann::json& object,
                                                 const RequestJsonRules& rules);

// The value of a field as an error text shows it: shortened, ill-formed bytes replaced.
std::string ShowJson(const nlohmann::json& value);

}  // namespace kvern
