#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Only a step that is not skipped changes parameters. Neither a skipped step
// nor a new plan changes them, even if a worker fetches a layer again for the
// plan.
class UnchangedParametersLaw final : public Law {
 public:
  // `is_rounded`: True if servers may round parameters to a wire type. A layer
  // that is fetched again may then have other bits.
  explicit UnchangedParametersLaw(bool is_rounded) : is_rounded_(is_rounded) {}

  absl::string_view name() const override {
    return "nothing but a step changes parameters";
  }
  void Observe(const ClusterEvent& event) override;

 private:
  // Stores the checksum of a worker's layer. Returns the checksum that was
  // stored before, or 0 if there was none.
  uint32_t Exchange(const LayerPlace& place, uint32_t checksum);
  void OnRoundDone(const RoundDone& done);
  void OnFetchedAgain(const FetchedAgain& fetched);

  const bool is_rounded_;
  // Checksum of the last parameters, by process and layer.
  std::map<std::pair<ProcessId, int>, uint32_t> checksums_;
};

}  // namespace nereus
