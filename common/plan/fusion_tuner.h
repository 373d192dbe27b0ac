#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace nereus {

// Search for the fusion threshold with the shortest iterations, from a few
// measurements: Bayesian optimisation, as in Zhang et al., "DeAR", section IV.
// The tuner models the time, as a function of the threshold's logarithm, as a
// Gaussian process. The next trial is the threshold with the largest expected
// improvement over the best one. The paper searches from 1 to 100 MB. Here
// rounds overlap and fusion saves only messages, so small thresholds gain most,
// and the range of the search begins at 1 KiB.
//
//   while (!tuner.done()) tuner.Observe(TimeOf(tuner.next()));
//
// Pure: equal measurements give equal thresholds. Not thread-safe. Bounded by
// kTrialsMax trials. best() is the best threshold on the fitted curve, and not
// the one with the shortest measured time, so that a single lucky measurement
// does not win.
class FusionTuner {
 public:
  // Largest number of trials.
  static constexpr int kTrialsMax = 12;
  // Smallest and largest threshold that the search tries: 1 KiB and 64 MiB.
  static constexpr int64_t kBytesMin = int64_t{1} << 10;
  static constexpr int64_t kBytesMax = int64_t{1} << 26;
  // Threshold of the first trial unless the caller names another: good for most
  // jobs.
  static constexpr int64_t kBytesFirst = int64_t{1} << 16;

  // Begins with the threshold `first`, clamped to [kBytesMin, kBytesMax].
  explicit FusionTuner(int64_t first = kBytesFirst);

  // Threshold to measure next. REQUIRES: !done().
  int64_t next() const { return next_; }

  // Takes the measured time of an iteration with the threshold next(), in
  // seconds, > 0. REQUIRES: !done().
  void Observe(double seconds);

  // True if the search is over: after kTrialsMax trials, or after three or more
  // trials if no other threshold is expected to shorten the time by half a
  // percent or more.
  bool done() const { return done_; }
  // Number of trials so far.
  int trials() const { return static_cast<int>(trials_.size()); }

  // Threshold that was tried and has the shortest time on the fitted curve.
  // Before the first trial, the first threshold.
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

  // log2 of the first three thresholds. They are fixed before the first trial.
  std::array<double, 3> first_;
  std::vector<Trial> trials_;  // All measurements.
  int64_t next_;               // Threshold of the next trial.
  int64_t best_;               // Best threshold so far.
  double best_seconds_ = 0;    // Measured seconds with best_.
  bool done_ = false;          // True if the search is over.
};

}  // namespace nereus
