#include "common/metrics/metric_list.h"

#include <prometheus/text_serializer.h>

#include <cstdint>
#include <limits>
#include <sstream>

#include "absl/time/time.h"

namespace nereus {

prometheus::ClientMetric& MetricList::Add(const std::string& name,
                                          const std::string& help,
                                          prometheus::MetricType type,
                                          const Labels& labels) {
  if (families_.empty() || families_.back().name != name) {
    families_.push_back({name, help, type, {}});
  }
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  for (const auto& [label, value] : labels) {
    metric.label.push_back({label, value});
  }
  return metric;
}

void MetricList::AddGauge(const std::string& name, const std::string& help,
                          double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricList::AddCounter(const std::string& name, const std::string& help,
                            double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels).counter.value =
      value;
}

void MetricList::AddHistogram(const std::string& name, const std::string& help,
                              const TimeHistogram& times,
                              const Labels& labels) {
  auto& histogram =
      Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  // In this format each range has the counts of those below it, too.
  uint64_t count = 0;
  for (size_t i = 0; i < times.counts().size(); ++i) {
    count += times.counts()[i];
    const double bound = i < TimeHistogram::kBounds.size()
                             ? TimeHistogram::kBounds[i]
                             : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back({count, bound});
  }
  histogram.sample_count = count;
  histogram.sample_sum = absl::ToDoubleSeconds(times.sum());
}

void MetricList::Append(const MetricList& other) {
  families_.insert(families_.end(), other.families_.begin(),
                   other.families_.end());
}

std::string MetricList::ToText() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families_);
  return text.str();
}

}  // namespace nereus
