#include "common/compute/bfloat16_cuda.h"
#include "common/compute/launch_cuda.h"

namespace nereus {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;

// Rounds in integers, as the CPU does: the GPU's own instruction loses the
// payload of a NaN, and the bits would depend on the device.
__device__ uint16_t ToBfloat16(float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool nan = (bits & kMagnitude) > kInfinity;
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}

__global__ void ToBfloat16Kernel(const float* values, int64_t count,
                                 uint16_t* halves) {
  ForEachValue(
      count, [=](int64_t i) { return values[i]; },
      [=](int64_t i, float value) { halves[i] = ToBfloat16(value); });
}

}  // namespace

cudaError_t ToBfloat16Cuda(const float* values, int64_t count, uint16_t* halves,
                           cudaStream_t stream) {
  return Launch(ToBfloat16Kernel, BlocksFor(count), kThreads, stream, values,
                count, halves);
}

}  // namespace nereus
