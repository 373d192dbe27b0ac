#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// What is known when every live member of an epoch has reported.
struct EpochChange {
  // A worker of the old epoch that lives.
  struct Worker {
    int32_t rank = 0;
    bool leaves = false;
    MachineReport report;
  };
  // A server that lives.
  struct Server {
    int32_t rank = 0;
    bool joins = false;  // It has nothing yet.
    MachineReport report;
  };
  std::vector<Worker> workers;           // By rank.
  std::vector<Server> servers;           // The same.
  std::vector<int32_t> current_backups;  // Shards whose copies became whole.
  std::vector<int32_t> joiners;          // Ranks of those who come, ascending.
  bool checkpoint = false;               // One is to be made as soon as it can.
  std::optional<int64_t> fusion_bytes = {};  // What tuning has come to.
  // A better plan: the next one, if nothing is under way; otherwise the next
  // epoch's steps end so that it can be.
  std::optional<std::vector<Route>> routes = {};  // By layer of the model.
  // Names of all workers, by rank.
  std::map<int32_t, std::string> worker_names = {};
};

// Who holds each shard next. Its copy takes over from a server that is gone,
// and gives it back when the server is there again and has become the copy.
//
// Errors: kAborted, a shard is gone, with what it held.
absl::StatusOr<std::vector<ShardServers>> NextHolders(
    const Job& job, const EpochChange& change);

// The epoch after `job`: who takes part from which step on, and who holds what
// others lack. Every worker that lives keeps its steps; those who come start
// with the step that none has begun.
//
// Some start `afresh`, whatever they have: all, with what the shards or one who
// leaves have, if nobody goes on who has the values of a step; otherwise those
// who were given a round's values by one that has died, while nobody has its
// factors for those who have not finished it. They do it again, without the
// dead.
//
// Errors: kAborted, what only workers had is lost with them, and the job cannot
// go on.
//
// With another plan the shards have all layers as of its last round, which
// becomes the job's base: who updates a layer from now on, and did not before,
// gets its state there.
struct NextEpoch {
  JobPtr job;
  std::vector<int32_t> workers_from_base;  // Ranks of workers of both epochs.
};
absl::StatusOr<NextEpoch> MakeNextEpoch(const Job& job, uint64_t epoch,
                                        const EpochChange& change);

// Where a job can go on from with nothing but the shards' files.
struct RestartPoint {
  int64_t round = kInitialRound;  // The shards have all layers as of it.
  int64_t contributions = 0;      // Up to and with its step.
};

// The same, from a checkpoint: everybody starts afresh, those who live and
// those who come. Errors: kInvalidArgument, no worker is there; kAborted, for
// some shard neither its server nor the next one is.
absl::StatusOr<NextEpoch> MakeRestartedEpoch(const Job& job, uint64_t epoch,
                                             const RestartPoint& point,
                                             const EpochChange& change);

}  // namespace nereus
