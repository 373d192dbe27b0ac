#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/layer_spec.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// Reports of the workers about the factors of their layers (FactorRows), and
// what follows from them for the model of the job:
//
//   rows not known --every worker has said them--> known: the largest number
//        |                                           |
//        '------ one worker says: no factors --------+--> factors lost
//
// Known rows stay as they are, whatever workers report later: a worker with
// more rows pushes a dense gradient. Lost factors stay lost.
//
// The model changes only together with the plan (EpochChange), because all
// members of an epoch must agree about it. Until then this class keeps what the
// workers have said. Pure; Epochs owns it. Memory: one report of each worker.
class FactorReports {
 public:
  // Layers that have lost their factors, by index, with the name of the first
  // worker that said so. A restarted coordinator must find them again: the
  // worker may be gone.
  using Lost = std::map<int32_t, std::string>;

  explicit FactorReports(Lost lost) : lost_(std::move(lost)) {}

  // Takes the report of a worker, and returns the layers that it is the first
  // to report as lost. REQUIRES: CheckFactorRows accepts the report.
  std::vector<int32_t> OnReport(int32_t worker, const std::string& name,
                                const FactorRows& report);

  // Forgets the reports of workers that are not in `job`, the job of the epoch
  // that begins.
  void OnEpoch(const Job& job);

  // Returns the model of the job, as the reports of its workers describe it.
  // `workers_max`: largest number of workers that the job may have. If frames
  // cannot address the factors of so many workers, the rows stay unknown.
  std::vector<LayerSpec> Learnt(const Job& job, int workers_max) const;

  // Completes the reasons for the routes of `layers`: names the worker that has
  // reported lost factors.
  void Explain(absl::Span<const LayerSpec> layers,
               std::vector<RouteExplanation>& explanations) const;

  const Lost& lost() const { return lost_; }

 private:
  // Returns the rows of a layer, or kRowsNotKnown if a worker of `job` has not
  // said them.
  int64_t RowsOf(size_t layer, const Job& job) const;

  std::map<int32_t, FactorRows> reports_;  // Reports, by rank of the worker.
  Lost lost_;                              // See lost().
};

}  // namespace nereus
