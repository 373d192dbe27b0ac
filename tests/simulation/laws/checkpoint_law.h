#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/protocol/job.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 7, a checkpoint is one moment. It consists of five statements:
//
//   - A whole checkpoint has, for each layer, the values that some worker had
//     after the checkpoint's round.
//   - The newest whole checkpoint stays until there is a newer one, even if
//     writes fail or tear files, unless a byte of it has changed.
//   - A checkpoint with a torn manifest does not count as whole.
//   - Servers can read their shares of checkpoints of which no byte has
//   changed.
//   - A job that ends well has saved its last step.
//
// The law reads a checkpoint back from its files as soon as it is whole. A
// worker may finish the round before that or after it, so the law keeps the
// checksums of checkpoints and of workers, and compares them in either order.
class CheckpointLaw final : public Law {
 public:
  // `wire`: wire type to which the parameters may be rounded on their way to
  // workers. `state_arrays`: arrays of optimizer state for each layer.
  CheckpointLaw(std::vector<LayerSpec> layers, WireType wire, int state_arrays);

  absl::string_view name() const override {
    return "a checkpoint is one moment";
  }
  void Observe(const ClusterEvent& event) override;

 private:
  using LayerRound = std::pair<int, int64_t>;

  // Notes the checksum of a worker's parameters, and compares it with the
  // checkpoint of that round, if there is one.
  void OnParameters(const LayerPlace& place, uint32_t checksum);
  void OnWhole(int64_t round, SimulatedStorage* disk);
  void OnDisk(SimulatedStorage* disk);
  void OnEnd(const JobEnded& ended);
  // Reads a whole checkpoint back, and compares it with the values of workers.
  absl::Status ReadBack(int64_t round, SimulatedStorage* disk);
  void Compare(int layer, int64_t round) const;
  // Forgets the rounds after `round`, which are done again.
  void ForgetAfter(int64_t round);

  const std::vector<LayerSpec> layers_;
  const WireType wire_;
  const int state_arrays_;
  int64_t newest_whole_ = kInitialRound;  // Round of the newest checkpoint.
  std::set<int64_t> rotted_;  // Rounds of checkpoints with a changed byte.
  // Checksums of the values in checkpoints, exact and rounded to the wire type.
  std::map<LayerRound, std::map<WireType, uint32_t>> saved_;
  // Checksums of the values that workers had, dead workers included, with the
  // wire type in which the values had travelled.
  std::map<LayerRound, std::set<std::pair<WireType, uint32_t>>> had_;
};

}  // namespace nereus
