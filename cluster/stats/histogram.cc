#include "cluster/stats/histogram.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cluster/base/check.h"

namespace kvern {

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  KVERN_CHECK(!bounds_.empty());
  KVERN_CHECK(std::adjacent_find(bounds_.begin(), bounds_.end(), std::greater_equal<>()) ==
              bounds_.end())
      << "bounds ascend";
}

Histogram Histogram::OfSeconds() {
  return Histogram({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
                    25.0, 50.0, 100.0, 250.0});
}

void Histogram::Observe(double value) {
  if (std::isnan(value)) return;
  auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  ++count_;
  sum_ += value;
}

}  // namespace kvern
