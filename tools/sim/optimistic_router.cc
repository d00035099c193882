#include "tools/sim/optimistic_router.h"

#include <algorithm>

#include "router/core/forecast.h"

namespace kvern::sim {
namespace {

router::ForecastItem ItemOf(const router::Request& request) {
  router::ForecastItem item;
  item.tokens = request.prompt_tokens + uint64_t{request.Produced()} * request.n;
  item.growth = static_cast<uint32_t>(
      std::count_if(request.choices.begin(), request.choices.end(),
                    [](const router::Choice& choice) { return !choice.worker_done; }));
  item.remaining = request.answered || item.growth == 0 ? 0 : 1;
  return item;
}

}  // namespace

bool OptimisticRouter::Fits(router::Group& group, const router::Request& request) const {
  if (group.running.size() >= admission_.max_running) return false;
  if (admission_.step_budget && !PrefillRoom(group, request.prompt_tokens)) return false;
  if (group.running.empty()) return true;  // alone it can use all there is
  router::Forecast now;
  for (const router::Request* running : group.running) now.Add(ItemOf(*running));
  now.Settle();
  router::PoolBlocks limit = group.ledger->total().Percent(100 - watermark_percent_);
  router::PoolBlocks held = now.PeakWith({request.prompt_tokens, 1, request.n});
  return held.Within(limit);
}

}  // namespace kvern::sim
