#include <cuda_fp16.h>

#include "common/compute/frame_halves.h"
#include "common/compute/frame_halves_cuda.h"
#include "common/compute/launch_cuda.h"

namespace nereus {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;

// The instructions of the hardware lose what a NaN has in it.

__device__ uint16_t ToBfloat16(float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool nan = (bits & kMagnitude) > kInfinity;
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}

__device__ float FromBfloat16(uint16_t half) {
  return __uint_as_float(static_cast<uint32_t>(half) << 16);
}

__device__ uint16_t ToFloat16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & kMagnitude) > kInfinity) {
    return static_cast<uint16_t>(((bits >> 16) & 0x8000) | 0x7e00 |
                                 ((bits >> 13) & 0x3ff));
  }
  return __half_as_ushort(__float2half_rn(value));
}

__device__ float FromFloat16(uint16_t half) {
  if ((half & 0x7fff) > 0x7c00) {
    return __uint_as_float(((half & 0x8000u) << 16) | 0x7fc00000u |
                           ((half & 0x3ffu) << 13));
  }
  return __half2float(__ushort_as_half(half));
}

__global__ void ToBfloat16Kernel(const float* values, int64_t count,
                                 uint16_t* halves) {
  ForEachValue(
      count, [=](int64_t i) { return values[i]; },
      [=](int64_t i, float value) { halves[i] = ToBfloat16(value); });
}

__global__ void FromBfloat16Kernel(const uint16_t* halves, int64_t count,
                                   float* values) {
  ForEachValue(
      count, [=](int64_t i) { return halves[i]; },
      [=](int64_t i, uint16_t half) { values[i] = FromBfloat16(half); });
}

__global__ void ClearKernel(int32_t* values, int64_t count) {
  ForEachValue(
      count, [](int64_t) { return 0; },
      [=](int64_t i, int32_t zero) { values[i] = zero; });
}

// The largest finite magnitude of each frame, as bits, whose order is that of
// the magnitudes.
__global__ void LargestKernel(const float* values, int64_t count, int64_t frame,
                              int64_t blocks, int32_t* largest) {
  __shared__ int32_t found[kThreads];
  const Piece piece = PieceOfBlock(count, frame, blocks);
  int32_t mine = 0;
  ForEachValue(
      piece.block, piece.length,
      [&](int64_t i) { return __float_as_uint(values[piece.first + i]); },
      [&](int64_t, uint32_t bits) {
        const uint32_t magnitude = bits & kMagnitude;
        if (magnitude < kInfinity) {
          mine = max(mine, static_cast<int32_t>(magnitude));
        }
      });
  found[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned n = kThreads / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) {
      found[threadIdx.x] = max(found[threadIdx.x], found[threadIdx.x + n]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicMax(&largest[piece.index], found[0]);
}

__global__ void ExponentKernel(int32_t* exponents, int64_t count) {
  ForEachValue(
      count, [=](int64_t i) { return exponents[i]; },
      [=](int64_t i, int32_t largest) {
        exponents[i] = HalfExponent(static_cast<uint32_t>(largest));
      });
}

// value * 2^exponent; a NaN stays the one that it is.
__device__ float Scale(float value, int exponent) {
  const bool nan = (__float_as_uint(value) & kMagnitude) > kInfinity;
  return nan ? value : value * __uint_as_float(PowerOfTwoBits(exponent));
}

__global__ void ToFloat16Kernel(const float* values, int64_t count,
                                int64_t frame, int64_t blocks,
                                const int32_t* exponents, uint16_t* halves) {
  const Piece piece = PieceOfBlock(count, frame, blocks);
  const int exponent = exponents[piece.index];
  ForEachValue(
      piece.block, piece.length,
      [&](int64_t i) { return values[piece.first + i]; },
      [&](int64_t i, float value) {
        halves[piece.first + i] = ToFloat16(Scale(value, -exponent));
      });
}

__global__ void FromFloat16Kernel(const uint16_t* halves, int64_t count,
                                  int64_t frame, int64_t blocks,
                                  const int32_t* exponents, float* values) {
  const Piece piece = PieceOfBlock(count, frame, blocks);
  const int exponent = exponents[piece.index];
  ForEachValue(
      piece.block, piece.length,
      [&](int64_t i) { return halves[piece.first + i]; },
      [&](int64_t i, uint16_t half) {
        values[piece.first + i] = Scale(FromFloat16(half), exponent);
      });
}

}  // namespace

cudaError_t ToBfloat16Cuda(const float* values, int64_t count, uint16_t* halves,
                           cudaStream_t stream) {
  return Launch(ToBfloat16Kernel, BlocksFor(count), kThreads, stream, values,
                count, halves);
}

cudaError_t FromBfloat16Cuda(const uint16_t* halves, int64_t count,
                             float* values, cudaStream_t stream) {
  return Launch(FromBfloat16Kernel, BlocksFor(count), kThreads, stream, halves,
                count, values);
}

cudaError_t EncodeFloat16FramesCuda(const float* values, int64_t count,
                                    int64_t frame, uint16_t* halves,
                                    int32_t* exponents, cudaStream_t stream) {
  const int64_t frames = BlocksFor(count, frame);
  const int64_t blocks = BlocksFor(std::min(frame, count));
  cudaError_t error = Launch(ClearKernel, BlocksFor(frames), kThreads, stream,
                             exponents, frames);
  if (error == cudaSuccess) {
    error = Launch(LargestKernel, frames * blocks, kThreads, stream, values,
                   count, frame, blocks, exponents);
  }
  if (error == cudaSuccess) {
    error = Launch(ExponentKernel, BlocksFor(frames), kThreads, stream,
                   exponents, frames);
  }
  if (error != cudaSuccess) return error;
  return Launch(ToFloat16Kernel, frames * blocks, kThreads, stream, values,
                count, frame, blocks, exponents, halves);
}

cudaError_t DecodeFloat16FramesCuda(const uint16_t* halves, int64_t count,
                                    int64_t frame, const int32_t* exponents,
                                    float* values, cudaStream_t stream) {
  const int64_t blocks = BlocksFor(std::min(frame, count));
  return Launch(FromFloat16Kernel, BlocksFor(count, frame) * blocks, kThreads,
                stream, halves, count, frame, blocks, exponents, values);
}

}  // namespace nereus
