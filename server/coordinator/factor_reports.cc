#include "server/coordinator/factor_reports.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_checks.h"

namespace nereus {

std::vector<int32_t> FactorReports::OnReport(int32_t worker,
                                             const std::string& name,
                                             const FactorRows& report) {
  reports_[worker].Add(report);
  std::vector<int32_t> news;
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const auto layer = static_cast<int32_t>(i);
    if (report.rows[i] != kFactorsLost) continue;
    if (lost_.try_emplace(layer, name).second) news.push_back(layer);
  }
  return news;
}

void FactorReports::OnEpoch(const Job& job) {
  std::erase_if(reports_, [&](const auto& entry) {
    return job.PositionOf(entry.first) < 0;
  });
}

int64_t FactorReports::RowsOf(size_t layer, const Job& job) const {
  int64_t rows = kRowsNotKnown;
  for (const EpochWorker& worker : job.workers) {
    const auto found = reports_.find(worker.rank);
    if (found == reports_.end() || found->second.rows[layer] <= 0) {
      return kRowsNotKnown;
    }
    rows = std::max(rows, found->second.rows[layer]);
  }
  return rows;
}

std::vector<LayerSpec> FactorReports::Learnt(const Job& job,
                                             int workers_max) const {
  std::vector<LayerSpec> layers(job.model().begin(), job.model().end());
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerSpec& layer = layers[i];
    if (!layer.has_factors) continue;
    if (lost_.contains(static_cast<int32_t>(i))) {
      layer.rows = kFactorsLost;
    } else if (layer.rows == kRowsNotKnown) {
      const int64_t rows = RowsOf(i, job);
      if (rows <= FactorRowsMax(layer, workers_max)) layer.rows = rows;
    }
  }
  return layers;
}

void FactorReports::Explain(absl::Span<const LayerSpec> layers,
                            std::vector<RouteExplanation>& explanations) const {
  const std::string some_worker = "a worker says";
  for (const auto& [layer, worker] : lost_) {
    if (layer >= std::ssize(layers) || layers[layer].rows != kFactorsLost) {
      continue;
    }
    std::string& reason = explanations[layer].reason;
    const size_t at = reason.find(some_worker);
    if (at == std::string::npos) continue;
    reason.replace(at, some_worker.size(), absl::StrCat(worker, " says"));
  }
}

}  // namespace nereus
