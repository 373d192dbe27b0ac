#include "common/plan/link_speed.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/plan/compute_times.h"

namespace nereus {

absl::Status LinkSpeed::Validate() const {
  // The negated comparison also refuses NaN.
  if (!(rate > 0)) {
    return InvalidArgumentError("rate is ", rate, ", must be above 0");
  }
  for (const auto& [name, value] : {std::pair{"latency", latency},
                                    std::pair{"message_time", message_time}}) {
    if (value >= absl::ZeroDuration() && value <= kComputeTimeMax) continue;
    return InvalidArgumentError(name, " is ", absl::FormatDuration(value),
                                ", must be from 0 to ",
                                absl::FormatDuration(kComputeTimeMax));
  }
  return absl::OkStatus();
}

LinkSpeed SlowerOf(const LinkSpeed& a, const LinkSpeed& b) {
  return {std::min(a.rate, b.rate), std::max(a.latency, b.latency),
          std::max(a.message_time, b.message_time)};
}

}  // namespace nereus
