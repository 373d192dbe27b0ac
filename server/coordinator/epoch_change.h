#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"

namespace nereus {

// Facts from which the next epoch is made. They are complete once every live
// member of the old epoch has reported.
struct EpochChange {
  // Live worker of the old epoch.
  struct Worker {
    int32_t rank = 0;
    bool leaves = false;  // True if it is a leaver.
    MachineReport report;
  };
  // Live server.
  struct Server {
    int32_t rank = 0;
    bool joins = false;    // True if it joins: it has no values yet.
    MachineReport report;  // Empty if it joins.
  };
  std::vector<Worker> workers;  // Ranks ascend.
  std::vector<Server> servers;  // Any order.
  // Indexes of the shards with a backup that has become current in the old
  // epoch or was current before.
  std::vector<int32_t> current_backups;
  std::vector<int32_t> joiners;  // Ranks of joining workers, ascending.
  bool checkpoint = false;       // True if the epoch must make a checkpoint.
  // Threshold of fusion; empty if fusion is not tuned.
  std::optional<int64_t> fusion_bytes = {};
  // Another plan: routes by layer of the model, and the model, in which rows
  // may differ from the job's (LayerSpec::rows). If all members are ready to
  // switch, the next epoch has this plan. Otherwise it gets a switch round, if
  // Job::MaySwitchAfter allows one.
  struct NewPlan {
    std::vector<Route> routes;
    std::vector<LayerSpec> layers;  // Empty: the model stays as it is.
  };
  std::optional<NewPlan> plan = {};
  // True if the job has layers whose rows it waits for (Epochs::LearnsRows). An
  // epoch that follows the interrupted first switch, or a return to a
  // checkpoint, then gets a switch round, too.
  bool learns_rows = false;
  // Names of all workers, by rank.
  std::map<int32_t, std::string> worker_names = {};
  // Numbers of the hosts of all workers, by rank (EpochWorker::host). Workers
  // that are not in the map have hosts of their own.
  std::map<int32_t, int32_t> worker_hosts = {};
};

// Returns the primary and the backup of each shard in the next epoch. A current
// backup takes over from a primary that is gone. The server whose rank is the
// shard's index becomes the primary again once it is the current backup.
//
// Errors: kAborted, a shard has neither its primary nor a current backup.
absl::StatusOr<std::vector<ShardServers>> NextHolders(
    const Job& job, const EpochChange& change);

// Epoch that follows another one.
struct NextEpoch {
  JobPtr job;
  // Ranks of the workers of the old epoch that stay, but drop their values and
  // start with the values of the donor or of the shards.
  std::vector<int32_t> workers_from_base;
};

// Makes the epoch after `job`. Workers that keep their values keep their steps.
// Joining workers take part from JobHistory::first_step on. If a worker that
// stays has all values, this is the first step that no worker has begun. The
// .cc file describes the other cases.
//
// If no worker that stays has the values of all layers, all workers drop
// theirs, and start with the values of a worker that leaves, or of the shards.
// Otherwise single workers may have to drop their values: those that are ahead
// of other workers by a round which no live worker can pass on
// (MachineReport::PeerLayer::contributors is 0). The other workers could not
// finish this round, so all workers do it again.
//
// If the plan changes and the servers run the optimizer, the switch round
// becomes the base round. The shards have all layers and their optimizer state
// as of this round, for the members that update a layer from now on.
//
// Errors: kAborted, values are lost: those of a shard (NextHolders), or values
// that only workers had; kInvalidArgument, MakeJob refuses the job.
absl::StatusOr<NextEpoch> MakeNextEpoch(const Job& job, uint64_t epoch,
                                        const EpochChange& change);

// Makes the epoch after `job` from the checkpoint `point`: all members drop
// their values, and joining processes have none. Errors: kInvalidArgument,
// there is no worker; kAborted, a shard has neither the server of its rank nor,
// with backups, the server after it.
absl::StatusOr<NextEpoch> MakeRestartedEpoch(const Job& job, uint64_t epoch,
                                             const CheckpointRecord& point,
                                             const EpochChange& change);

}  // namespace nereus
