#include "tests/simulation/contribution_check.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/simulated_jobs.h"

namespace nereus {
namespace {

constexpr int64_t kColumns = 32;

// A share is at most 1, and rounded to bf16 at worst. Read from a change of
// parameters below 2^5 it is off by less. A worker counted twice would add 1 /
// contributors.
constexpr float kTolerance = 0x1p-8f;

void Sign(int rank, absl::Span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<int64_t>(i) % kColumns == rank ? 1.0f : 0.0f;
  }
}

}  // namespace

Workload SignedWorkload() {
  Workload workload = IntegerWorkload(MixedLayers());
  workload.gradient = [](int rank, int64_t, int, absl::Span<const float>,
                         absl::Span<float> gradient) { Sign(rank, gradient); };
  workload.factors = [](int rank, int64_t, int, absl::Span<const float>,
                        absl::Span<float> output_gradient,
                        absl::Span<float> input) {
    // One of the four rows of the batch.
    std::fill(output_gradient.begin(), output_gradient.end(), 0.0f);
    std::fill(input.begin(), input.end(), 0.0f);
    const auto first = output_gradient.subspan(0, output_gradient.size() / 4);
    std::fill(first.begin(), first.end(), 1.0f);
    Sign(rank, input.subspan(0, input.size() / 4));
  };
  return workload;
}

ContributionCheck::ContributionCheck(const SimulatedClusterOptions& options,
                                     SimulatedCluster* cluster)
    : means_(options.job.optimizer_place == OptimizerPlace::kWorker),
      changes_(options.job.optimizer == ExactSgd() &&
               options.job.quorum == Quorum::kAll && options.job.sparsity == 0),
      cluster_(cluster),
      layers_(MixedLayers()) {
  cluster_->set_on_outcome([this](int rank, int layer, int64_t round) {
    OnOutcome(rank, layer, round);
  });
}

void ContributionCheck::OnOutcome(int rank, int layer, int64_t round) {
  if (!status_.ok() || layers_[layer].n < kColumns) return;
  const Job& job = cluster_->job();
  const int position = job.PositionOf(rank);
  const bool counts =
      position >= 0 && job.workers[position].first_step <= round;
  const auto head = [](absl::Span<const float> values) {
    return std::vector<float>(values.begin(), values.begin() + kColumns);
  };
  if (means_) {
    if (!counts) return;
    CheckMean(head(cluster_->mean_gradient(rank, layer)), rank, layer, round);
    return;
  }
  if (!changes_) return;
  std::vector<float> values = head(cluster_->parameters(rank, layer));
  Before& before = before_[{rank, layer}];
  if (counts && !before.values.empty() && before.round == round - 1) {
    std::vector<float> mean(kColumns);
    for (int64_t i = 0; i < kColumns; ++i) {
      mean[i] = (before.values[i] - values[i]) / ExactSgd().learning_rate;
    }
    CheckMean(mean, rank, layer, round);
  }
  before = {round, std::move(values)};
}

void ContributionCheck::CheckMean(const std::vector<float>& mean, int rank,
                                  int layer, int64_t round) {
  ++checked_;
  const auto contributors =
      std::count_if(mean.begin(), mean.end(),
                    [](float x) { return std::abs(x) > kTolerance; });
  const float share = 1.0f / static_cast<float>(contributors);
  const bool once = std::all_of(mean.begin(), mean.end(), [&](float x) {
    return std::abs(x) <= kTolerance || std::abs(x - share) <= kTolerance;
  });
  if (once && std::abs(mean[rank]) > kTolerance) return;
  // Closed by those before it: where no worker was left, some layers' rounds
  // were, and others' were not.
  const Job& job = cluster_->job();
  const bool by_dead =
      std::none_of(job.workers.begin(), job.workers.end(), [&](const auto& w) {
        return w.rank < kColumns && std::abs(mean[w.rank]) > kTolerance;
      });
  const int position = job.PositionOf(rank);
  if (once && by_dead && job.workers[position].first_step == round) return;
  status_ = absl::InternalError(absl::StrCat(
      "worker ", rank, ", round ", round, " of layer ", layer,
      ": each rank's part of the mean is ", absl::StrJoin(mean, " ")));
}

}  // namespace nereus
