#include "tests/sim/swarm_options.h"

#include "absl/strings/str_cat.h"
#include "cluster/base/rng.h"

namespace kvern::sim {

std::string CheckThatSees(Bug bug) {
  switch (bug) {
    case Bug::kNone:
      return "";
    case Bug::kDropDelta:
    case Bug::kRepeatDelta:
    case Bug::kSwapDeltas:
    case Bug::kWrongToken:
      return "S1";
    case Bug::kRepeatError:
      return "S3";
    case Bug::kDropTerminal:
      return "L1";
    case Bug::kDropCancel:
      return "S5";
    case Bug::kLateDispatch:
      return "S7";
    case Bug::kDeltaAfterEnd:
      return "S10";
  }
  return "";
}

namespace {

constexpr uint32_t kVocab = 64;
constexpr uint32_t kMaxSeqLen = 160;

// At most that many times in a run, or percent of the requests.
uint32_t MaxLevel(Fault fault) {
  switch (fault) {
    case Fault::kCancel:
      return 50;
    case Fault::kBadIds:
      return 10;
    case Fault::kFanOut:
    case Fault::kTokenizerSlow:
    case Fault::kReaderSlow:
    case Fault::kReaderStalls:
    case Fault::kCreditLost:
    case Fault::kCreditLate:
      return 30;
    case Fault::kRackKilled:
    case Fault::kGroupLoop:
      return 1;
    default:
      return 4;
  }
}

void DrawService(Rng& rng, SimOptions& sim) {
  auto between = [&](int64_t low, int64_t high) {
    return static_cast<uint32_t>(rng.Between(low, high));
  };
  sim.groups = between(1, 4);
  sim.ranks = between(1, 3);
  sim.kv_blocks = between(6, 80);
  sim.extra_blocks = 4;
  sim.batch_tokens = between(4, 128);
  sim.model = {.vocab = kVocab, .eos = 0, .length_in_seed = false};
  // 4 ms for a step, and 50 us for each token of it.
  sim.model_cost.parameters = 25'000;
  sim.device_cost = {1'000'000'000, 1'000'000'000, 4 * kMillisecond};
  sim.has_text = true;
  sim.min_delay = 1;
  sim.max_delay = rng.Between(1, 40) * kMillisecond;
  sim.router_turn = 200 * kMicrosecond;
  sim.duration = 6 * kSecond;
  sim.warm_up = 0;
  sim.full_check_every = 1;
  sim.ask_at_end = true;
  RouterConfig& router = sim.router;
  router.model = "sim";
  router.has_tokenizer = true;
  router.max_seq_len = kMaxSeqLen;
  router.vocab_size = kVocab;
  router.eos_ids = {sim.model.eos};
  router.default_max_tokens = 24;
  router.output_quantile_percent = 20 * between(0, 5);
  router.watermark_percent = between(0, 10);
  router.queue_entries = between(1, 40);
  router.queue_bytes = between(600, 6000);
  router.queue_wait_max = rng.Between(200, 20'000) * kMillisecond;
  router.client_lease = 3 * kSecond;
  router.group_lease = 1 * kSecond;
  router.start_timeout = 2 * kSecond;
  router.router_incarnation = 1;
}

// One tenant without a name and limits, one with a greater share and priorities, and one with each
// kind of quota.
void DrawTenants(Rng& rng, SimOptions& sim) {
  TenantConfig favoured;
  favoured.name = "favoured";
  favoured.weight = static_cast<uint32_t>(rng.Between(2, 9));
  favoured.priority_ceiling = static_cast<int32_t>(rng.Between(0, 7));
  TenantConfig small;
  small.name = "small";
  small.max_blocks = rng.Below(sim.kv_blocks) + 1;
  TenantConfig thrifty;
  thrifty.name = "thrifty";
  thrifty.block_seconds_per_minute = 1 + rng.Below(1000);
  sim.router.tenants = {favoured, small, thrifty};
}

// Drawn apart from the rest. Tenants without quotas, more of whose requests wait than the others'
// make way for, so that it is seen who is served.
void DrawRivals(Rng rng, SwarmOptions& options) {
  RouterConfig& router = options.sim.router;
  router.tenants.clear();
  bool priorities = rng.Chance(1, 3);
  for (const char* name : {"one", "two", "three"}) {
    TenantConfig& tenant = router.tenants.emplace_back();
    tenant.name = name;
    tenant.weight = static_cast<uint32_t>(rng.Between(1, 6));
    if (priorities) tenant.priority_ceiling = static_cast<int32_t>(rng.Between(1, 7));
  }
  router.queue_entries = 150;
  router.queue_bytes = 1 << 20;
  router.queue_wait_max = 60 * kSecond;
  options.clients = static_cast<uint32_t>(rng.Between(2, 6));
  router.max_clients = options.clients + 2;
  options.mean_gap = rng.Between(6, 30) * kMillisecond;
  options.greedy_percent = static_cast<uint32_t>(rng.Between(0, 60));
  options.tenants_differ = rng.Chance(1, 2);
}

// Drawn apart from the rest. No two requests of the tenant that has a name fit together, and what
// the other asks for passes them, again and again, though the first has a right to far more.
void DrawGiants(Rng rng, SwarmOptions& options) {
  SimOptions& sim = options.sim;
  options.giant_blocks = static_cast<uint32_t>(rng.Between(8, kMaxSeqLen / kBlockSize));
  sim.groups = 1;
  sim.kv_blocks = options.giant_blocks + static_cast<uint32_t>(rng.Between(5, 7));
  sim.max_delay = rng.Between(1, 5) * kMillisecond;
  options.guaranteed_percent = 100;
  options.greedy_percent = 0;
  options.clients = 3;
  options.mean_gap = rng.Between(5, 12) * kMillisecond;
  sim.router.max_clients = options.clients + 2;
  sim.router.default_ttft_deadline = sim.router.queue_wait_max = 300 * kSecond;
  sim.router.tenants.resize(1);  // beside the one without a name
  sim.router.tenants[0].weight = static_cast<uint32_t>(rng.Between(4, 12));
}

// Drawn apart from the rest. Room for prompts whose ids the router leaves to the groups, and some
// such prompts; with fewer tokens between them than else, as each is a hundred others.
void DrawLongPrompts(Rng rng, SwarmOptions& options) {
  constexpr auto kLong = static_cast<uint32_t>(kMinBytesInPlace / sizeof(uint32_t));
  SimOptions& sim = options.sim;
  sim.router.max_seq_len = kLong + kMaxSeqLen;
  sim.kv_blocks += sim.router.max_seq_len / kBlockSize * static_cast<uint32_t>(rng.Between(1, 3));
  sim.batch_tokens = static_cast<uint32_t>(rng.Between(64, 512));
  sim.router.queue_bytes += kMinBytesInPlace * static_cast<uint64_t>(rng.Between(2, 20));
  options.long_percent = static_cast<uint32_t>(rng.Between(1, 10));
}

// Drawn apart from the rest. Windows so small that streams of some tens of tokens fill them, and at
// times so few bytes for each client that a few paused streams are too many.
void DrawFlow(Rng rng, SimOptions& sim) {
  sim.half_give_credit = rng.Chance(3, 4);
  RouterConfig& router = sim.router;
  router.stream_window = static_cast<uint32_t>(rng.Between(1, 40));
  router.slow_reader_timeout = rng.Between(500, 3000) * kMillisecond;
  if (rng.Chance(1, 2)) {
    router.client_buffer_bytes = static_cast<uint64_t>(rng.Between(500, 20'000));
  }
}

}  // namespace

SwarmOptions DrawOptions(uint64_t seed) {
  Rng rng = Rng(seed).Fork(1);
  auto between = [&](int64_t low, int64_t high) {
    return static_cast<uint32_t>(rng.Between(low, high));
  };
  SwarmOptions options;
  options.sim.seed = seed;
  DrawService(rng, options.sim);
  if (rng.Chance(1, 2)) DrawTenants(rng, options.sim);
  options.clients = between(1, 8);
  options.sim.router.max_clients = options.clients + 2;
  options.mean_gap = rng.Between(3, 60) * kMillisecond;
  options.max_prompt = between(1, 120);
  options.max_output = between(1, 80);
  options.guaranteed_percent = 25 * between(0, 4);
  for (size_t i = 0; i < kNumFaults; ++i) {
    // A run with all kinds of faults would seldom get far: each takes part in a third of the runs.
    if (rng.Chance(1, 3)) options.sim.faults[Fault(i)] = between(1, MaxLevel(Fault(i)));
  }
  DrawFlow(Rng(seed).Fork(5), options.sim);
  if (Rng rivals = Rng(seed).Fork(7); rivals.Chance(1, 4)) DrawRivals(rivals, options);
  if (options.sim.faults[Fault::kBadIds] > 0) {
    DrawLongPrompts(Rng(seed).Fork(8), options);
  } else if (Rng giants = Rng(seed).Fork(9); giants.Chance(1, 12)) {
    DrawRivals(Rng(seed).Fork(7), options);
    DrawGiants(giants, options);
  }
  if (Rng sizes = Rng(seed).Fork(10); sizes.Chance(1, 6)) {
    options.sim.next_group_percent = static_cast<uint32_t>(sizes.Between(30, 80));
  }
  options.sim.plans_in_flight = static_cast<uint32_t>(Rng(seed).Fork(6).Between(1, 2));
  return options;
}

std::string ToString(const SwarmOptions& o) {
  const SimOptions& s = o.sim;
  return absl::StrCat(
      "seed=", s.seed, " groups=", s.groups, " ranks=", s.ranks, " kv_blocks=", s.kv_blocks,
      " next_group_percent=", s.next_group_percent,
      " batch_tokens=", s.batch_tokens, " plans_in_flight=", s.plans_in_flight,
      " clients=", o.clients, " mean_gap_ms=", o.mean_gap / kMillisecond,
      " max_prompt=", o.max_prompt, " max_output=", o.max_output,
      " tenants=", s.router.tenants.size(), " greedy_percent=", o.greedy_percent,
      " tenants_differ=", o.tenants_differ, " giant_blocks=", o.giant_blocks,
      " long_percent=", o.long_percent, " guaranteed_percent=", o.guaranteed_percent,
      " queue_entries=", s.router.queue_entries, " queue_bytes=", s.router.queue_bytes,
      " max_delay_ms=", s.max_delay / kMillisecond, " max_requests=", s.max_requests,
      " faults=", ToString(s.faults), " bug=", static_cast<int>(o.bug));
}

}  // namespace kvern::sim
