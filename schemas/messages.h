// All structs that travel between processes: what the pure cores see of the outside.
#pragma once

#include "schemas/client_messages.h"  // IWYU pragma: export
#include "schemas/plan_messages.h"    // IWYU pragma: export
#include "schemas/worker_messages.h"  // IWYU pragma: export
