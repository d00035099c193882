// Optimistic admission as engines do it, to compare with: the router, with another rule of who may
// start. Its queue is that of the router, the same code: bounds, predicted wait, bands, tenants,
// backfill, deadlines.
#pragma once

#include <cstdint>

#include "router/core/router_impl.h"
#include "tools/sim/options.h"

namespace kvern::sim {

// For requests of the class standard: no memory is kept for the worst case of any.
class OptimisticRouter : public router::RouterImpl {
 public:
  OptimisticRouter(const RouterConfig& config, uint64_t seed, const TextFilterFactory* text,
                   const OptimisticAdmission& admission)
      : RouterImpl(config, seed, text),
        watermark_percent_(config.watermark_percent),
        admission_(admission) {}

 private:
  // The prompt, and what runs now with one token more each, stay below the watermark.
  router::Hold RoomHold(router::Group& group, const router::Request& request) const override;
  // No prediction keeps a request from starting.
  bool TooLate(const router::Group& /*group*/, router::Request& /*request*/) override {
    return false;
  }

  uint32_t watermark_percent_;
  OptimisticAdmission admission_;
};

}  // namespace kvern::sim
