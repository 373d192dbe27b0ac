#include "common/protocol/membership.h"

#include <algorithm>

#include "common/base/status.h"

namespace nereus {

absl::string_view JobStateName(JobState state) {
  return NameOf<kJobStateNames>(state);
}

absl::Status OutcomeOf(const JobOver& over) {
  if (over.state == JobState::kFinished) return absl::OkStatus();
  if (over.state == JobState::kStopped) return DataLossError(over.reason);
  const absl::Status failed = AbortedError("the job failed: ", over.reason);
  return over.state == JobState::kFailed ? failed
                                         : DataLossError(failed.message());
}

bool FactorRows::Add(const FactorRows& later) {
  const std::vector<int64_t> before = rows;
  rows.resize(later.rows.size());
  for (size_t i = 0; i < later.rows.size(); ++i) {
    const bool is_lost =
        rows[i] == kFactorsLost || later.rows[i] == kFactorsLost;
    rows[i] = is_lost ? kFactorsLost : std::max(rows[i], later.rows[i]);
  }
  return rows != before;
}

absl::Status CheckFactorRows(const FactorRows& report,
                             absl::Span<const LayerSpec> model) {
  if (report.rows.size() != model.size()) {
    return InvalidArgumentError("a report of rows has ", report.rows.size(),
                                " layers, the model has ", model.size());
  }
  for (size_t i = 0; i < model.size(); ++i) {
    const int64_t rows = report.rows[i];
    if (rows < kFactorsLost || rows > kLayerRowsMax) {
      return InvalidArgumentError(
          "a report says that layer ", model[i].name, " has ", rows,
          " rows, must be from 1 to ", kLayerRowsMax, ", ", kRowsNotKnown,
          ", not known, or ", kFactorsLost, ", no factors");
    }
    if (rows == kRowsNotKnown || model[i].has_factors) continue;
    return InvalidArgumentError(
        "a report says that layer ", model[i].name, " has ", rows,
        " rows of factors, and its LayerSpec::has_factors is false: report ",
        kRowsNotKnown);
  }
  return absl::OkStatus();
}

}  // namespace nereus
