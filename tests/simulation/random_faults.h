#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/random.h"
#include "tests/simulation/simulated_cluster.h"

namespace nereus {

// Kinds of faults. Most faults end after a drawn time.
enum class Fault {
  // ---- Faults of workers.
  kWorkerDies,  // A worker dies. Another worker may take its place.
  kWorkerComes,
  kWorkerLeaves,  // A worker leaves, early or because it is done.
  kWorkerPauses,  // A worker pauses for less or for more than the lease.
  kWorkerSlows,
  kDriverStalls,  // The driver of a process stalls. Its session goes on.
  kStrangerComes,

  // ---- Faults between processes.
  kWorkersDisconnect,
  kShardDisconnects,
  kConnectionBreaksInFrame,
  kResultIsLost,
  kLinkSlows,
  kLinkFlaps,  // A connection breaks again and again.
  // Nothing gets through between two members, or in one direction, while both
  // reach the coordinator.
  kLinkIsCut,
  kLinkIsCutOneWay,
  kSessionBreaks,
  kSessionEndsOneSided,
  kAnswerIsLost,
  kPartition,  // Some workers are cut off, and shards if shards may die.

  // ---- Faults of servers, the coordinator and the disk.
  kShardDies,  // A server dies, and another one comes.
  kShardDiesAsEpochBegins,
  kShardDiesAgain,  // A server dies, and again when it is primary once more.
  kShardDiesInFile,
  kShardPauses,
  kShardSlows,
  kCoordinatorDies,         // The coordinator dies, and is started again.
  kCoordinatorDiesHalfway,  // The coordinator dies while it saves a state.
  kCoordinatorDiesInFile,   // The coordinator dies while it writes a manifest.
  kSavesFail,  // No state can be saved. The coordinator may die meanwhile.
  kSavesHang,  // No save ends. The coordinator may die meanwhile.
  kCheckpointIsAskedFor,
  kWriteFails,
  kShardLeaves,     // A server asks to leave, and another one comes.
  kCheckpointRots,  // A byte of a whole checkpoint changes, and a server dies.
  kSharesHang,      // A server writes no share of a checkpoint for a while.
  kReadsAreSlow,    // From now on, servers read checkpoints slowly or hang.

  // ---- Faults of hosts.
  kHostDies,         // All processes of a host die in one instant.
  kMatesDisconnect,  // The connection between two workers of a host breaks.
  // A worker and the other workers of its host cannot connect.
  kMatesCannotConnect,
};

// Returns the faults of workers and of connections, which cost no shard.
absl::Span<const Fault> WorkerFaults();
// Returns all kinds of faults but those of hosts, and kCheckpointRots,
// kSharesHang and kReadsAreSlow, which RandomFaults adds by itself if
// kShardDies is given and the job has a disk.
absl::Span<const Fault> AllFaults();
// Returns the faults of hosts. If processes share hosts, RandomFaults adds them
// by itself: kHostDies if kWorkerDies is given, and kMatesDisconnect if
// kWorkersDisconnect is given.
absl::Span<const Fault> HostFaults();
// Returns the faults that end no process and lose no values.
absl::Span<const Fault> HarmlessFaults();

// Fault script drawn from a seed: a few kinds of faults, at a few moments. It
// also keeps the job alive: it starts workers if too few live, and starts a
// dead coordinator again.
class RandomFaults {
 public:
  // Plans faults of some of these `kinds`. `cluster` is not owned and must
  // outlive this. This must outlive the cluster's runs.
  RandomFaults(uint64_t seed, absl::Span<const Fault> kinds,
               SimulatedCluster* cluster);

  // Stops new faults, and ends the faults that last. Replaces dead servers and
  // a dead coordinator, but no dead worker.
  void Stop();

  // Stops the starts of workers when too few live.
  void StartNoWorkers() { starts_workers_ = false; }

  // Returns how often each kind has struck.
  const std::map<Fault, int>& strikes() const { return strikes_; }

 private:
  // Plans faults of hosts, if processes share hosts.
  void PlanHostFaults(absl::Span<const Fault> kinds);
  // Plan kCheckpointRots, and the other faults of reads and shares, if the job
  // has a disk.
  void PlanRot(uint64_t seed);
  void PlanSlowDisk(uint64_t seed);
  // Strikes with a drawn kind of the seed's kinds.
  void Strike();
  // Strikes with `fault`.
  void StrikeWith(Fault fault);
  // Starts missing workers and a dead coordinator, once a second.
  void Tend();

  // Each of these functions strikes with a fault. It returns false if the state
  // of the job does not allow the fault.
  bool StrikeWorker(Fault fault);
  bool StrikeConnection(Fault fault);
  bool StrikeServer(Fault fault);
  bool StrikeDisk(Fault fault, int shard);
  bool StrikeHost(Fault fault);
  bool KillHost(int host);
  bool KillShard(int shard, absl::Duration away_max);
  bool Part();
  bool CutSession(ProcessId victim);
  bool PauseFor(ProcessId victim);
  bool StallFor(ProcessId victim);
  bool Flap(ProcessId a, ProcessId b);
  bool CutFor(ProcessId from, ProcessId to, bool both_ways);
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

  // Runs `task` after `delay`, unless Stop was called by then.
  void After(absl::Duration delay, std::function<void()> task);
  // Ends a fault after `delay` and in Stop, by `undo`.
  void UndoAfter(absl::Duration delay, std::function<void()> undo);

  Random random_;
  SimulatedCluster* const cluster_;
  FaultScript* const faults_;    // The cluster owns it.
  std::vector<Fault> kinds_;     // Kinds that the seed has drawn.
  bool shards_may_die_ = false;  // True if the given kinds have kShardDies.
  bool stopped_ = false;         // See Stop.
  bool starts_workers_ = true;   // See StartNoWorkers.
  std::vector<std::function<void()>> undo_;  // Tasks of Stop, one a fault.
  std::map<Fault, int> strikes_;             // Strikes of each kind.
};

// True if the job ended before its steps were done, as it may: all processes
// with the values of a layer died, and there was no checkpoint, or the last
// worker that had not left early died.
bool IsLost(const absl::Status& status);

}  // namespace nereus
