#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Nothing but a step changes parameters: a step that is skipped leaves them as
// they were, and so does the change to another plan, for which a worker may
// fetch a layer again.
class UnchangedParametersLaw final : public Law {
 public:
  // `is_rounded`: workers may get parameters rounded to a wire type, so that a
  // layer that is fetched again has other bits.
  explicit UnchangedParametersLaw(bool is_rounded) : is_rounded_(is_rounded) {}

  absl::string_view name() const override {
    return "nothing but a step changes parameters";
  }
  void Observe(const ClusterEvent& event) override;

 private:
  // Notes the parameters of a worker's layer. Returns the checksum before.
  uint32_t Exchange(const LayerPlace& place, uint32_t checksum);
  void OnRoundDone(const RoundDone& done);
  void OnFetchedAgain(const FetchedAgain& fetched);

  const bool is_rounded_;
  // Checksum of the last parameters, by process and layer.
  std::map<std::pair<ProcessId, int>, uint32_t> checksums_;
};

}  // namespace nereus
