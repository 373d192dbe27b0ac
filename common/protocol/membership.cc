#include "common/protocol/membership.h"

namespace nereus {

absl::string_view JobStateName(JobState state) {
  switch (state) {
    case JobState::kGathering:
      return "gathering";
    case JobState::kRunning:
      return "running";
    case JobState::kFinished:
      return "finished";
    case JobState::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace nereus
