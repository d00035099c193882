// sim_swarm FIRST COUNT: runs that many seeds of the swarm, once each, up to the first that breaks
// something; exits with 1 then. For searches over many seeds, and for mutate.py.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/sim/swarm_options.h"
#include "tests/sim/swarm_run.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FIRST_SEED COUNT\n", argv[0]);
    return 2;
  }
  uint64_t first = std::strtoull(argv[1], nullptr, 10);
  uint64_t count = std::strtoull(argv[2], nullptr, 10);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    kvern::sim::SwarmOptions options = kvern::sim::DrawOptions(seed);
    // First, so that a run that dies can be repeated.
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    kvern::sim::SwarmRun run(options);
    const auto& violations = run.simulation().violations();
    if (violations.empty()) {
      // Two builds that simulate the same print the same.
      std::printf("hash %016llx\n", static_cast<unsigned long long>(run.simulation().event_hash()));
      continue;
    }
    for (const std::string& violation : violations) std::printf("%s\n", violation.c_str());
    std::printf("%s\n", kvern::sim::ToString(options).c_str());
    return 1;
  }
  return 0;
}
