#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/gemm.h"
#include "worker/trainer/device.h"
#include "worker/trainer/layers.h"

namespace nereus {
namespace {

// Largest error that a sleep is taken to have. If Spend is called later after
// free_at_ than this, the device was idle.
constexpr absl::Duration kSleepErrorMax = absl::Microseconds(500);

// Device of this process's CPU: calls the plain functions of this folder and of
// common/compute.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(bool spins) : spins_(spins) {}

  std::string name() const override { return "cpu"; }
  absl::StatusOr<FloatArray> Allocate(int64_t count) override {
    auto values = std::make_shared<std::vector<float>>(count);
    return FloatArray{std::shared_ptr<float>(values, values->data()), count};
  }
  void Affine(int64_t rows, int64_t m, int64_t n, const float* input,
              const float* parameters, float* output) override {
    // The product is added to the bias, which saves a second pass.
    const float* const bias = parameters + m * n;
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(bias, m, output + row * m);
    }
    Gemm(Transpose::kNo, Transpose::kYes, rows, m, n, 1.0f, input, parameters,
         1.0f, output);
  }
  void AffineInputGradient(int64_t rows, int64_t m, int64_t n,
                           const float* output_gradient,
                           const float* parameters,
                           float* input_gradient) override {
    Gemm(Transpose::kNo, Transpose::kNo, rows, n, m, 1.0f, output_gradient,
         parameters, 0.0f, input_gradient);
  }
  void AffineGradient(int64_t rows, int64_t m, int64_t n,
                      const float* output_gradient, const float* input,
                      float* gradient) override {
    FactorGradient(rows, m, n, /*bias=*/true, /*scale=*/1.0f, output_gradient,
                   input, gradient);
  }
  void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                       const float* input, float* patches) override {
    nereus::ImagesToPatches(shape, images, input, patches);
  }
  void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                       const float* patches, float* input) override {
    nereus::PatchesToImages(shape, images, patches, input);
  }
  void MaxPoolForward(const ImageShape& shape, int64_t images,
                      const float* input, float* output) override {
    nereus::MaxPoolForward(shape, images, input, output);
  }
  void MaxPoolBackward(const ImageShape& shape, int64_t images,
                       const float* input, const float* output_gradient,
                       float* input_gradient) override {
    nereus::MaxPoolBackward(shape, images, input, output_gradient,
                            input_gradient);
  }
  void ReluForward(int64_t length, float* values) override {
    nereus::ReluForward(length, values);
  }
  void ReluBackward(int64_t length, const float* values,
                    float* gradient) override {
    nereus::ReluBackward(length, values, gradient);
  }
  int64_t Optimize(const OptimizerOptions& optimizer, int64_t step,
                   int64_t count, const float* gradient, float* parameters,
                   float* state) override {
    return ApplyOptimizer(optimizer, step, count, /*gradient_scale=*/1.0f,
                          gradient, parameters, state, parameters);
  }
  // Sleeps until the time at which a device would have done this work. The
  // device begins it when its previous work is done. A sleep takes longer than
  // asked, and the errors of hundreds of short sleeps add up. So the next sleep
  // is shorter by the error of the last one.
  void Spend(absl::Duration time) override {
    if (time == absl::ZeroDuration()) return;
    if (spins_) return Spin(time);
    const absl::Time now = SteadyNow();
    if (now - free_at_ > kSleepErrorMax) free_at_ = now;
    free_at_ += time;
    absl::SleepFor(free_at_ - now);
  }
  void Mark() override { mark_before_ = std::exchange(mark_, SteadyNow()); }
  absl::Duration BetweenMarks() override { return mark_ - mark_before_; }
  // Host memory is device memory here: both are plain copies.
  void Write(absl::Span<const float> values, float* to) override {
    absl::c_copy(values, to);
  }
  void Read(const float* from, absl::Span<float> values) override {
    std::copy_n(from, values.size(), values.begin());
  }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  // Uses a core until this thread has had `time` of it.
  static void Spin(absl::Duration time) {
    const auto used = [] {
      timespec now = {};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return absl::DurationFromTimespec(now);
    };
    const absl::Duration end = used() + time;
    while (used() < end) {
    }
  }

  const bool spins_;  // See MakeCpuDevice.
  // Time at which the device is free, in a replay.
  absl::Time free_at_ = absl::InfinitePast();
  // Times of the last two calls of Mark.
  absl::Time mark_before_;
  absl::Time mark_;
};

}  // namespace

std::shared_ptr<Device> MakeCpuDevice(bool spins) {
  return std::make_shared<CpuDevice>(spins);
}

}  // namespace nereus
