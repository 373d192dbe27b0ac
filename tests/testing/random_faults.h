#ifndef NEREUS_TESTS_TESTING_RANDOM_FAULTS_H_
#define NEREUS_TESTS_TESTING_RANDOM_FAULTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/random.h"
#include "common/simulation/simulated_cluster.h"

namespace nereus {

enum class Fault {
  kWorkerDies,  // And a successor comes, or does not.
  kWorkerComes,
  kWorkerPauses,  // For shorter or longer than the lease.
  kWorkersDisconnect,
  kShardDisconnects,
  kSessionBreaks,
  kShardDies,  // And another one comes.
  kShardDiesInFile,
  kShardPauses,
  kCoordinatorDies,  // And comes back.
  kCoordinatorDiesHalfway,
  kCheckpointIsAskedFor,
  kWriteFails,
};

// Faults of workers and connections; and of everything.
absl::Span<const Fault> WorkerFaults();
absl::Span<const Fault> AllFaults();

// Which faults a seed has, and when: a few kinds of those that there are, and a
// handful of times.
class RandomFaults {
 public:
  // `cluster` is not owned and must outlive this, which must outlive its runs.
  RandomFaults(uint64_t seed, absl::Span<const Fault> kinds,
               SimulatedCluster* cluster);

 private:
  void Strike();
  void StrikeWorker(Fault fault);
  void StrikeServer(Fault fault);
  void PauseFor(ProcessId victim, absl::Duration length);
  ProcessId AnyWorker();
  int AnyShard();
  void After(absl::Duration delay, std::function<void()> what);

  Random random_;
  SimulatedCluster* const cluster_;
  std::vector<Fault> kinds_;
};

// All that had the values of a layer died before others had them, and there was
// no checkpoint.
bool IsLost(const absl::Status& status);

}  // namespace nereus

#endif  // NEREUS_TESTS_TESTING_RANDOM_FAULTS_H_
