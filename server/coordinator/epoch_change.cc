// Read in this order: MakeNextEpoch at the end, then its parts: which servers
// have each shard (NextHolders), which workers must drop their values
// (ForgetMisled), where the workers start (FindStart), which rounds some
// workers have finished and others have not (FindFinished), and whether the
// plan may change (AllAreReadyToSwitch, ChangePlan). MakeRestartedEpoch goes
// back to a checkpoint.
//
// FindStart takes the first of three starts that is possible:
//   1. If a worker that stays has all values, it is the donor, and all workers
//      that have values go on.
//   2. If a worker that leaves has all values, all others start with them.
//   3. Otherwise all workers start with the values of the shards. This is an
//      error if workers own a layer that may have changed since the base round.

#include "server/coordinator/epoch_change.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/protocol/verdicts.h"

namespace nereus {
namespace {

// Progress of one worker in one layer that goes without servers.
struct Progress {
  int32_t rank = 0;   // Rank of the worker.
  bool done = false;  // True if it has left and has done all of its rounds.
  MachineReport::PeerLayer layer;  // Report of the worker about the layer.
};

// Returns the progress of all workers that have values of the layer; empty if
// the layer uses the servers.
std::vector<Progress> ProgressOf(int layer, const EpochChange& change) {
  std::vector<Progress> progress;
  for (const EpochChange::Worker& worker : change.workers) {
    for (const auto& reported : worker.report.peer_layers) {
      if (reported.layer != layer) continue;
      const bool done =
          worker.leaves && reported.done_round >= worker.report.begun_step;
      progress.push_back({worker.rank, done, reported});
    }
  }
  return progress;
}

// Returns the workers that are ahead in a layer: they have finished the newest
// round that any worker has finished, and other workers still need this round.
// Returns none if no worker needs it.
std::vector<Progress> FindAhead(int layer, const EpochChange& change) {
  const std::vector<Progress> all = ProgressOf(layer, change);
  int64_t last = std::numeric_limits<int64_t>::min();
  for (const Progress& each : all) last = std::max(last, each.layer.done_round);
  std::vector<Progress> ahead;
  bool lacking = false;
  for (const Progress& each : all) {
    if (each.layer.done_round == last) ahead.push_back(each);
    lacking = lacking || (!each.done && each.layer.done_round < last);
  }
  return lacking ? ahead : std::vector<Progress>();
}

// Returns the round of a layer that some workers have finished and others need,
// with a worker that can pass it on, because it has the factors or the mean of
// the round. Returns nothing if there is no such round or worker.
std::optional<FinishedRound> FindFinished(int layer,
                                          const EpochChange& change) {
  for (const Progress& each : FindAhead(layer, change)) {
    if (each.layer.contributors == 0) continue;  // Cannot pass the round on.
    return FinishedRound{layer, each.layer.done_round, each.rank,
                         each.layer.contributors};
  }
  return std::nullopt;
}

// Returns the ranks of the workers that must drop their values: they have
// finished a round that other workers need, and no worker can pass this round
// on. Changes the reports of these workers as if they had no values yet.
std::set<int32_t> ForgetMisled(const Job& job, EpochChange& change) {
  std::set<int32_t> all;
  for (size_t index = 0; index < job.layers.size(); ++index) {
    const auto layer = static_cast<int>(index);
    if (FindFinished(layer, change).has_value()) continue;
    for (const Progress& each : FindAhead(layer, change)) all.insert(each.rank);
  }
  for (EpochChange::Worker& worker : change.workers) {
    if (!all.contains(worker.rank)) continue;
    worker.report.fetching = true;
    worker.report.peer_layers.clear();
  }
  return all;
}

// Returns the server of a rank, or null.
const EpochChange::Server* FindServer(const EpochChange& change, int rank) {
  for (const EpochChange::Server& server : change.servers) {
    if (server.rank == rank) return &server;
  }
  return nullptr;
}

// True if a server lives and has the values of its shards.
bool Lives(const EpochChange& change, int rank) {
  const EpochChange::Server* server = FindServer(change, rank);
  return server != nullptr && !server->joins;
}

// Returns the last round that is closed for all chunks of layers that use the
// servers, on the primaries of the next epoch. Returns nothing if no layer uses
// the servers, or if a shard has no primary (NextHolders).
std::optional<int64_t> ClosedRound(const Job& job, const EpochChange& change) {
  std::optional<int64_t> closed;
  const auto shard_servers = NextHolders(job, change);
  if (!shard_servers.ok()) return closed;
  for (int shard = 0; shard < job.shards(); ++shard) {
    const auto* server = FindServer(change, (*shard_servers)[shard].primary);
    const auto found = server->report.closed_rounds.find(shard);
    if (found == server->report.closed_rounds.end()) continue;
    closed = std::min(closed.value_or(found->second), found->second);
  }
  return closed;
}

// Returns a worker that stays and has the values of all layers, or null.
const EpochChange::Worker* FindDonor(const EpochChange& change) {
  for (const EpochChange::Worker& worker : change.workers) {
    if (!worker.report.fetching && !worker.leaves) return &worker;
  }
  return nullptr;
}

// Returns a worker that has left and has all layers as of its last step, or
// null. Returns null also if other workers may have gone on after this worker
// left, and died. They have not done so if layers use the servers and its last
// step is ClosedRound, or, without such layers, if it is still among the
// workers of `job`.
const EpochChange::Worker* FindLeaver(const Job& job,
                                      const EpochChange& change) {
  const std::optional<int64_t> closed = ClosedRound(job, change);
  for (const EpochChange::Worker& worker : change.workers) {
    const int64_t last = worker.report.begun_step;
    if (!worker.leaves || worker.report.fetching) continue;
    const bool done = absl::c_all_of(
        worker.report.peer_layers,
        [&](const auto& layer) { return layer.done_round == last; });
    const bool latest =
        closed.has_value() ? *closed == last : job.PositionOf(worker.rank) >= 0;
    if (done && latest) return &worker;
  }
  return nullptr;
}

// Returns the first step that no worker has begun.
int64_t FirstFreeStep(const Job& job, const EpochChange& change) {
  int64_t step = job.history.first_step;
  for (const EpochChange::Worker& worker : change.workers) {
    step = std::max(step, worker.report.begun_step + 1);
  }
  return step;
}

// Returns the first step of workers that start with the values of the shards:
// the first step whose round is open on some chunk. Other chunks may have
// closed this round already; they answer contributions to it with its result.
int64_t FirstOpenStep(const Job& job, const EpochChange& change) {
  const int64_t base = job.history.base_round;
  return std::max(ClosedRound(job, change).value_or(base), base) + 1;
}

// True if a live worker takes part in the round after the base round, but has
// not begun this round. Then no worker can have finished it.
bool AtBase(const Job& job, const EpochChange& change) {
  const int64_t base = job.history.base_round;
  return absl::c_any_of(change.workers, [&](const auto& worker) {
    const int position = job.PositionOf(worker.rank);
    return position >= 0 && worker.report.begun_step <= base &&
           job.workers[position].first_step == base + 1;
  });
}

// Returns an error if workers own a layer. FindStart calls this if no live
// worker has all values as of the job's last step, and if worker-owned layers
// may have changed since the base round.
absl::Status CheckOwned(const Job& job) {
  for (size_t layer = 0; layer < job.layers.size(); ++layer) {
    if (!job.WorkersOwn(static_cast<int>(layer))) continue;
    return AbortedError(
        "all workers were lost, and with them the values of layer ",
        job.layers[layer].name, ", which workers update");
  }
  return absl::OkStatus();
}

// Start of the workers in the next epoch.
struct Start {
  int32_t donor = -1;          // Worker with all values; -1: the shards.
  int64_t first_step = 0;      // First step of joining workers.
  bool all_from_base = false;  // True: all workers drop their values.
};

// Returns the first start that is possible; see the top of this file.
absl::StatusOr<Start> FindStart(const Job& job, const EpochChange& change) {
  if (const auto* donor = FindDonor(change)) {
    return Start{donor->rank, FirstFreeStep(job, change), false};
  }
  if (const auto* leaver = FindLeaver(job, change)) {
    return Start{leaver->rank, leaver->report.begun_step + 1, true};
  }
  const int64_t step = FirstOpenStep(job, change);
  // True if the job's last finished round is known: the servers know it, or it
  // is the base round. If no layer uses the servers, later rounds are known
  // only to workers with values, which are gone.
  const bool known =
      ClosedRound(job, change).has_value() || AtBase(job, change);
  if (!known || step > job.history.base_round + 1) {
    NEREUS_TRY(CheckOwned(job));
  }
  return Start{-1, step, true};
}

// Returns the number of contributions to the rounds from `from` to `to` - 1 by
// the workers of `job`; 0 if there are no such rounds.
int64_t ContributionsIn(const Job& job, int64_t from, int64_t to) {
  int64_t contributions = 0;
  for (const EpochWorker& worker : job.workers) {
    const int64_t first = std::max(from, worker.first_step);
    contributions += std::max<int64_t>(0, to - first);
  }
  return contributions;
}

// Returns all verdicts that any member has reported: they hold for all members.
std::vector<StepVerdict> AllVerdicts(const EpochChange& change) {
  Verdicts all;
  for (const auto& worker : change.workers) all.Add(worker.report.verdicts);
  for (const auto& server : change.servers) all.Add(server.report.verdicts);
  return all.all();
}

// Returns the primary and the backup of each shard after a return to a
// checkpoint; both load the checkpoint. If the server whose rank is the shard's
// index is gone, the server after it becomes the primary, and the shard has no
// backup.
absl::StatusOr<std::vector<ShardServers>> FreshHolders(
    const Job& job, const EpochChange& change) {
  std::vector<ShardServers> all =
      FirstShardServers(job.shards(), job.options.backup);
  for (int shard = 0; shard < job.shards(); ++shard) {
    ShardServers& servers = all[shard];
    if (FindServer(change, servers.primary) == nullptr) {
      std::swap(servers.primary, servers.backup);
    }
    if (FindServer(change, servers.primary) == nullptr) {
      return AbortedError("shard ", shard, " was lost: server ", shard,
                          " is not a member, ",
                          job.options.backup ? "nor is the server after it"
                                             : "and the job has no backups");
    }
    if (FindServer(change, servers.backup) != nullptr) continue;
    servers.backup = -1;
    servers.backup_is_current = false;
  }
  return all;
}

// True if the plan may change: all workers and primaries are ready to switch,
// no worker leaves, no worker has begun a step after the switch round, and no
// shard changes its primary.
bool AllAreReadyToSwitch(const Job& job, const EpochChange& change,
                         const std::vector<ShardServers>& shard_servers) {
  if (!job.switches()) return false;
  const bool workers = absl::c_all_of(change.workers, [&](const auto& worker) {
    return worker.report.ready_to_switch && !worker.leaves &&
           worker.report.begun_step == job.switch_round &&
           job.PositionOf(worker.rank) >= 0;
  });
  if (!workers || change.workers.empty()) return false;
  for (size_t shard = 0; shard < shard_servers.size(); ++shard) {
    const int server = shard_servers[shard].primary;
    const bool stays = server == job.shard_servers[shard].primary;
    if (!stays || !FindServer(change, server)->report.ready_to_switch)
      return false;
  }
  return true;
}

// Returns a copy of `job` with the number, fusion threshold and worker names of
// the next epoch. Its lists of workers, of workers that have left and of
// finished rounds are empty; the caller fills them. It has no switch round.
Job NextJob(const Job& job, uint64_t epoch, const EpochChange& change) {
  Job made = job;
  made.epoch = epoch;
  made.options.fusion_bytes =
      change.fusion_bytes.value_or(job.options.fusion_bytes);
  made.crew.worker_names = change.worker_names;
  made.workers.clear();
  made.crew.left_workers.clear();
  made.history.finished_rounds.clear();
  made.switch_round = kInitialRound;
  return made;
}

// Sets the hosts of the workers of `made`.
void PlaceWorkers(const EpochChange& change, Job& made) {
  for (EpochWorker& each : made.workers) {
    const auto found = change.worker_hosts.find(each.rank);
    each.host = found == change.worker_hosts.end() ? -1 : found->second;
  }
}

// Gives another plan to `made`, the epoch that follows `job`. If the servers
// run the optimizer, the switch round becomes the base round of `made`.
void ChangePlan(const Job& job, const EpochChange::NewPlan& plan, Job& made) {
  absl::c_copy(plan.routes, made.routes.begin());
  // The chunks stay where they are: their places do not depend on rows.
  absl::c_copy(plan.layers, made.layers.begin());
  made.history.finished_rounds.clear();
  // A backup is not current if its shard has a chunk of a layer that workers
  // have exchanged in the old plan. It lacks the values that workers have
  // handed over to the primary, or, if workers run the optimizer, it is not at
  // the round with which the primary begins.
  for (const Chunk& chunk : job.placement.chunks()) {
    if (UsesServers(job.routes[chunk.layer].scheme)) continue;
    made.shard_servers[chunk.shard].backup_is_current = false;
  }
  if (job.options.optimizer_place == OptimizerPlace::kWorker) return;
  made.history.base_round = job.switch_round;
  for (EpochWorker& each : made.workers) {
    each.first_step = made.history.first_step;
  }
}

}  // namespace

absl::StatusOr<std::vector<ShardServers>> NextHolders(
    const Job& job, const EpochChange& change) {
  const std::vector<ShardServers> first =
      FirstShardServers(job.shards(), job.options.backup);
  std::vector<ShardServers> next = job.shard_servers;
  for (int shard = 0; shard < job.shards(); ++shard) {
    ShardServers& servers = next[shard];
    const auto& became = change.current_backups;
    const bool whole =
        servers.backup_is_current || absl::c_count(became, shard) > 0;
    const bool copied = Lives(change, servers.backup);
    // A shard goes back to the server whose rank is the shard's index.
    const bool moves = !Lives(change, servers.primary) ||
                       servers.backup == first[shard].primary;
    if (copied && whole && moves) std::swap(servers.primary, servers.backup);
    if (!Lives(change, servers.primary)) {
      return AbortedError("shard ", shard,
                          " was lost: no server has all of its values");
    }
    servers.backup_is_current = whole && Lives(change, servers.backup);
    if (Lives(change, servers.backup)) continue;
    servers.backup = first[shard].primary == servers.primary
                         ? first[shard].backup
                         : first[shard].primary;
    if (FindServer(change, servers.backup) == nullptr) servers.backup = -1;
  }
  return next;
}

absl::StatusOr<NextEpoch> MakeNextEpoch(const Job& job, uint64_t epoch,
                                        const EpochChange& reported) {
  EpochChange change = reported;
  const auto shard_servers = NEREUS_TRY(NextHolders(job, change));
  const std::set<int32_t> misled = ForgetMisled(job, change);
  const Start start = NEREUS_TRY(FindStart(job, change));
  NextEpoch next;
  Job made = NextJob(job, epoch, change);
  made.history.donor = start.donor;
  made.history.first_step = start.first_step;
  made.history.contributions_before = std::max<int64_t>(
      0, job.history.contributions_before +
             ContributionsIn(job, job.history.first_step, start.first_step) -
             ContributionsIn(job, start.first_step, job.history.first_step));

  made.shard_servers = shard_servers;
  made.history.verdicts = AllVerdicts(change);
  if (change.checkpoint) made.checkpoint_round = made.history.first_step;

  for (const EpochChange::Worker& worker : change.workers) {
    const int position = job.PositionOf(worker.rank);
    if (worker.leaves || position < 0) {
      made.crew.left_workers.push_back(worker.rank);
      continue;
    }
    EpochWorker each = job.workers[position];
    if (start.all_from_base) each.first_step = made.history.first_step;
    made.workers.push_back(each);
    if (start.all_from_base || misled.contains(worker.rank)) {
      next.workers_from_base.push_back(worker.rank);
    }
  }
  for (const int32_t rank : change.joiners) {
    made.workers.push_back({rank, made.history.first_step});
  }
  PlaceWorkers(change, made);

  for (size_t layer = 0; layer < job.layers.size(); ++layer) {
    if (UsesServers(job.routes[layer].scheme)) continue;
    const auto finished = FindFinished(static_cast<int>(layer), change);
    if (finished.has_value()) made.history.finished_rounds.push_back(*finished);
  }
  const bool is_ready = next.workers_from_base.empty() &&
                        AllAreReadyToSwitch(job, change, shard_servers);
  // If members are ready and there is no plan, the workers have not said their
  // rows: the job does not wait for them any longer.
  const bool waits_again = job.switches() && change.learns_rows && !is_ready;
  if (is_ready && change.plan.has_value()) {
    ChangePlan(job, *change.plan, made);
  } else if ((change.plan.has_value() || waits_again) &&
             job.MaySwitchAfter(made.history.first_step)) {
    made.switch_round = made.history.first_step;
  }
  next.job = NEREUS_TRY(MakeJob(std::move(made), job.shards()));
  return next;
}

absl::StatusOr<NextEpoch> MakeRestartedEpoch(const Job& job, uint64_t epoch,
                                             const CheckpointRecord& point,
                                             const EpochChange& change) {
  NextEpoch next;
  Job made = NextJob(job, epoch, change);
  made.shard_servers = NEREUS_TRY(FreshHolders(job, change));
  const int64_t first_step = point.round + 1;
  made.history = JobHistory();
  made.history.base_round = point.round;
  made.history.first_step = first_step;
  made.history.contributions_before = point.contributions;
  made.checkpoint_round = change.checkpoint ? first_step : kInitialRound;
  for (const EpochChange::Worker& worker : change.workers) {
    // Workers that have left take part again, because their last steps are
    // undone.
    made.workers.push_back({worker.rank, first_step});
    next.workers_from_base.push_back(worker.rank);
  }
  for (const int32_t rank : change.joiners) {
    made.workers.push_back({rank, first_step});
  }
  PlaceWorkers(change, made);
  if (change.learns_rows && job.MaySwitchAfter(first_step)) {
    made.switch_round = first_step;
  }
  next.job = NEREUS_TRY(MakeJob(std::move(made), job.shards()));
  return next;
}

}  // namespace nereus
