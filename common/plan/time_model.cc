#include "common/plan/time_model.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/plan/compute_times.h"

namespace nereus {

absl::Status TimeModel::Validate(absl::Span<const LayerSpec> layers) const {
  if (times.size() != layers.size()) {
    return InvalidArgumentError("times has ", times.size(),
                                " layers, the model ", layers.size());
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [pass, time] :
         {std::pair{"forward", times[i].forward},
          std::pair{"backward", times[i].backward}}) {
      if (time >= absl::ZeroDuration() && time <= kComputeTimeMax) continue;
      return InvalidArgumentError("the ", pass, " pass of layer ", i,
                                  " computes for ", absl::FormatDuration(time),
                                  ", must be from 0 to ",
                                  absl::FormatDuration(kComputeTimeMax));
    }
  }
  if (!(share > 0 && share <= 1)) {
    return InvalidArgumentError("share is ", share,
                                ", must be above 0 and at most 1");
  }
  NEREUS_TRY(CheckMemoryRate(memory_rate));
  return link.Validate();
}

// The negated comparison also refuses NaN.
absl::Status CheckMemoryRate(double rate) {
  if (rate >= 1) return absl::OkStatus();
  return InvalidArgumentError("memory_rate is ", rate,
                              " bytes/s, must be at least 1");
}

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
