#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "absl/time/time.h"

namespace nereus {

// Counts durations in ranges from a millisecond to five minutes, for metrics.
// A value type; not thread-safe.
class TimeHistogram {
 public:
  // Upper bounds of the ranges, in seconds; a bound belongs to its range. The
  // last range, which has no upper bound, follows.
  static constexpr std::array<double, 12> kBounds = {
      0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};

  using Counts = std::array<int64_t, kBounds.size() + 1>;

  TimeHistogram() = default;
  // Restores a histogram from what counts() and sum() have returned.
  TimeHistogram(const Counts& counts, absl::Duration sum)
      : counts_(counts), sum_(sum) {}

  void Add(absl::Duration time) {
    const double seconds = absl::ToDoubleSeconds(time);
    const auto* const bound =
        std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    ++counts_[bound - kBounds.begin()];
    sum_ += time;
  }

  // Number of durations in each range.
  const Counts& counts() const { return counts_; }
  // Number of all durations.
  int64_t count() const {
    return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
  }
  // Sum of all durations.
  absl::Duration sum() const { return sum_; }

  bool operator==(const TimeHistogram&) const = default;

 private:
  Counts counts_ = {};
  absl::Duration sum_;
};

}  // namespace nereus
