#include "common/protocol/job_over.h"

#include "common/base/names.h"
#include "common/base/status.h"

namespace nereus {
namespace {

constexpr Named<JobState> kNames[] = {
    {JobState::kWaiting, "waiting"},   {JobState::kRunning, "running"},
    {JobState::kFinished, "finished"}, {JobState::kFailed, "failed"},
    {JobState::kStopped, "stopped"},   {JobState::kLost, "lost"}};

}  // namespace

absl::string_view JobStateName(JobState state) { return NameOf<kNames>(state); }

absl::Status OutcomeOf(const JobOver& over) {
  if (over.state == JobState::kFinished) return absl::OkStatus();
  if (over.state == JobState::kStopped) return DataLossError(over.reason);
  const absl::Status failed = AbortedError("the job failed: ", over.reason);
  return over.state == JobState::kFailed ? failed
                                         : DataLossError(failed.message());
}

}  // namespace nereus
