#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 1, equal replicas: all workers with the result of a round of a layer have
// the same bits. The result is the parameters. If the workers run the
// optimizer, it is the mean gradient, and the law compares the updated
// parameters too.
//
// If an epoch changes the route of a layer, the layer may get other bits: the
// servers sent rounded parameters in each round, and hand over the exact ones.
// All workers then have the exact ones.
//
// The law is not checked in jobs with partial rounds. There a worker with a
// later answer has later parameters.
class EqualReplicasLaw final : public Law {
 public:
  absl::string_view name() const override { return "replicas are equal"; }
  void Observe(const ClusterEvent& event) override;

 private:
  // Result of a round: parameters or mean, layer, round.
  using Key = std::tuple<bool, int, int64_t>;

  // First worker with the result, and the checksum of its bits.
  struct Recorded {
    ProcessId process = 0;
    int rank = 0;
    uint32_t checksum = 0;
  };

  void Compare(const LayerPlace& place, bool is_mean, uint32_t checksum);
  void OnEpoch(const EpochBegun& epoch);

  std::map<Key, Recorded> results_;  // Results that all workers must have.
  std::vector<Route> routes_;        // Routes of the last epoch, by layer.
};

}  // namespace nereus
