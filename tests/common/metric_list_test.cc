#include "common/metrics/metric_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(MetricListTest, AHistogramCountsWhatIsAtOrBelowEachBound) {
  TimeHistogram times;
  times.Add(absl::ZeroDuration());
  times.Add(absl::Milliseconds(3));
  times.Add(absl::Microseconds(3001));
  times.Add(absl::Hours(1));
  EXPECT_EQ(times.count(), 4);
  MetricList metrics;
  metrics.AddHistogram("steps_seconds", "Times", times);
  EXPECT_THAT(metrics.ToText(),
              AllOf(HasSubstr("# TYPE steps_seconds histogram\n"),
                    HasSubstr("steps_seconds_bucket{le=\"0.001\"} 1\n"),
                    HasSubstr("steps_seconds_bucket{le=\"0.003\"} 2\n"),
                    HasSubstr("steps_seconds_bucket{le=\"0.01\"} 3\n"),
                    HasSubstr("steps_seconds_bucket{le=\"300\"} 3\n"),
                    HasSubstr("steps_seconds_bucket{le=\"+Inf\"} 4\n"),
                    HasSubstr("steps_seconds_count 4\n"),
                    HasSubstr("steps_seconds_sum 3600.006")));
}

TEST(MetricListTest, AnotherListComesAfterTheOwnMetrics) {
  MetricList one;
  one.AddGauge("a", "A", 1);
  MetricList other;
  other.AddCounter("b_total", "B", 2, {{"kind", "x"}});
  one.Append(other);
  EXPECT_THAT(one.ToText(), StartsWith("# HELP a A\n"));
  EXPECT_THAT(one.ToText(), HasSubstr("\nb_total{kind=\"x\"} 2\n"));
}

}  // namespace
}  // namespace nereus
