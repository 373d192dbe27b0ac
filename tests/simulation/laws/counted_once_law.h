#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"
#include "tests/simulation/simulated_jobs.h"

namespace nereus {

// Law 2, counted once: a mean has the gradient of each worker of its round
// exactly once. Needs SignedWorkload, in which the gradient of worker r is 1 in
// column r and 0 elsewhere: column r of a mean is then the share that worker r
// has in it.
//
// If the workers run the optimizer, the mean is the result of a round. If the
// servers run it, the mean is read from the change of the parameters; that
// needs ExactSgd, and all contributions in every round. In other jobs the law
// checks nothing. It checks nothing more once a worker of rank kColumns or
// above has taken part: no column tells that worker apart from the others.
class CountedOnceLaw final : public Law {
 public:
  // Columns of a layer that the law looks at, and most ranks that it can tell
  // apart. Layers with fewer columns are not checked.
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
  // True if the worker takes part in the event's round, as the coordinator has
  // it.
  bool TakesPart(const LayerPlace& place) const;

  const std::vector<LayerSpec> layers_;
  const bool has_means_;    // The result of a round is the mean.
  const bool has_changes_;  // The parameters tell the mean.
  // Last parameters, by rank and layer.
  std::map<std::pair<int, int>, Before> before_;
  // True once a worker without a column of its own has taken part.
  bool is_blind_ = false;
  int64_t checked_count_ = 0;
};

}  // namespace nereus
