#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/base/log_repeats.h"
#include "common/protocol/job_over.h"
#include "common/protocol/job_status.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Log of the coordinator's decisions. Keeps the last kStatusEventsMax lines for
// the status.
class JobLog {
 public:
  // Writes a line. Leaves out refusals that say the same again and again.
  void Write(const Announce& line);
  // Writes a line if the job's state has changed.
  void WriteState(JobState state, const std::string& reason);

  // The last lines, the newest last.
  std::vector<JobStatus::Event> events() const {
    return {events_.begin(), events_.end()};
  }

 private:
  LogRepeats refusals_;                  // Lines about refusals.
  JobState state_ = JobState::kWaiting;  // State in the last line about it.
  std::deque<JobStatus::Event> events_;
};

}  // namespace nereus
