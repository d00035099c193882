#include "tools/sim/shrink.h"

namespace kvern::sim {

std::string CheckName(const std::string& violation) {
  size_t begin = violation.find(": ");
  if (begin == std::string::npos) return violation;
  begin += 2;
  return violation.substr(begin, violation.find(':', begin) - begin);
}

Shrunk Shrink(const SimOptions& failing, const std::string& check, uint64_t requests,
              const FailingCheck& run) {
  Shrunk shrunk{failing, 0};
  auto still_fails = [&](const SimOptions& options) {
    ++shrunk.runs;
    return run(options) == check;
  };
  for (size_t i = 0; i < kNumFaults; ++i) {
    if (shrunk.options.faults[Fault(i)] == 0) continue;
    SimOptions smaller = shrunk.options;
    smaller.faults[Fault(i)] = 0;
    if (still_fails(smaller)) shrunk.options = smaller;
  }
  for (uint64_t half = requests / 2; half > 0; half /= 2) {
    SimOptions smaller = shrunk.options;
    smaller.max_requests = half;
    if (!still_fails(smaller)) break;
    shrunk.options = smaller;
  }
  return shrunk;
}

}  // namespace kvern::sim
