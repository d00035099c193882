#include "tests/sim/swarm_workload.h"

#include <cmath>

namespace kvern::sim {
namespace {

constexpr uint32_t kBurst = 8;
constexpr uint32_t kShorter = 8;

}  // namespace

SwarmWorkload::SwarmWorkload(const SwarmOptions& options)
    : options_(options), rng_(Rng(options.sim.seed).Fork(2)) {
  for (const TenantConfig& tenant : options.sim.router.tenants) {
    tenants_.push_back(tenant.name);
    ceilings_.push_back(tenant.priority_ceiling);
  }
  for (uint32_t i = 0; i < options.clients; ++i) {
    clients_.push_back(i % static_cast<uint32_t>(tenants_.size()));
  }
}

std::optional<Ask> SwarmWorkload::Next() {
  if (burst_ > 0) {
    --burst_;
  } else {
    // Exponential gaps: a Poisson stream.
    double uniform = UnitInterval(rng_.Next());
    now_ += static_cast<Duration>(-std::log(uniform) * static_cast<double>(options_.mean_gap));
    if (rng_.Chance(1, 30)) burst_ = kBurst - 1;
  }
  Ask ask;
  ask.at = now_;
  ask.client = static_cast<uint32_t>(rng_.Below(clients_.size()));
  if (options_.greedy_percent > 0 && rng_.Chance(options_.greedy_percent, 100)) ask.client = 0;
  GenerateRequest& request = ask.request;
  DrawInput(clients_[ask.client], request);
  DrawStops(request);
  if (rng_.Chance(3, 4)) request.seed = rng_.Next();
  request.service_class = rng_.Chance(options_.guaranteed_percent, 100) ? ServiceClass::kGuaranteed
                                                                        : ServiceClass::kStandard;
  request.priority = static_cast<int32_t>(rng_.Between(0, ceilings_[clients_[ask.client]]));
  if (rng_.Chance(1, 6)) request.sampling.logprobs = static_cast<uint32_t>(rng_.Below(4));
  if (rng_.Chance(1, 3)) {
    request.ttft_deadline_ms = static_cast<uint32_t>(rng_.Between(1, 2000));
  }
  return ask;
}

void SwarmWorkload::DrawInput(uint32_t tenant, GenerateRequest& request) {
  if (options_.giant_blocks > 0) {
    uint32_t blocks = options_.giant_blocks;
    return DrawSized(tenant == 1 ? blocks : blocks / 4, request);
  }
  if (options_.long_percent > 0 && rng_.Chance(options_.long_percent, 100)) {
    DrawIds(kMinBytesInPlace / sizeof(uint32_t) + rng_.Below(40), request);
    request.max_tokens = static_cast<uint32_t>(rng_.Between(1, 20));
    return;
  }
  uint32_t max_prompt = options_.max_prompt;
  uint32_t max_output = options_.max_output;
  if (options_.tenants_differ) {
    uint32_t& shorter = tenant == 0 ? max_output : max_prompt;
    shorter = shorter / kShorter + 1;
  }
  auto prompt = static_cast<size_t>(rng_.Between(1, max_prompt));
  if (rng_.Chance(1, 2)) {
    DrawIds(prompt, request);
  } else {
    std::string text(prompt, static_cast<char>('a' + rng_.Below(26)));
    if (rng_.Chance(1, 2)) {
      request.prompt = text;
    } else {
      request.messages = {{"user", text}};
    }
  }
  if (rng_.Chance(1, 20)) {  // more than the model, and perhaps more than a group, can hold
    request.max_tokens = static_cast<uint32_t>(rng_.Between(80, 200));
  } else if (rng_.Chance(9, 10)) {
    request.max_tokens = static_cast<uint32_t>(rng_.Between(1, max_output));
  }
}

// Needs just the blocks that are said, or fewer.
void SwarmWorkload::DrawSized(uint32_t blocks, GenerateRequest& request) {
  auto tokens = static_cast<int64_t>(blocks * kBlockSize);
  int64_t prompt = rng_.Between(1, tokens / 4);
  request.max_tokens = static_cast<uint32_t>(tokens - prompt);
  DrawIds(static_cast<size_t>(prompt), request);
}

void SwarmWorkload::DrawIds(size_t count, GenerateRequest& request) {
  auto id = static_cast<uint32_t>(rng_.Below(options_.sim.model.vocab));
  request.prompt_token_ids = std::vector<uint32_t>(count, id);
}

void SwarmWorkload::DrawStops(GenerateRequest& request) {
  SamplingParams& sampling = request.sampling;
  sampling.ignore_eos = rng_.Chance(1, 2);
  if (rng_.Chance(1, 4)) {
    sampling.stop_token_ids = {static_cast<uint32_t>(rng_.Below(options_.sim.model.vocab))};
  }
  if (!rng_.Chance(1, 4)) return;
  for (int i = 0; i < 2; ++i) {
    std::string stop;
    for (int64_t k = rng_.Between(1, 3); k > 0; --k) {
      stop += static_cast<char>('a' + rng_.Below(26));
    }
    request.stop.push_back(stop);
  }
}

}  // namespace kvern::sim
