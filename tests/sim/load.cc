// What the simulated world does to the service: requests and faults.
#include <cmath>

#include "tests/sim/simulation.h"

namespace kvern::sim {

void Simulation::AddClient() {
  clients_.push_back(std::make_unique<SimClient>(this, NewPeer(), load_rng_.Next()));
  clients_.back()->Start();
}

SimClient& Simulation::AnyClient() { return *clients_[fault_rng_.Below(clients_.size())]; }

void Simulation::ScheduleLoad() {
  // Exponential gaps: a Poisson stream, with a burst now and then.
  double uniform = UnitInterval(load_rng_.Next());
  auto gap = static_cast<Duration>(-std::log(uniform) * static_cast<double>(options_.mean_gap));
  After(gap, [this] {
    if (!faults_on_) return;
    for (int64_t n = load_rng_.Chance(1, 30) ? 8 : 1; n > 0; --n) Ask();
    ScheduleLoad();
  });
}

void Simulation::Ask() { clients_[load_rng_.Below(clients_.size())]->Ask(); }

void Simulation::ScheduleFaults() {
  auto at_random = [this](uint32_t times, std::function<void()> fault) {
    for (uint32_t i = 0; i < times; ++i) After(fault_rng_.Between(0, options_.duration), fault);
  };
  at_random(options_.group_deaths, [this] {
    bool told = fault_rng_.Chance(3, 4);
    AnyGroup().Kill(told, fault_rng_.Between(1, 2000) * kMillisecond);
  });
  at_random(options_.group_pauses,
            [this] { AnyGroup().Pause(fault_rng_.Between(10, 3000) * kMillisecond); });
  at_random(options_.group_lies, [this] { AnyGroup().LieOnce(); });
  at_random(options_.client_deaths, [this] {
    SimClient& client = AnyClient();
    if (!client.alive()) return;
    client.Die();
    After(fault_rng_.Between(1, 500) * kMillisecond, [this] { AddClient(); });
  });
  at_random(options_.client_pauses,
            [this] { AnyClient().Pause(fault_rng_.Between(10, 6000) * kMillisecond); });
}

}  // namespace kvern::sim
