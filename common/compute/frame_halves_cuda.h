#ifndef NEREUS_COMMON_COMPUTE_FRAME_HALVES_CUDA_H_
#define NEREUS_COMMON_COMPUTE_FRAME_HALVES_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// Between float32 values and what frames of 16-bit floats carry, on a GPU,
// frame after frame in one array, as it is staged for the network. The same
// bits as common/compute/half.h, and frame_halves.h for fp16.
//
//   values     float32, {count}
//   halves     bfloat16 or fp16, {count}; the frames' payloads
//   frame      values of a frame, >= 1; the last may be short
//   exponents  int32, {ceil(count / frame)}: of each frame of fp16
//
// Pointers are of device memory, aligned to their types; source and destination
// do not overlap. Work is queued on `stream`; nothing waits. Errors: what the
// launch came to.

cudaError_t ToBfloat16Cuda(const float* values, int64_t count, uint16_t* halves,
                           cudaStream_t stream);
cudaError_t FromBfloat16Cuda(const uint16_t* halves, int64_t count,
                             float* values, cudaStream_t stream);

cudaError_t EncodeFloat16FramesCuda(const float* values, int64_t count,
                                    int64_t frame, uint16_t* halves,
                                    int32_t* exponents, cudaStream_t stream);
cudaError_t DecodeFloat16FramesCuda(const uint16_t* halves, int64_t count,
                                    int64_t frame, const int32_t* exponents,
                                    float* values, cudaStream_t stream);

}  // namespace nereus

#endif  // NEREUS_COMMON_COMPUTE_FRAME_HALVES_CUDA_H_
