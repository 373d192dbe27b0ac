#include "common/compute/blocks_cuda.h"
#include "common/compute/launch_cuda.h"

namespace nereus {
namespace {

// Values a thread holds back at a time.
constexpr int kAtOnce = 8;

// The sum of what the block's threads have, for thread 0.
__device__ float SumOfThreads(float mine) {
  __shared__ float sums[kThreads];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned n = kThreads / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
    __syncthreads();
  }
  return sums[0];
}

// One block per piece. Thread t adds values t, t + 256, ...
__global__ void PieceNormsKernel(BlockPieces pieces, const float* values,
                                 float* norms) {
  const int64_t end = pieces.End(blockIdx.x);
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t i = pieces.Begin(blockIdx.x) + threadIdx.x; i < end;
       i += kThreads) {
    sum += fabsf(values[i]);
  }
  sum = SumOfThreads(sum);
  if (threadIdx.x == 0) norms[blockIdx.x] = sum;
}

__global__ void HoldBackKernel(BlockPieces pieces, float momentum,
                               float weight_decay, const PieceUse* uses,
                               const float* __restrict__ gradient,
                               const float* __restrict__ parameters,
                               float* __restrict__ velocity,
                               float* __restrict__ held, float* norms) {
  const PieceUse use = uses[blockIdx.x];
  if (use == PieceUse::kTravels) {
    if (threadIdx.x == 0) norms[blockIdx.x] = 0.0f;
    return;
  }
  const bool first = use == PieceUse::kHeldFirst;
  const int64_t end = pieces.End(blockIdx.x);
  float sum = 0.0f;
  for (int64_t from = pieces.Begin(blockIdx.x) + threadIdx.x; from < end;
       from += kAtOnce * kThreads) {
    // All are loaded before any is stored.
    float decayed[kAtOnce];
    float before[kAtOnce];
    float held_before[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = from + k * kThreads;
      if (i >= end) break;
      decayed[k] = gradient[i] + weight_decay * parameters[i];
      before[k] = first ? 0.0f : velocity[i];
      held_before[k] = first ? 0.0f : held[i];
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = from + k * kThreads;
      if (i >= end) break;
      const float v = first ? decayed[k] : momentum * before[k] + decayed[k];
      const float h = first ? decayed[k] : held_before[k] + v;
      velocity[i] = v;
      held[i] = h;
      sum += fabsf(h);
    }
  }
  sum = SumOfThreads(sum);
  if (threadIdx.x == 0) norms[blockIdx.x] = sum;
}

// Where the piece that is number `index` of the chosen goes, if the first of
// them is `first`.
__device__ int64_t PackedBegin(const BlockPieces& pieces, int64_t index,
                               int32_t first) {
  return index * pieces.block - (index > 0 && first == 0 ? pieces.skipped : 0);
}

template <bool kGathers>
__global__ void CopyPiecesKernel(BlockPieces pieces, const int32_t* chosen,
                                 const float* __restrict__ source,
                                 float* __restrict__ destination) {
  const int32_t piece = chosen[blockIdx.x];
  const int64_t begin = pieces.Begin(piece);
  const int64_t length = pieces.End(piece) - begin;
  const int64_t packed = PackedBegin(pieces, blockIdx.x, chosen[0]);
  const int64_t from = kGathers ? begin : packed;
  const int64_t to = kGathers ? packed : begin;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    destination[to + i] = source[from + i];
  }
}

}  // namespace

cudaError_t PieceNormsCuda(const BlockPieces& pieces, const float* values,
                           float* norms, cudaStream_t stream) {
  return Launch(PieceNormsKernel, pieces.Count(), kThreads, stream, pieces,
                values, norms);
}

cudaError_t HoldPiecesBackCuda(const BlockPieces& pieces, float momentum,
                               float weight_decay, const PieceUse* uses,
                               const float* gradient, const float* parameters,
                               float* velocity, float* held, float* norms,
                               cudaStream_t stream) {
  return Launch(HoldBackKernel, pieces.Count(), kThreads, stream, pieces,
                momentum, weight_decay, uses, gradient, parameters, velocity,
                held, norms);
}

cudaError_t GatherPiecesCuda(const BlockPieces& pieces, const int32_t* chosen,
                             int64_t count, const float* values, float* packed,
                             cudaStream_t stream) {
  return Launch(CopyPiecesKernel<true>, count, kThreads, stream, pieces, chosen,
                values, packed);
}

cudaError_t ScatterPiecesCuda(const BlockPieces& pieces, const int32_t* chosen,
                              int64_t count, const float* packed, float* values,
                              cudaStream_t stream) {
  return Launch(CopyPiecesKernel<false>, count, kThreads, stream, pieces,
                chosen, packed, values);
}

}  // namespace nereus
