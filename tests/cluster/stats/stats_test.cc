#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cluster/stats/histogram.h"
#include "cluster/stats/metrics_text.h"

namespace kvern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HistogramTest, ABoundBelongsToItsBucket) {
  Histogram histogram({1, 2});
  for (double value : {0.5, 1.0, 1.5, 2.0, 2.5, 1e9}) histogram.Observe(value);
  histogram.Observe(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(histogram.counts(), ElementsAre(2, 2, 2));
  EXPECT_EQ(histogram.count(), 6u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 7.5 + 1e9);
}

TEST(HistogramTest, SecondsAscend) {
  Histogram histogram = Histogram::OfSeconds();
  EXPECT_LE(histogram.bounds().front(), 0.001);
  EXPECT_GE(histogram.bounds().back(), 100);
}

TEST(MetricsTextTest, ShowsEachKind) {
  MetricsText page;
  page.Gauge("kvern_kv_blocks", "KV blocks.", {{"group", "a"}, {"state", "used"}}, 3);
  page.Counter("kvern_requests_total", "Requests.", {{"outcome", "completed"}}, 7);
  page.Gauge("kvern_kv_blocks", "KV blocks.", {{"group", "b\"\n"}, {"state", "used"}}, 4);
  Histogram histogram({0.5});
  histogram.Observe(0.25);
  histogram.Observe(2);
  page.Distribution("kvern_wait_seconds", "Waits.", {}, histogram);
  std::string text = page.Serialize();
  EXPECT_THAT(text, HasSubstr("# TYPE kvern_kv_blocks gauge\n"
                              "kvern_kv_blocks{group=\"a\",state=\"used\"} 3\n"
                              "kvern_kv_blocks{group=\"b\\\"\\n\",state=\"used\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE kvern_requests_total counter\n"
                              "kvern_requests_total{outcome=\"completed\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("kvern_wait_seconds_count 2\nkvern_wait_seconds_sum 2.25\n"));
  EXPECT_THAT(text, HasSubstr("kvern_wait_seconds_bucket{le=\"0.5\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("kvern_wait_seconds_bucket{le=\"+Inf\"} 2\n"));
}

}  // namespace
}  // namespace kvern
