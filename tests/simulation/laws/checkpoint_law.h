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

// Law 7, a checkpoint is one moment: what a whole checkpoint has of a layer is
// what some worker had after that round. The newest whole checkpoint stays
// until there is a newer one, whatever write fails or tears a file; a
// checkpoint with a torn manifest does not count as whole; servers can read
// their shares; and a job that ends well has saved its last step.
//
// A checkpoint is read back as soon as it is whole, from the files. Workers may
// come to the round before that or after it, so both sides are kept.
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

  // Notes what a worker has, and compares it with the checkpoint, if there is
  // one.
  void OnParameters(const LayerPlace& place, uint32_t checksum);
  void OnWhole(int64_t round, SimulatedStorage* disk);
  void OnDisk(SimulatedStorage* disk);
  void OnEnd(const JobEnded& ended);
  // Reads a whole checkpoint back, and compares it with what workers had.
  absl::Status ReadBack(int64_t round, SimulatedStorage* disk);
  void Compare(int layer, int64_t round) const;
  // Forgets the rounds after `round`, which are done again.
  void ForgetAfter(int64_t round);

  const std::vector<LayerSpec> layers_;
  const WireType wire_;
  const int state_arrays_;
  int64_t newest_whole_ = kInitialRound;  // Round of the newest checkpoint.
  // Checksums of what checkpoints have, exactly and rounded to the wire.
  std::map<LayerRound, std::map<WireType, uint32_t>> saved_;
  // Checksums of what any worker had, dead or alive, with the wire type that it
  // travelled in.
  std::map<LayerRound, std::set<std::pair<WireType, uint32_t>>> had_;
};

}  // namespace nereus
