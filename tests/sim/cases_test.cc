// What goes wrong in systems of this kind, as runs of the swarm's service without faults. The
// numbers are those of the table in tests/README.md.
#include <gtest/gtest.h>

#include "tests/sim/swarm_run.h"

namespace kvern::sim {
namespace {

// One group of 40 blocks that takes 4 ms and more for a step, for six seconds.
SwarmOptions Service(Duration mean_gap) {
  SwarmOptions options = DrawOptions(1);
  options.sim.faults = FaultLevels();
  options.sim.router.tenants.clear();
  options.sim.router.queue_wait_max = 60 * kSecond;
  options.sim.router.queue_entries = 1000;
  options.sim.router.queue_bytes = 1 << 20;
  options.sim.groups = 1;
  options.sim.kv_blocks = 40;
  options.sim.batch_tokens = 64;
  options.guaranteed_percent = 0;
  options.greedy_percent = 0;
  options.tenants_differ = false;
  options.clients = 4;
  options.mean_gap = mean_gap;
  options.max_prompt = 60;
  options.max_output = 60;
  return options;
}

struct Ends {
  uint64_t answered = 0;
  uint64_t overloaded = 0;
  uint64_t in_time = 0;  // answered, the first token within its deadline
  uint64_t late = 0;     // answered, but later
  uint64_t expired = 0;  // waited in vain
  uint64_t open = 0;     // without an answer of any kind
};

Ends EndsOf(const SwarmOptions& options) {
  SwarmRun run(options);
  for (const std::string& violation : run.simulation().violations()) ADD_FAILURE() << violation;
  Ends ends;
  for (size_t i = 0; i < run.simulation().records().size(); ++i) {
    const Record& record = run.simulation().records()[i];
    ends.open += record.over ? 0 : 1;
    ends.overloaded += record.error == ErrorCode::kOverloaded ? 1 : 0;
    ends.expired += record.error == ErrorCode::kDeadlineExceeded ? 1 : 0;
    if (!record.over || record.error != ErrorCode::kNone) continue;
    ++ends.answered;
    // The client sees it a message later than the router.
    Duration wait = record.first_token - record.arrived - options.sim.max_delay;
    ++(wait <= record.ttft_deadline ? ends.in_time : ends.late);
  }
  return ends;
}

// When the queue overflows nobody is left hanging: each request gets its one answer (more than one
// would be a violation).
TEST(Cases, Case04AFullQueueAnswersEverybody) {
  SwarmOptions options = Service(3 * kMillisecond);
  options.sim.router.queue_entries = 2;
  Ends ends = EndsOf(options);
  EXPECT_GT(ends.overloaded, 500u);
  EXPECT_GT(ends.answered, 100u);
  EXPECT_EQ(ends.open, 0u);
}

// At five times the load that it can serve, what is admitted is served in time, and as much as at
// its capacity.
TEST(Cases, Case05OverloadIsRefusedAndNotServedLate) {
  Ends moderate = EndsOf(Service(12 * kMillisecond));
  Ends flood = EndsOf(Service(kMillisecond));
  EXPECT_GT(flood.overloaded, 4 * flood.answered);
  EXPECT_GE(flood.in_time * 100, moderate.in_time * 90);
  EXPECT_LE(flood.late * 20, flood.answered);
}

// Nor does what a tenant may not run at once, however empty the groups are, wait until it expires.
TEST(Cases, Case05WhatItsQuotaHoldsIsRefusedToo) {
  SwarmOptions options = Service(2 * kMillisecond);
  options.sim.kv_blocks = 400;
  for (const char* name : {"one", "two"}) {
    TenantConfig& tenant = options.sim.router.tenants.emplace_back();
    tenant.name = name;
    tenant.max_blocks = 8;
  }
  Ends ends = EndsOf(options);
  EXPECT_GT(ends.answered, 100u);
  EXPECT_GT(ends.overloaded, 10 * ends.expired);
}

// Of a request that is sent twice the first may be refused and the second be lined up. When its
// client's process is gone, the checks must not take it for the head of the queue for ever.
TEST(Cases, WhatWasAskedTwiceGoesWithItsClient) {
  SwarmOptions options = Service(3 * kMillisecond);
  options.sim.router.queue_entries = 4;
  options.sim.faults[Fault::kRepeatedId] = 50;
  options.sim.faults[Fault::kClientRestarts] = 100;
  Ends ends = EndsOf(options);
  EXPECT_GT(ends.overloaded, 100u);
  EXPECT_GT(ends.answered, 50u);
}

}  // namespace
}  // namespace kvern::sim
