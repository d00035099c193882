// Ranks that are threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "worker/comm/communicator.h"

namespace kvern {

// Element r is rank r's, to be used by one thread. 1 <= world <= 64. Dies when memory is short.
std::vector<std::unique_ptr<Communicator>> NewLocalGroup(int world);

}  // namespace kvern
