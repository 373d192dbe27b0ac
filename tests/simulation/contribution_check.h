#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/simulation/simulated_cluster.h"

namespace nereus {

// Worker r's gradient is 1 where an element's column is r, modulo 32, and 0
// elsewhere: a mean tells whose it is of, and how often each was counted.
Workload SignedWorkload();

// Law 2 on a cluster with SignedWorkload, round by round: a mean has its
// workers' gradients once each, and those of all that live, but for one who
// comes when all are dead who have closed the round. Where the servers run the
// optimizer, it is read from the change of the parameters, if they do so by
// ExactSgd and all have to be there; else nothing is checked.
class ContributionCheck {
 public:
  // `cluster` is not owned and must outlive this, which must outlive its runs.
  ContributionCheck(const SimulatedClusterOptions& options,
                    SimulatedCluster* cluster);

  // The first mean that was wrong.
  const absl::Status& status() const { return status_; }
  int64_t checked() const { return checked_; }

 private:
  struct Before {
    int64_t round = 0;
    std::vector<float> values;
  };

  void OnOutcome(int rank, int layer, int64_t round);
  void CheckMean(const std::vector<float>& mean, int rank, int layer,
                 int64_t round);

  const bool means_;    // They are the outcome;
  const bool changes_;  // they can be told from the parameters.
  SimulatedCluster* const cluster_;
  std::vector<LayerSpec> layers_;
  // Parameters as of the last round, by rank and layer.
  std::map<std::pair<int, int>, Before> before_;
  absl::Status status_;
  int64_t checked_ = 0;
};

}  // namespace nereus
