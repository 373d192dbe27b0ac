#include "common/compute/blocks_cuda.h"
#include "common/compute/launch_cuda.h"

namespace nereus {
namespace {

// Values that a thread treats at a time.
constexpr int kAtOnce = 8;

// Returns the sum of `mine` over the threads of the thread block. Each thread
// of the block calls this.
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

// Runs one thread block for each piece. Thread t treats values t, t + 256, ...
// of the piece.
__global__ void SplitPiecesKernel(BlockPieces pieces, float momentum,
                                  float weight_decay, const PieceUse* uses,
                                  const float* __restrict__ parameters,
                                  float* __restrict__ gradient,
                                  float* __restrict__ velocity,
                                  float* __restrict__ held, float* norms) {
  const PieceUse use = uses[blockIdx.x];
  const bool holds = !Travels(use);
  const bool has_held = use == PieceUse::kHeld || use == PieceUse::kResumes;
  const int64_t end = pieces.End(blockIdx.x);
  float sum = 0.0f;
  for (int64_t from = pieces.Begin(blockIdx.x) + threadIdx.x; from < end;
       from += kAtOnce * kThreads) {
    // Loads all values before it stores any: with few loads under way, the
    // memory would idle.
    float pushed[kAtOnce];
    float parameter[kAtOnce];
    float velocity_before[kAtOnce];
    float held_before[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = from + k * kThreads;
      if (i >= end) break;
      pushed[k] = gradient[i];
      parameter[k] = holds ? parameters[i] : 0.0f;
      velocity_before[k] = has_held ? velocity[i] : 0.0f;
      held_before[k] = has_held ? held[i] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = from + k * kThreads;
      if (i >= end) break;
      const float decayed =
          holds ? pushed[k] + weight_decay * parameter[k] : pushed[k];
      const float v =
          has_held ? momentum * velocity_before[k] + decayed : decayed;
      const float h = has_held ? held_before[k] + v : decayed;
      if (holds) {
        velocity[i] = v;
        held[i] = h;
      } else if (has_held) {
        gradient[i] = h;
      }
      sum += fabsf(holds ? h : pushed[k]);
    }
  }
  sum = SumOfThreads(sum);
  if (threadIdx.x == 0) norms[blockIdx.x] = sum;
}

// Returns the index in `packed` at which piece chosen[index] begins. `first` is
// chosen[0]. All pieces before it are whole blocks, except that piece 0 of the
// layer lacks `skipped` values.
__device__ int64_t PackedBegin(const BlockPieces& pieces, int64_t index,
                               int32_t first) {
  return index * pieces.block - (index > 0 && first == 0 ? pieces.skipped : 0);
}

__global__ void GatherPiecesKernel(BlockPieces pieces, const int32_t* chosen,
                                   const float* __restrict__ values,
                                   float* __restrict__ destination) {
  const int32_t piece = chosen[blockIdx.x];
  const int64_t begin = pieces.Begin(piece);
  const int64_t length = pieces.End(piece) - begin;
  const int64_t packed = PackedBegin(pieces, blockIdx.x, chosen[0]);
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    destination[packed + i] = values[begin + i];
  }
}

}  // namespace

cudaError_t SplitPiecesCuda(const BlockPieces& pieces, float momentum,
                            float weight_decay, const PieceUse* uses,
                            const float* parameters, float* gradient,
                            float* velocity, float* held, float* norms,
                            cudaStream_t stream) {
  return Launch(SplitPiecesKernel, pieces.Count(), kThreads, stream, pieces,
                momentum, weight_decay, uses, parameters, gradient, velocity,
                held, norms);
}

cudaError_t GatherPiecesCuda(const BlockPieces& pieces, const int32_t* chosen,
                             int64_t count, const float* values, float* packed,
                             cudaStream_t stream) {
  return Launch(GatherPiecesKernel, count, kThreads, stream, pieces, chosen,
                values, packed);
}

}  // namespace nereus
