#pragma once

#include <cstdint>
#include <map>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// All workers skip a step, or none does. A verdict says whether a step is
// skipped, and all workers must hear the same verdict. If one worker did a step
// that the others skip, its replica would differ from then on.
class SkippedStepsLaw final : public Law {
 public:
  absl::string_view name() const override {
    return "all workers skip a step, or none does";
  }
  void Observe(const ClusterEvent& event) override;

  // True if the workers have skipped `step`. REQUIRES: they have done it.
  bool Skipped(int64_t step) const { return verdicts_.at(step).skipped; }

 private:
  // Verdict on a step, with the rank of the worker that has heard it.
  struct Heard {
    int rank = 0;
    bool skipped = false;
  };

  void OnRoundDone(const RoundDone& done);

  std::map<int64_t, Heard> verdicts_;  // Verdict of each step.
};

}  // namespace nereus
