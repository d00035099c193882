// Makes a failing run smaller before it is shown.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/sim/options.h"

namespace kvern::sim {

struct Shrunk {
  SimOptions options;
  uint32_t runs = 0;  // that it took
};

// Runs a simulation: the name of the first check that fails, or "".
using FailingCheck = std::function<std::string(const SimOptions&)>;

// Switches off one kind of fault after the other, then halves the requests, and keeps each change
// with which the same check still fails. `requests`: asked for in the failing run.
Shrunk Shrink(const SimOptions& failing, const std::string& check, uint64_t requests,
              const FailingCheck& run);

// "S1" of "at 17 us: S1: request 3: ...".
std::string CheckName(const std::string& violation);

}  // namespace kvern::sim
