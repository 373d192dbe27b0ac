#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"
#include "tests/simulation/simulated_jobs.h"

namespace nereus {

// Law 2, counted once: a mean contains the gradient of each worker of its round
// exactly once. The job must run SignedWorkload. There the gradient of worker r
// is 1 in column r and 0 elsewhere, so column r of a mean is the share of
// worker r in it.
//
// If the workers run the optimizer, the mean is the result of a round. If the
// servers run it, the law computes the mean from the change of the parameters.
// This needs ExactSgd, and all contributions in every round. In other jobs the
// law checks nothing. It also stops for good when a worker of rank kColumns or
// above takes part, because that worker has no column of its own.
class CountedOnceLaw final : public Law {
 public:
  // Number of columns that the law looks at, and of ranks that it can tell
  // apart. The law does not check layers with fewer columns.
  static constexpr int64_t kColumns = kSignedColumns;

  CountedOnceLaw(std::vector<LayerSpec> layers, const JobOptions& options);

  absl::string_view name() const override {
    return "each contribution is counted once";
  }
  void Observe(const ClusterEvent& event) override;

  // Number of means that were checked.
  int64_t checked_count() const { return checked_count_; }

 private:
  // Parameters of a worker's layer as of a round.
  struct Before {
    int64_t round = 0;
    std::vector<float> values;
  };

  void OnMean(const RoundDone& done);
  void OnParameters(const RoundDone& done);
  void Check(const std::vector<float>& mean, const LayerPlace& place);
  // True if the worker takes part in the round by the coordinator's job.
  bool TakesPart(const LayerPlace& place) const;

  const std::vector<LayerSpec> layers_;
  const bool has_means_;    // True if the result of a round is its mean.
  const bool has_changes_;  // True if the change of parameters gives the mean.
  // Last parameters, by rank and layer.
  std::map<std::pair<int, int>, Before> before_;
  // True once a worker without a column of its own has taken part.
  bool is_blind_ = false;
  int64_t checked_count_ = 0;
};

}  // namespace nereus
