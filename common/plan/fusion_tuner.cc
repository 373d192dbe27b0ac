#include "common/plan/fusion_tuner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/logging.h"

namespace nereus {
namespace {

constexpr double kXMin = 10;  // log2(kBytesMin).
constexpr double kXMax = 26;  // log2(kBytesMax).
// Step, in log2, of the grid on which Learn looks for the next threshold. Near
// the optimum the time hardly changes, so a coarse grid will do.
constexpr double kXStep = 0.25;

// Distance between the first three thresholds, in log2: a factor of 16.
constexpr double kFirstSteps = 4;

// Relative improvement below which two thresholds count as equally good: the
// time of a step varies by half a percent anyway.
constexpr double kImprovementMin = 0.005;

// Gaussian process through a few points, with times scaled to mean 0 and
// variance 1. Rasmussen and Williams, "Gaussian Processes for Machine
// Learning", algorithm 2.1; the covariance is squared exponential. With at most
// kTrialsMax points, plain loops are fast enough.
class GaussianProcess {
 public:
  // Fits the process. `x`, borrowed: the points. `y`: the scaled times at these
  // points. `length`: distance in x over which times change. `noise`: variance
  // of a measurement.
  GaussianProcess(const std::vector<double>& x, const std::vector<double>& y,
                  double length, double noise)
      : x_(x), length_(length) {
    const size_t n = x.size();
    // Cholesky decomposition of the covariance matrix. The noise on the
    // diagonal keeps it positive definite even if two trials have the same x.
    factor_.assign(n, std::vector<double>(n, 0.0));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double sum = Covariance(x[i], x[j]) + (i == j ? noise : 0.0);
        for (size_t k = 0; k < j; ++k) sum -= factor_[i][k] * factor_[j][k];
        factor_[i][j] = i == j ? std::sqrt(sum) : sum / factor_[j][j];
      }
    }
    const std::vector<double> half = SolveLower(y);
    weights_ = SolveUpper(half);
    for (size_t i = 0; i < n; ++i) {
      log_likelihood_ -= 0.5 * half[i] * half[i] + std::log(factor_[i][i]);
    }
  }

  // Log of the likelihood of the measurements, without a constant term.
  double log_likelihood() const { return log_likelihood_; }

  // Returns the mean and the standard deviation at `x`.
  std::pair<double, double> At(double x) const {
    std::vector<double> covariance;
    for (const double each : x_) covariance.push_back(Covariance(x, each));
    double mean = 0;
    for (size_t i = 0; i < x_.size(); ++i) mean += covariance[i] * weights_[i];
    double variance = 1;
    for (const double each : SolveLower(covariance)) variance -= each * each;
    return {mean, std::sqrt(std::max(variance, 0.0))};
  }

 private:
  // Returns the covariance of the times at two points.
  double Covariance(double a, double b) const {
    const double distance = (a - b) / length_;
    return std::exp(-0.5 * distance * distance);
  }
  // Solves factor_ * result = y.
  std::vector<double> SolveLower(std::vector<double> y) const {
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t k = 0; k < i; ++k) y[i] -= factor_[i][k] * y[k];
      y[i] /= factor_[i][i];
    }
    return y;
  }
  // Solves transposed factor_ * result = y.
  std::vector<double> SolveUpper(std::vector<double> y) const {
    for (size_t i = y.size(); i-- > 0;) {
      for (size_t k = i + 1; k < y.size(); ++k) y[i] -= factor_[k][i] * y[k];
      y[i] /= factor_[i][i];
    }
    return y;
  }

  const std::vector<double>& x_;             // Points, borrowed.
  const double length_;                      // Length scale of the covariance.
  std::vector<std::vector<double>> factor_;  // Cholesky factor, lower.
  std::vector<double> weights_;              // Inverse covariance times y.
  double log_likelihood_ = 0;                // See log_likelihood().
};

// Returns the process with the length and the noise that make the measurements
// most likely. Tries 30 pairs of a length and a noise, and no pairs between
// them, because the choice need not be precise.
GaussianProcess Fit(const std::vector<double>& x,
                    const std::vector<double>& y) {
  std::pair<double, double> best = {4.0, 0.01};
  double best_likelihood = -std::numeric_limits<double>::infinity();
  for (const double length : {1.0, 1.5, 2.5, 4.0, 6.0, 10.0}) {
    for (const double noise : {1e-5, 0.001, 0.01, 0.05, 0.2}) {
      const double likelihood =
          GaussianProcess(x, y, length, noise).log_likelihood();
      if (likelihood <= best_likelihood) continue;
      best_likelihood = likelihood;
      best = {length, noise};
    }
  }
  return GaussianProcess(x, y, best.first, best.second);
}

// Returns the expected amount by which a normal variable is below `least`. A
// value above `least` counts as 0. Jones et al., "Efficient Global Optimization
// of Expensive Black-Box Functions", equation 15.
double ExpectedImprovement(double mean, double deviation, double least) {
  // The time at this point is certain, so there is nothing to average over.
  if (deviation < 1e-9) return std::max(least - mean, 0.0);
  const double z = (least - mean) / deviation;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * M_PI);
  const double below = 0.5 * std::erfc(-z / std::sqrt(2.0));
  return (least - mean) * below + deviation * density;
}

// Returns the threshold with this log2.
int64_t BytesOf(double x) {
  return static_cast<int64_t>(std::llround(std::exp2(x)));
}

}  // namespace

FusionTuner::FusionTuner(int64_t first)
    : next_(std::clamp(first, kBytesMin, kBytesMax)), best_(next_) {
  const double x = std::log2(static_cast<double>(next_));
  // Puts one trial on each side of the first trial. If one side has no room in
  // the range, puts both trials on the other side.
  const double below = x - kFirstSteps;
  const double above = x + kFirstSteps;
  first_ = {x, below < kXMin ? above + kFirstSteps : below,
            above > kXMax ? below - kFirstSteps : above};
}

void FusionTuner::Observe(double seconds) {
  NEREUS_CHECK(!done_ && seconds > 0) << seconds;
  trials_.push_back({std::log2(static_cast<double>(next_)), seconds});
  Learn();
  if (trials() == kTrialsMax) done_ = true;
  // The first three trials are fixed, and the search cannot end before them:
  // two points cannot tell noise from slope.
  if (trials_.size() < first_.size()) {
    done_ = false;
    next_ = BytesOf(first_[trials_.size()]);
  }
}

void FusionTuner::Learn() {
  const auto count = static_cast<double>(trials_.size());
  double mean = 0;
  for (const Trial& trial : trials_) mean += trial.seconds / count;
  double variance = 0;
  for (const Trial& trial : trials_) {
    variance += (trial.seconds - mean) * (trial.seconds - mean) / count;
  }
  // Ends the search if all times are nearly equal: there is nothing to find,
  // and `scale` may be 0.
  const double scale = std::sqrt(variance);
  done_ = scale < kImprovementMin * mean;
  std::vector<double> x;
  std::vector<double> y;
  for (const Trial& trial : trials_) {
    x.push_back(trial.x);
    y.push_back(done_ ? 0.0 : (trial.seconds - mean) / scale);
  }
  const GaussianProcess process = Fit(x, y);
  double least = std::numeric_limits<double>::infinity();
  for (const Trial& trial : trials_) {
    const double expected = process.At(trial.x).first;
    if (expected >= least) continue;
    least = expected;
    best_ = BytesOf(trial.x);
    best_seconds_ = trial.seconds;
  }
  if (done_) return;
  double best_improvement = 0;
  for (double at = kXMin; at <= kXMax; at += kXStep) {
    const auto [expected, deviation] = process.At(at);
    const double improvement = ExpectedImprovement(expected, deviation, least);
    if (improvement <= best_improvement) continue;
    best_improvement = improvement;
    next_ = BytesOf(at);
  }
  done_ = best_improvement * scale < kImprovementMin * best_seconds_;
}

}  // namespace nereus
