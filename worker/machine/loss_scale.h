#pragma once

#include <cstdint>

namespace nereus {

// What a worker multiplies its loss by so that gradients which it computes in
// fp16 do not vanish: as large as goes without overflow (Micikevicius et al.,
// "Mixed Precision Training", section 3.2). An overflow costs all workers the
// step, and the one that had it half of its scale; many steps without one
// double it. A power of two: scaling rounds nothing. Each worker has a scale of
// its own, by which its gradients are divided again.
class LossScale {
 public:
  static constexpr float kFirst = 0x1p16f;
  static constexpr float kMin = 1.0f;
  static constexpr float kMax = 0x1p24f;
  static constexpr int kStepsUntilDoubled = 2000;

  float value() const { return value_; }

  // What a step came to. Steps ascend; one that was heard of counts no more.
  // `own`: if it is skipped, for this worker's gradient.
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

  // The job goes back: steps are done again.
  void OnRestart() { last_step_ = -1; }

 private:
  float value_ = kFirst;
  int64_t last_step_ = -1;
  int good_steps_ = 0;
};

}  // namespace nereus
