#include "common/protocol/membership.h"

#include "common/base/names.h"

namespace nereus {
namespace {

constexpr Named<JobState> kNames[] = {{JobState::kWaiting, "waiting"},
                                      {JobState::kRunning, "running"},
                                      {JobState::kFinished, "finished"},
                                      {JobState::kFailed, "failed"}};

}  // namespace

absl::string_view JobStateName(JobState state) { return NameOf<kNames>(state); }

}  // namespace nereus
