#pragma once

#include <cstdint>

namespace nereus {

// Factor that a worker multiplies its loss by, so that gradients which it
// computes in fp16 do not become zero: the largest factor without overflow
// (Micikevicius et al., "Mixed Precision Training", section 3.2). The worker
// divides its gradients by this factor before it sends them, so the workers'
// factors may differ.
//
// An overflow in a worker's gradients skips the step on all workers and halves
// the scale of that worker. Many steps in a row without an overflow double the
// scale. The scale is a power of two, so a multiplication or division by it
// rounds nothing.
class LossScale {
 public:
  static constexpr float kFirst = 0x1p16f;  // Scale of the first step.
  static constexpr float kMin = 1.0f;       // Smallest scale.
  static constexpr float kMax = 0x1p24f;    // Largest scale.
  // Number of steps in a row without an overflow until the scale doubles.
  static constexpr int kStepsUntilDoubled = 2000;

  float value() const { return value_; }

  // Takes the outcome of a step. Ignores a step that it has taken before;
  // otherwise steps ascend. `skipped`: the job skips the step. `own`: gradients
  // of this worker are the reason for that.
  void OnStep(int64_t step, bool skipped, bool own) {
    if (step <= last_step_) return;
    last_step_ = step;
    if (skipped && !own) return;
    if (skipped) {
      value_ = value_ > kMin ? value_ / 2 : kMin;
      good_steps_ = 0;
    } else if (++good_steps_ == kStepsUntilDoubled) {
      value_ = value_ < kMax ? value_ * 2 : kMax;
      good_steps_ = 0;
    }
  }

  // Notes that the job has gone back: OnStep takes steps that are done again.
  void OnRestart() { last_step_ = -1; }

 private:
  float value_ = kFirst;    // The scale.
  int64_t last_step_ = -1;  // The last step that counted.
  int good_steps_ = 0;      // Steps without an overflow since the last change.
};

}  // namespace nereus
