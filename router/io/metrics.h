// What the router shows of itself: a snapshot, and the page of metrics made from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cluster/stats/histogram.h"
#include "router/core/router.h"
#include "schemas/codec.h"

namespace kvern {

// Messages that were refused on one socket, by reason.
struct BadMessages {
  static constexpr size_t kReasons = static_cast<size_t>(DecodeFailure::kOutOfRange) + 1;
  std::array<uint64_t, kReasons> by_failure{};
  uint64_t frames = 0;  // had another number of frames than a message has
};

// Distributions over all finished requests since the router started.
struct RouterDistributions {
  Histogram ttft = Histogram::OfSeconds();
  Histogram tpot = Histogram::OfSeconds();
  Histogram queue = Histogram::OfSeconds();
  Histogram cancel_to_free = Histogram::OfSeconds();

  void Observe(const RouterCounters& counters);
};

// A copy that any thread may read.
struct StatusSnapshot {
  std::string model;
  RouterStatus status;
  CapacityReply capacity;
  RouterDistributions distributions;
  BadMessages client_messages;
  BadMessages worker_messages;
};

// Prometheus' text format. Names begin with vllm: only where the meaning is vLLM's.
std::string MetricsPage(const StatusSnapshot& snapshot);

}  // namespace kvern
