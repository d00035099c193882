// Builds one page of metrics in Prometheus' text format.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/stats/histogram.h"

namespace kvern {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Filled for one scrape and thrown away. A name's first use sets its type and help text; its
// samples must differ in their labels. Label values may hold anything.
class MetricsText {
 public:
  MetricsText();
  ~MetricsText();

  void Counter(const std::string& name, const std::string& help, const MetricLabels& labels,
               double value);
  void Gauge(const std::string& name, const std::string& help, const MetricLabels& labels,
             double value);
  void Distribution(const std::string& name, const std::string& help, const MetricLabels& labels,
                    const Histogram& histogram);

  std::string Serialize() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace kvern
