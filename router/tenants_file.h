// The tenants file: who may ask for how much. JSON, read once at start:
//   {"tenants": [{"name": "search", "weight": 3, "max_blocks": 4000,
//                 "block_seconds_per_minute": 90000, "priority_ceiling": 2}, ...]}
// Only the name is needed. A tenant that is not listed has weight 1, no quota and priority 0.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"
#include "router/core/router.h"

namespace kvern {

// `where` begins every error. InvalidArgument names the entry, the field, its value and what is
// allowed; unknown fields and repeated names are refused.
absl::StatusOr<std::vector<TenantConfig>> ParseTenants(std::string_view text,
                                                       const std::string& where);
absl::StatusOr<std::vector<TenantConfig>> ReadTenantsFile(const std::string& path);

}  // namespace kvern
