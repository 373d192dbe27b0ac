#include "common/plan/time_model.h"

#include <utility>

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

}  // namespace nereus
