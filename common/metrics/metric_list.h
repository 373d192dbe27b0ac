#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/time_histogram.h"

namespace nereus {

// Metrics of a process at one moment, in Prometheus' text format. Metrics of
// one name must be added one after the other. Names are in base units, and
// those of counters end in "_total".
class MetricList {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Add a value that can shrink (AddGauge), or only grows (AddCounter). `help`:
  // a sentence without a full stop; the same for all metrics of a name.
  void AddGauge(const std::string& name, const std::string& help, double value,
                const Labels& labels = {});
  void AddCounter(const std::string& name, const std::string& help,
                  double value, const Labels& labels = {});
  // Adds a histogram of times in seconds.
  void AddHistogram(const std::string& name, const std::string& help,
                    const TimeHistogram& times, const Labels& labels = {});
  // Adds all metrics of another list.
  void Append(const MetricList& other);

  // Returns the text, version 0.0.4 of the format.
  std::string ToText() const;

  // Content-Type of ToText.
  static constexpr char kType[] = "text/plain; version=0.0.4; charset=utf-8";

 private:
  // Returns a new metric of the family `name`.
  prometheus::ClientMetric& Add(const std::string& name,
                                const std::string& help,
                                prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace nereus
