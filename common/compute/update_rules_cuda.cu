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
                          float* updated) {
  ForEachValue(
      length,
      [=](int64_t i) {
        return SgdValues{gradient[i], parameters[i], velocity[i]};
      },
      [=](int64_t i, SgdValues values) {
        const float g = step.gradient_scale * values.gradient +
                        step.weight_decay * values.parameter;
        const float v = step.momentum * values.velocity + g;
        velocity[i] = v;
        updated[i] = values.parameter - step.learning_rate * v;
      });
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
                           float* updated) {
  ForEachValue(
      length,
      [=](int64_t i) {
        return AdamValues{gradient[i], parameters[i], first[i], second[i]};
      },
      [=](int64_t i, AdamValues values) {
        const float g = step.gradient_scale * values.gradient +
                        step.weight_decay * values.parameter;
        const float m = step.beta1 * values.first + (1.0f - step.beta1) * g;
        const float v =
            step.beta2 * values.second + (1.0f - step.beta2) * g * g;
        first[i] = m;
        second[i] = v;
        updated[i] =
            values.parameter -
            step.step_size * m / (sqrtf(v * step.second_scale) + step.epsilon);
      });
}

}  // namespace

cudaError_t ApplySgdCuda(const SgdStep& step, int64_t length,
                         const float* gradient, const float* parameters,
                         float* velocity, float* updated, cudaStream_t stream) {
  return Launch(SgdKernel, BlocksFor(length), kThreads, stream, step, length,
                gradient, parameters, velocity, updated);
}

cudaError_t ApplyAdamCuda(const AdamStep& step, int64_t length,
                          const float* gradient, const float* parameters,
                          float* first, float* second, float* updated,
                          cudaStream_t stream) {
  return Launch(AdamKernel, BlocksFor(length), kThreads, stream, step, length,
                gradient, parameters, first, second, updated);
}

}  // namespace nereus
