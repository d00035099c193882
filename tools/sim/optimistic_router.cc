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

router::Hold OptimisticRouter::RoomHold(router::Group& group,
                                        const router::Request& request) const {
  using router::Hold, router::Why;
  if (group.running.size() >= admission_.max_running) {
    return {Why::kRunning, group.running.size(), admission_.max_running};
  }
  if (admission_.step_budget) {
    if (Hold hold = PrefillHold(group, request.prompt_tokens); !hold.none()) return hold;
  }
  if (group.running.empty()) return {};  // alone it can use all there is
  router::Forecast now;
  for (const router::Request* running : group.running) now.Add(ItemOf(*running));
  now.Settle();
  router::PoolBlocks limit = group.ledger->total().Percent(100 - watermark_percent_);
  router::PoolBlocks held = now.PeakWith({request.prompt_tokens, 1, request.n});
  return held.Within(limit) ? Hold() : Hold{Why::kPeak, held.tokens_pool(), limit.tokens_pool()};
}

}  // namespace kvern::sim
