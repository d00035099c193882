#include "cluster/stats/metrics_text.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>

namespace kvern {

struct MetricsText::Families {
  std::vector<prometheus::MetricFamily> list;

  prometheus::ClientMetric& Add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const MetricLabels& labels) {
    // A page has a few dozen names, and samples of one name come together.
    prometheus::MetricFamily* family = nullptr;
    for (auto it = list.rbegin(); it != list.rend() && family == nullptr; ++it) {
      if (it->name == name) family = &*it;
    }
    if (family == nullptr) {
      family = &list.emplace_back();
      family->name = name;
      family->help = help;
      family->type = type;
    }
    prometheus::ClientMetric& metric = family->metric.emplace_back();
    for (const auto& [label, value] : labels) metric.label.push_back({label, value});
    return metric;
  }
};

MetricsText::MetricsText() : families_(std::make_unique<Families>()) {}
MetricsText::~MetricsText() = default;

void MetricsText::Counter(const std::string& name, const std::string& help,
                          const MetricLabels& labels, double value) {
  families_->Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricsText::Gauge(const std::string& name, const std::string& help,
                        const MetricLabels& labels, double value) {
  families_->Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricsText::Distribution(const std::string& name, const std::string& help,
                               const MetricLabels& labels, const Histogram& histogram) {
  auto& metric = families_->Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  metric.sample_count = histogram.count();
  metric.sample_sum = histogram.sum();
  uint64_t cumulative = 0;
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    cumulative += histogram.counts()[i];
    bool last = i == histogram.bounds().size();
    double bound = last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i];
    metric.bucket.push_back({cumulative, bound});
  }
}

std::string MetricsText::Serialize() const {
  return prometheus::TextSerializer().Serialize(families_->list);
}

}  // namespace kvern
