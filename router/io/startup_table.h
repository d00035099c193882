// The table that the router prints when a group becomes live: what it costs and what it can hold.
#pragma once

#include <string>

#include "router/core/router.h"

namespace kvern {

// Several lines, the last with its line end. `max_seq_len` is the service's limit.
std::string StartupTable(const GroupStatus& group, uint32_t max_seq_len);

// The table on stderr; where log lines are JSON one of them, startup_table, with the same numbers.
void ShowStartupTable(const GroupStatus& group, uint32_t max_seq_len);

}  // namespace kvern
