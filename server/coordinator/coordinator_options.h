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
  std::string reason;
  int64_t saved_round = kInitialRound;
};

// Options of a coordinator. A default is good for every job, except for `spec`
// and `job_id`.
struct CoordinatorOptions {
  JobSpec spec;         // Job as its flags describe it.
  uint64_t job_id = 0;  // Number that no other run has; the driver draws it.
  // Job that this coordinator led before; its members may not know of its end.
  std::optional<PastJob> past_job;

  // Number of the shard in the coordinator's own process; -1: the coordinator
  // is a process of its own. If two servers cannot keep a connection, the other
  // server has to go.
  int own_shard = -1;

  // Settings that a server must share, if its JoinRequest has any.
  std::vector<Setting> server_settings;

  // True if there is a folder for checkpoints; shards must have it too.
  bool has_checkpoints = false;
  // Checkpoint that the job goes on from, instead of the first worker's
  // parameters.
  std::optional<CheckpointRecord> start_checkpoint;
  std::vector<LayerSpec> restored_layers;  // Model of that checkpoint.
  // Number of arrays of optimizer state in that checkpoint.
  int32_t restored_state_arrays = 0;

  // Least time between two searches for a better plan after measurements.
  absl::Duration replan_interval = absl::Seconds(10);

  // Lease of a member without a session. It is short: a process that has died
  // is noticed at once, and a process that has lost only its connection is back
  // within this time.
  absl::Duration reconnect_grace = absl::Seconds(1);

  // Time between two notices to a waiting member about the missing members.
  absl::Duration waiting_notice_interval = absl::Seconds(3);

  // Time that a member may be silent before it counts as dead.
  absl::Duration lease() const { return absl::Seconds(spec.lease_seconds); }

  // Errors: kInvalidArgument, with the option and its value.
  absl::Status Validate() const;
};

// Checks of the values in messages of members, which come over the network.
// Errors: kInvalidArgument, with the field and its value.

// Checks a text of 1 to 256 printable characters without spaces.
absl::Status CheckName(absl::string_view what, const std::string& text);
// Checks a text that may be empty and may have spaces.
absl::Status CheckText(absl::string_view what, const std::string& text);
absl::Status CheckStep(absl::string_view what, int64_t step);
absl::Status CheckReport(const MachineReport& report);
// `job`: null before it runs.
absl::Status CheckHeartbeat(const Heartbeat& heartbeat, const Job* job);

// Checks that two members have the same settings with the same values. Errors:
// kFailedPrecondition, with the setting and both values.
absl::Status CompareSettings(absl::string_view our_name,
                             const std::vector<Setting>& ours,
                             absl::string_view their_name,
                             const std::vector<Setting>& theirs);

}  // namespace nereus
