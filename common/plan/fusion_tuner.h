#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace nereus {

// Search for the fusion threshold with the shortest iterations, from a few
// measurements: Bayesian optimisation, as in Zhang et al., "DeAR", section IV.
// The time as a function of the threshold's logarithm is modelled as a Gaussian
// process. The next trial is the threshold with the largest expected
// improvement over the best one. The paper searches 1 to 100 MB. Here rounds
// overlap and fusion saves only messages, so small thresholds gain most, and
// the search includes them.
//
//   while (!tuner.done()) tuner.Observe(TimeOf(tuner.next()));
//
// Pure: equal measurements give equal thresholds. Not thread-safe. Bounded by
// kTrialsMax trials. A single lucky measurement does not win: best() is taken
// from the fitted curve and not from the raw times.
class FusionTuner {
 public:
  // Largest number of trials.
  static constexpr int kTrialsMax = 12;
  // Smallest and largest threshold that the search tries: 1 KiB and 64 MiB.
  static constexpr int64_t kBytesMin = int64_t{1} << 10;
  static constexpr int64_t kBytesMax = int64_t{1} << 26;
  // Threshold that is good for most jobs: the first trial.
  static constexpr int64_t kBytesFirst = int64_t{1} << 16;

  // Begins with the threshold `first`, clamped to [kBytesMin, kBytesMax].
  explicit FusionTuner(int64_t first = kBytesFirst);

  // Threshold to measure next. REQUIRES: !done().
  int64_t next() const { return next_; }

  // Takes the time of an iteration with next(), in seconds, > 0. REQUIRES:
  // !done().
  void Observe(double seconds);

  // True if the search is over: after kTrialsMax trials, or after three or more
  // if no threshold is expected to improve the time by half a percent.
  bool done() const { return done_; }
  // Number of trials so far.
  int trials() const { return static_cast<int>(trials_.size()); }

  // Measured threshold with the shortest time on the fitted curve. Before the
  // first trial: the first threshold.
  int64_t best() const { return best_; }
  // Measured seconds of an iteration with best(); 0 before the first trial.
  double best_seconds() const { return best_seconds_; }

 private:
  // Measurement with one threshold.
  struct Trial {
    double x = 0;        // log2 of the threshold.
    double seconds = 0;  // Time of an iteration.
  };

  // Fits the model to all trials; sets best_, next_ and done_.
  void Learn();

  // log2 of the first three thresholds. They do not depend on measurements.
  std::array<double, 3> first_;
  std::vector<Trial> trials_;  // All measurements.
  int64_t next_;               // Threshold of the next trial.
  int64_t best_;               // Best threshold so far.
  double best_seconds_ = 0;    // Measured seconds with best_.
  bool done_ = false;          // True if the search is over.
};

}  // namespace nereus
