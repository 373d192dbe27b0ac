#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"

namespace nereus {

// A job that was over when its coordinator was started again.
struct PastJob {
  uint64_t id = 0;
  JobState state = JobState::kFinished;
  std::string reason;
  int64_t saved_round = kInitialRound;
};

struct CoordinatorOptions {
  JobSpec spec;
  uint64_t job_id = 0;  // Unlike any other run's; drawn by the driver.
  // Its members may not have heard its end yet.
  std::optional<PastJob> past_job;

  // The shard whose process is the coordinator's too; -1: the coordinator is a
  // process of its own. It is never the one to go where two servers cannot
  // keep a connection.
  int own_shard = -1;

  // Settings that servers must have too, if they say what they have.
  std::vector<Setting> server_settings;

  // There is a folder for checkpoints; shards must have it too.
  bool has_checkpoints = false;
  // Where the job goes on from, instead of the first worker's parameters.
  std::optional<CheckpointRecord> restored;
  std::vector<LayerSpec> restored_layers;  // Its model.
  int32_t restored_state_arrays = 0;       // Of each layer's optimizer state.

  // How often, at most, what workers measure leads to a look at the plan.
  absl::Duration replan_interval = absl::Seconds(10);

  // The lease of a member whose session has ended: a process that is gone is
  // noticed at once, one that only lost its connection is back by then.
  absl::Duration reconnect_grace = absl::Seconds(1);

  // How often those who wait hear for whom.
  absl::Duration waiting_notice_interval = absl::Seconds(3);

  // How long a member may be silent before the job counts it as dead.
  absl::Duration lease() const { return absl::Seconds(spec.lease_seconds); }

  absl::Status Validate() const;
};

// What members say of themselves comes over the network. OK, or
// kInvalidArgument that names the field and its value.
absl::Status CheckName(absl::string_view what, const std::string& text);
// The same for texts that may be empty or have spaces.
absl::Status CheckText(absl::string_view what, const std::string& text);
absl::Status CheckStep(absl::string_view what, int64_t step);
absl::Status CheckReport(const MachineReport& report);
// `job`: null before it runs.
absl::Status CheckHeartbeat(const Heartbeat& heartbeat, const Job* job);

// OK if all of our settings that they have too are the same, and they lack
// none of them. Errors: kFailedPrecondition, with the name and both values.
absl::Status CompareSettings(absl::string_view our_name,
                             const std::vector<Setting>& ours,
                             absl::string_view their_name,
                             const std::vector<Setting>& theirs);

}  // namespace nereus
