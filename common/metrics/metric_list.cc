#include "common/metrics/metric_list.h"

#include <prometheus/text_serializer.h>

#include <sstream>

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

std::string MetricList::ToText() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families_);
  return text.str();
}

}  // namespace nereus
