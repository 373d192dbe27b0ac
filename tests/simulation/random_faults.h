#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/random.h"
#include "tests/simulation/simulated_cluster.h"

namespace nereus {

enum class Fault {
  // Workers.
  kWorkerDies,  // And a successor comes, or does not.
  kWorkerComes,
  kWorkerLeaves,
  kWorkerPauses,  // For shorter or longer than the lease.
  kWorkerSlows,
  kDriverStalls,  // Of any process, while its session goes on.
  kStrangerComes,
  // What joins processes.
  kWorkersDisconnect,
  kShardDisconnects,
  kConnectionBreaksInFrame,
  kResultIsLost,
  kLinkSlows,
  kLinkFlaps,  // It breaks again and again.
  kSessionBreaks,
  kSessionEndsOneSided,
  kAnswerIsLost,
  kPartition,  // Of workers, and of shards if those may die.
  // Servers.
  kShardDies,  // And another one comes.
  kShardDiesAsEpochBegins,
  kShardDiesAgain,  // Just after it is back in its place.
  kShardDiesInFile,
  kShardPauses,
  kShardSlows,
  kCoordinatorDies,  // And comes back.
  kCoordinatorDiesHalfway,
  kCoordinatorDiesInFile,
  kSavesFail,  // And maybe the coordinator dies meanwhile.
  kCheckpointIsAskedFor,
  kWriteFails,
};

// Faults of workers and connections, which cost no shard; and of everything.
absl::Span<const Fault> WorkerFaults();
absl::Span<const Fault> AllFaults();
// Those that cost no member, nor what one of them holds.
absl::Span<const Fault> HarmlessFaults();

// Which faults a seed has, and when: a few kinds of those that there are, and a
// handful of times.
class RandomFaults {
 public:
  // `cluster` is not owned and must outlive this, which must outlive its runs.
  RandomFaults(uint64_t seed, absl::Span<const Fault> kinds,
               SimulatedCluster* cluster);

  // No more of them, and what they did comes to its end, but for the dead.
  void Stop();

  // Starts no worker any more, not even in the place of one that has left.
  void StartNobody() { starts_workers_ = false; }

  // How often each has struck.
  const std::map<Fault, int>& strikes() const { return strikes_; }

 private:
  void Strike();
  void StrikeWith(Fault fault);
  void Tend();
  bool StrikeWorker(Fault fault);
  bool StrikeConnection(Fault fault);
  bool StrikeServer(Fault fault);
  bool KillShard(int shard, absl::Duration away_max);
  void KillOnceItServes(int shard);
  void RestartCoordinatorSoon();
  bool Part();
  bool CutSession(ProcessId victim);
  bool PauseFor(ProcessId victim);
  bool StallFor(ProcessId victim);
  bool Flap(ProcessId a, ProcessId b);
  bool SlowFor(ProcessId victim);
  bool SlowLinkFor(ProcessId a, ProcessId b, absl::Duration delay_max);
  ProcessId AnyWorker();
  ProcessId AnyProcess();
  int AnyShard();
  void After(absl::Duration delay, std::function<void()> what);
  // Undoes a fault after a time, or when they are stopped.
  void UndoAfter(absl::Duration delay, std::function<void()> what);

  Random random_;
  SimulatedCluster* const cluster_;
  std::vector<Fault> kinds_;
  bool shards_may_die_ = false;
  bool stopped_ = false;
  bool starts_workers_ = true;
  std::vector<std::function<void()>> undo_;
  std::map<Fault, int> strikes_;
};

// All that had the values of a layer died before others had them, and there was
// no checkpoint.
bool IsLost(const absl::Status& status);

}  // namespace nereus
