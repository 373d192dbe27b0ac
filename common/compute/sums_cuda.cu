#include "common/compute/launch_cuda.h"
#include "common/compute/sums_cuda.h"
#include "common/compute/update_rules.h"

namespace nereus {
namespace {

__global__ void FindTooLargeKernel(const float* values, int64_t count,
                                   int64_t* first) {
  constexpr uint32_t kMagnitude = 0x7fffffff;
  // The bits of magnitudes have the order of the magnitudes, NaNs come last.
  const uint32_t too_large = __float_as_uint(kTooLarge);
  int64_t found = kNoneFound;
  ForEachValue(
      count, [=](int64_t i) { return __float_as_uint(values[i]); },
      [&](int64_t i, uint32_t bits) {
        if ((bits & kMagnitude) >= too_large && i < found) found = i;
      });
  // Few threads come to the atomic: NaNs are rare. If all values are NaN, most
  // threads already see a lower index in *first and skip it.
  if (found < kNoneFound && found < *first) {
    atomicMin(reinterpret_cast<unsigned long long*>(first),
              static_cast<unsigned long long>(found));
  }
}

}  // namespace

cudaError_t FindTooLargeCuda(const float* values, int64_t count, int64_t* first,
                             cudaStream_t stream) {
  return Launch(FindTooLargeKernel, BlocksFor(count), kThreads, stream, values,
                count, first);
}

}  // namespace nereus
