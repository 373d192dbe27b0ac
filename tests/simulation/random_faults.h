#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/random.h"
#include "tests/simulation/simulated_cluster.h"

namespace nereus {

// Kinds of faults. Most of them are undone after a drawn time.
enum class Fault {
  // ---- Faults of workers.
  kWorkerDies,  // A worker dies; a successor comes, or does not.
  kWorkerComes,
  kWorkerLeaves,
  kWorkerPauses,  // A worker pauses for less or for more than the lease.
  kWorkerSlows,
  kDriverStalls,  // The driver of any process stalls; its session goes on.
  kStrangerComes,

  // ---- Faults between processes.
  kWorkersDisconnect,
  kShardDisconnects,
  kConnectionBreaksInFrame,
  kResultIsLost,
  kLinkSlows,
  kLinkFlaps,  // A connection breaks again and again.
  kSessionBreaks,
  kSessionEndsOneSided,
  kAnswerIsLost,
  kPartition,  // Some workers are cut off, and shards if those may die.

  // ---- Faults of servers, the coordinator and the disk.
  kShardDies,  // A server dies, and another one comes.
  kShardDiesAsEpochBegins,
  kShardDiesAgain,  // A server dies twice: again when it is back in its place.
  kShardDiesInFile,
  kShardPauses,
  kShardSlows,
  kCoordinatorDies,  // The coordinator dies, and comes back.
  kCoordinatorDiesHalfway,
  kCoordinatorDiesInFile,
  kSavesFail,  // No state is saved; the coordinator may die meanwhile.
  kCheckpointIsAskedFor,
  kWriteFails,

  // ---- Faults of hosts.
  kHostDies,         // All processes of a host die in one instant.
  kMatesDisconnect,  // The connection between two workers of a host breaks.
  // A worker and the other workers of its host cannot connect.
  kMatesCannotConnect,
};

// Returns the faults of workers and of connections, which cost no shard.
absl::Span<const Fault> WorkerFaults();
// Returns all kinds of faults that a job without hosts may have.
absl::Span<const Fault> AllFaults();
// Returns the faults of hosts. RandomFaults adds them by itself where processes
// share hosts: a host may die if its workers may die one by one, and mates may
// lose their connection if any two workers may.
absl::Span<const Fault> HostFaults();
// Returns the faults that cost no member, nor anything that a member holds.
absl::Span<const Fault> HarmlessFaults();

// A fault script that is drawn from a seed: a few kinds of faults, at a handful
// of moments. It looks after the job, too: it starts workers where too few
// live, and a coordinator that died by itself.
class RandomFaults {
 public:
  // Plans faults of some of these `kinds`. `cluster` is not owned and must
  // outlive this, which must outlive the cluster's runs.
  RandomFaults(uint64_t seed, absl::Span<const Fault> kinds,
               SimulatedCluster* cluster);

  // Lets no more faults strike, and undoes those that last. The dead stay dead.
  void Stop();

  // Starts no more workers, not even in the place of a worker that has left.
  void StartNoWorkers() { starts_workers_ = false; }

  // How often each kind has struck.
  const std::map<Fault, int>& strikes() const { return strikes_; }

 private:
  // Plans faults of hosts, if processes share hosts.
  void PlanHostFaults(absl::Span<const Fault> kinds);
  // Strikes with one of the seed's kinds, or with this one.
  void Strike();
  void StrikeWith(Fault fault);
  // Looks after the job, once a second.
  void Tend();

  // Each of these strikes, and returns true unless the job's state does not
  // allow it.
  bool StrikeWorker(Fault fault);
  bool StrikeConnection(Fault fault);
  bool StrikeServer(Fault fault);
  bool StrikeHost(Fault fault);
  bool KillHost(int host);
  bool KillShard(int shard, absl::Duration away_max);
  bool Part();
  bool CutSession(ProcessId victim);
  bool PauseFor(ProcessId victim);
  bool StallFor(ProcessId victim);
  bool Flap(ProcessId a, ProcessId b);
  bool SlowFor(ProcessId victim);
  bool SlowLinkFor(ProcessId a, ProcessId b, absl::Duration delay_max);

  // Kills a server soon after it is the primary of its shard again.
  void KillOnceItServes(int shard);
  void RestartCoordinatorSoon();
  // Starts a server in the place of a dead one after `delay`.
  void StartShardAfter(absl::Duration delay, int shard);

  ProcessId AnyWorker();
  ProcessId AnyProcess();
  int AnyShard();
  // Returns the live workers of a host.
  std::vector<ProcessId> LiveWorkersOn(int host) const;
  // Returns the shards with a live server on a host.
  std::vector<int> LiveShardsOn(int host) const;

  // Runs `task` after `delay`, unless faults are stopped by then.
  void After(absl::Duration delay, std::function<void()> task);
  // Undoes a fault after `delay`, or in Stop.
  void UndoAfter(absl::Duration delay, std::function<void()> undo);

  Random random_;
  SimulatedCluster* const cluster_;
  FaultScript* const faults_;    // The cluster's.
  std::vector<Fault> kinds_;     // Kinds that the seed has drawn.
  bool shards_may_die_ = false;  // The given kinds have kShardDies.
  bool stopped_ = false;
  bool starts_workers_ = true;               // See StartNoWorkers.
  std::vector<std::function<void()>> undo_;  // Faults that Stop has to undo.
  std::map<Fault, int> strikes_;             // Strikes of each kind.
};

// True if the job is lost for a good reason: all processes that had the values
// of a layer died before others had them, and there was no checkpoint.
bool IsLost(const absl::Status& status);

}  // namespace nereus
