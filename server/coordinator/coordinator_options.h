#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"

namespace nereus {

// Job that was over when its coordinator was started again.
struct PastJob {
  uint64_t id = 0;
  JobState state = JobState::kFinished;
  std::string reason;                   // Reason why the job failed, or "".
  int64_t saved_round = kInitialRound;  // Round of its newest checkpoint.
};

// Options of a coordinator. `spec` and `job_id` must be set. The defaults of
// the other fields fit a job without checkpoints whose coordinator is a process
// of its own.
struct CoordinatorOptions {
  JobSpec spec;         // Job as its flags describe it.
  uint64_t job_id = 0;  // Number that no other run has; the driver draws it.
  // Job that the coordinator led before it was restarted, and that is over.
  // Members of that job may not know this yet: if they resume, they are told.
  std::optional<PastJob> past_job;

  // Number of the shard in the coordinator's own process; -1: the coordinator
  // is a process of its own. If this server and another member cannot keep a
  // connection, the coordinator drops the other member.
  int own_shard = -1;

  // Settings of every server. The coordinator refuses a server whose
  // JoinRequest has other settings or other values.
  std::vector<Setting> server_settings;

  // True if there is a folder for checkpoints; servers must have one too.
  bool has_checkpoints = false;
  // Checkpoint that the job goes on from, instead of the first worker's
  // parameters.
  std::optional<CheckpointRecord> start_checkpoint;
  std::vector<LayerSpec> restored_layers;  // Model of that checkpoint.
  // Number of arrays of optimizer state in that checkpoint.
  int32_t restored_state_arrays = 0;
  // Settings of the workers that made it; empty if unknown.
  std::vector<Setting> restored_settings;

  // Least time between two searches for a better plan that follow measurements
  // of workers (Replanner).
  absl::Duration replan_interval = absl::Seconds(10);

  // Time that a member has to resume after the end of its session. A member
  // that does not resume in this time counts as dead. The time is short: the
  // session of a dead process ends at once, and a process that has lost only
  // its connection resumes within this time.
  absl::Duration reconnect_grace = absl::Seconds(1);

  // Number of times that the cost of newcomers must pass before the next one is
  // admitted (JoinBrake). With 20, processes that join and crash in a loop stop
  // the steps of the others for at most 1/20 of the time. 0: newcomers are
  // never held up.
  int join_share = 20;

  // Time between two notices that tell a waiting member what the job waits for.
  absl::Duration waiting_notice_interval = absl::Seconds(3);

  // Time that a member may be silent before it counts as dead.
  absl::Duration lease() const { return absl::Seconds(spec.lease_seconds); }

  // Returns start_checkpoint for a job whose workers have these layers. If the
  // checkpoint was made with another batch size (LayerSpec::rows), converts its
  // number of contributions to the new size, and rounds it down. So the job
  // goes on at the same example, or less than a batch before it. REQUIRES:
  // start_checkpoint.has_value().
  CheckpointRecord StartFor(absl::Span<const LayerSpec> layers) const;

  // Returns a warning that names the settings of the workers that differ from
  // those with which start_checkpoint was made; "" if none does.
  std::string DescribeOtherSettings(const std::vector<Setting>& settings) const;

  // Errors: kInvalidArgument, with the option.
  absl::Status Validate() const;
};

// Returns the number of contributions that a job with the layers `layers` needs
// for as many examples as `contributions` of a job with the layers `made_with`,
// rounded down. The two numbers differ if the batches do (LayerSpec::rows).
int64_t ConvertContributions(int64_t contributions,
                             absl::Span<const LayerSpec> made_with,
                             absl::Span<const LayerSpec> layers);

// The following functions check values in messages of members. These come over
// the network, so they may have any value. Errors: kInvalidArgument, with the
// field and its value.

// Checks a text of 1 to 256 printable characters without spaces.
absl::Status CheckName(absl::string_view what, const std::string& text);
// Checks a text of at most 256 printable characters; it may have spaces.
absl::Status CheckText(absl::string_view what, const std::string& text);
// Checks a step or round: from kInitialRound to kStepMax.
absl::Status CheckStep(absl::string_view what, int64_t step);
absl::Status CheckReport(const MachineReport& report);
// `job`: null before the job runs.
absl::Status CheckHeartbeat(const Heartbeat& heartbeat, const Job* job);

// Checks that two processes have the same settings with the same values. The
// error names them `our_name` and `their_name`. Errors: kFailedPrecondition,
// with the setting and both values.
absl::Status CompareSettings(absl::string_view our_name,
                             const std::vector<Setting>& ours,
                             absl::string_view their_name,
                             const std::vector<Setting>& theirs);

}  // namespace nereus
