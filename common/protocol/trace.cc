#include "common/protocol/trace.h"

#include <algorithm>

namespace nereus {

absl::Time OnCoordinatorClock(absl::Time time,
                              const std::vector<ClockSample>& clock) {
  if (clock.empty()) return time;
  const ClockSample& first = clock.front();
  const ClockSample& last = clock.back();
  const absl::Duration between = last.at - first.at;
  if (between <= absl::ZeroDuration()) return time + first.offset;
  const double share =
      std::clamp(absl::FDivDuration(time - first.at, between), 0.0, 1.0);
  return time + first.offset + (last.offset - first.offset) * share;
}

}  // namespace nereus
