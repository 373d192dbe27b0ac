#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace nereus {

// Finds the fusion threshold with which iterations take least, from a few
// measurements: Bayesian optimisation as DeAR does it (Zhang et al., section
// IV). The time as a function of the threshold's logarithm is a Gaussian
// process, and the next threshold to try is the one where it is expected to
// improve most on the best so far.
//
// Pure: equal measurements give equal thresholds.
class FusionTuner {
 public:
  static constexpr int kTrialsMax = 12;
  // Between them it looks: 1 KiB to 64 MiB.
  static constexpr int64_t kBytesMin = int64_t{1} << 10;
  static constexpr int64_t kBytesMax = int64_t{1} << 26;
  // A good guess.
  static constexpr int64_t kBytesFirst = int64_t{1} << 16;

  // Begins with `first`, or what is nearest to it of what is looked at.
  explicit FusionTuner(int64_t first = kBytesFirst);

  // The threshold to measure next. REQUIRES: !done().
  int64_t next() const { return next_; }

  // What an iteration took with next(), in seconds, > 0. REQUIRES: !done().
  void Observe(double seconds);

  // After kTrialsMax trials, or when no improvement of half a percent is to be
  // expected.
  bool done() const { return done_; }
  int trials() const { return static_cast<int>(trials_.size()); }

  // Of those that were measured, the one with which an iteration takes least,
  // as far as can be told from all measurements together: one alone may have
  // been lucky. Before the first trial, where it begins.
  int64_t best() const { return best_; }
  double best_seconds() const { return best_seconds_; }  // As measured.

 private:
  struct Trial {
    double x = 0;  // log2 of the threshold.
    double seconds = 0;
  };

  // From all trials: the best one, and the next.
  void Learn();

  // What is tried before there is anything to learn from: log2 of it.
  std::array<double, 3> first_;
  std::vector<Trial> trials_;
  int64_t next_;
  int64_t best_;
  double best_seconds_ = 0;
  bool done_ = false;
};

}  // namespace nereus
