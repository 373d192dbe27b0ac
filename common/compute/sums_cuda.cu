#include "common/compute/launch_cuda.h"
#include "common/compute/sums_cuda.h"

namespace nereus {
namespace {

__global__ void FindNotFiniteKernel(const float* values, int64_t count,
                                    int64_t* first) {
  constexpr uint32_t kExponent = 0x7f800000;
  int64_t found = kAllFinite;
  ForEachValue(
      count, [=](int64_t i) { return __float_as_uint(values[i]); },
      [&](int64_t i, uint32_t bits) {
        if ((bits & kExponent) == kExponent && i < found) found = i;
      });
  // Few threads come to the atomic: NaNs are rare. If all values are NaN, most
  // threads already see a lower index in *first and skip it.
  if (found < kAllFinite && found < *first) {
    atomicMin(reinterpret_cast<unsigned long long*>(first),
              static_cast<unsigned long long>(found));
  }
}

}  // namespace

cudaError_t FindNotFiniteCuda(const float* values, int64_t count,
                              int64_t* first, cudaStream_t stream) {
  return Launch(FindNotFiniteKernel, BlocksFor(count), kThreads, stream, values,
                count, first);
}

}  // namespace nereus
