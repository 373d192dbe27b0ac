#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 1, equal replicas: all workers that have the result of a round of a layer
// have the same bits. The result is the parameters, or the mean gradient where
// the workers run the optimizer; then their updated parameters count too.
//
// A layer that goes another way from an epoch on may have other bits from then
// on: servers send parameters rounded to the wire type, but hand over the exact
// ones. All workers then have the exact ones.
//
// With a quorum below all workers the law does not hold and is not checked: a
// worker that is answered later has later parameters.
class EqualReplicasLaw final : public Law {
 public:
  absl::string_view name() const override { return "replicas are equal"; }
  void Observe(const ClusterEvent& event) override;

 private:
  // Result of a round: parameters or mean, layer, round.
  using Key = std::tuple<bool, int, int64_t>;

  // The first worker with the result, and its bits.
  struct Recorded {
    ProcessId process = 0;
    int rank = 0;
    uint32_t checksum = 0;
  };

  void Compare(const LayerPlace& place, bool is_mean, uint32_t checksum);
  void OnEpoch(const EpochBegun& epoch);

  std::map<Key, Recorded> results_;  // Bits that every worker must have.
  std::vector<Route> routes_;        // Routes of the last epoch, by layer.
};

}  // namespace nereus
