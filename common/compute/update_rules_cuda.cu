#include "common/compute/bad_result_cuda.h"
#include "common/compute/launch_cuda.h"
#include "common/compute/update_rules_cuda.h"

// The build compiles this file with --fmad=false, which forbids fused
// multiply-adds. nvcc's default rounds division and square root as IEEE 754
// requires. Without both, the bits would differ from the CPU's, and so would
// the replicas of workers with and without a GPU.

namespace nereus {
namespace {

// Values that a thread loads for one parameter.
struct SgdValues {
  float gradient;
  float parameter;
  float velocity;
};

__global__ void SgdKernel(SgdStep step, int64_t length, const float* gradient,
                          const float* parameters, float* velocity,
                          float* updated, NoteBadResult note) {
  int64_t bad = BadResult::kNone;
  ForEachValue(
      length,
      [=](int64_t i) {
        return SgdValues{gradient[i], parameters[i], velocity[i]};
      },
      [&](int64_t i, SgdValues values) {
        const float g = step.gradient_scale * values.gradient +
                        step.weight_decay * values.parameter;
        const float v = step.momentum * values.velocity + g;
        const float direction = step.looks_ahead ? g + step.momentum * v : v;
        const float parameter =
            values.parameter - step.learning_rate * direction;
        velocity[i] = v;
        updated[i] = parameter;
        // If the velocity is not finite, neither is the parameter.
        if (!IsFiniteCuda(parameter)) bad = i;
      });
  if (bad >= 0) Note(note, bad);
}

// Values that a thread loads for one parameter.
struct AdamValues {
  float gradient;
  float parameter;
  float first;
  float second;
};

__global__ void AdamKernel(AdamStep step, int64_t length, const float* gradient,
                           const float* parameters, float* first, float* second,
                           float* updated, NoteBadResult note) {
  int64_t bad = BadResult::kNone;
  ForEachValue(
      length,
      [=](int64_t i) {
        return AdamValues{gradient[i], parameters[i], first[i], second[i]};
      },
      [&](int64_t i, AdamValues values) {
        const float g = step.gradient_scale * values.gradient +
                        step.weight_decay * values.parameter;
        const float m = step.beta1 * values.first + (1.0f - step.beta1) * g;
        const float v =
            step.beta2 * values.second + (1.0f - step.beta2) * g * g;
        const float parameter =
            step.kept * values.parameter -
            step.step_size * m / (sqrtf(v * step.second_scale) + step.epsilon);
        first[i] = m;
        second[i] = v;
        updated[i] = parameter;
        // With an infinite second moment, the parameter stays as it is.
        if (!IsFiniteCuda(parameter) || !IsFiniteCuda(v)) bad = i;
      });
  if (bad >= 0) Note(note, bad);
}

__global__ void CheckFiniteKernel(const float* values, int64_t count,
                                  NoteBadResult note) {
  int64_t bad = BadResult::kNone;
  ForEachValue(
      count, [=](int64_t i) { return values[i]; },
      [&](int64_t i, float value) {
        if (!IsFiniteCuda(value)) bad = i;
      });
  if (bad >= 0) Note(note, bad);
}

}  // namespace

cudaError_t ApplySgdCuda(const SgdStep& step, int64_t length,
                         const float* gradient, const float* parameters,
                         float* velocity, float* updated,
                         const NoteBadResult& note, cudaStream_t stream) {
  return Launch(SgdKernel, BlocksFor(length), kThreads, stream, step, length,
                gradient, parameters, velocity, updated, note);
}

cudaError_t ApplyAdamCuda(const AdamStep& step, int64_t length,
                          const float* gradient, const float* parameters,
                          float* first, float* second, float* updated,
                          const NoteBadResult& note, cudaStream_t stream) {
  return Launch(AdamKernel, BlocksFor(length), kThreads, stream, step, length,
                gradient, parameters, first, second, updated, note);
}

cudaError_t CheckFiniteCuda(const float* values, int64_t count,
                            const NoteBadResult& note, cudaStream_t stream) {
  return Launch(CheckFiniteKernel, BlocksFor(count), kThreads, stream, values,
                count, note);
}

}  // namespace nereus
