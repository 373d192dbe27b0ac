#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nereus {

// What layers do on a GPU beside their products, which are cuBLAS's. The same
// arithmetic in the same order as activation.h, convolution.h, pooling.h and
// loss.h, and the same bits, but for loss.h's exp and log.
//
// Pointers are of device memory, aligned to their types; results overlap
// nothing else, unless it says "in place". Work is queued on `stream`; nothing
// waits. Errors: what the launch came to.

// values[i][j] += bias[j], in place: {rows, columns}.
cudaError_t AddBiasCuda(int64_t rows, int64_t columns, const float* bias,
                        float* values, cudaStream_t stream);

// values[i] *= factor, in place.
cudaError_t ScaleCuda(int64_t length, float factor, float* values,
                      cudaStream_t stream);

cudaError_t ReluForwardCuda(int64_t length, float* values, cudaStream_t stream);
cudaError_t ReluBackwardCuda(int64_t length, const float* values,
                             float* gradient, cudaStream_t stream);

// ConvolutionShape, and how many images.
struct PatchGeometry {
  int64_t images = 0;
  int64_t height = 0;  // Of the input.
  int64_t width = 0;
  int64_t channels = 0;
  int64_t kernel = 0;
  int64_t padding = 0;
};
cudaError_t ImagesToPatchesCuda(const PatchGeometry& geometry,
                                const float* input, float* patches,
                                cudaStream_t stream);
cudaError_t PatchesToImagesCuda(const PatchGeometry& geometry,
                                const float* patches, float* input,
                                cudaStream_t stream);

// Of `images` images of {height, width, channels}.
cudaError_t MaxPoolForwardCuda(int64_t images, int64_t height, int64_t width,
                               int64_t channels, const float* input,
                               float* output, cudaStream_t stream);
cudaError_t MaxPoolBackwardCuda(int64_t images, int64_t height, int64_t width,
                                int64_t channels, const float* input,
                                const float* output_gradient,
                                float* input_gradient, cudaStream_t stream);

// loss.h, but for the mean: losses, double {rows}, has each row's. `labels`:
// {rows}. Made for some hundred classes: each row has one thread.
cudaError_t SoftmaxCrossEntropyCuda(int64_t rows, int64_t classes,
                                    const float* logits, const int32_t* labels,
                                    float* gradient, double* losses,
                                    cudaStream_t stream);

// picked[i]: the first of the largest values of row i of {rows, columns}.
cudaError_t PickLargestCuda(int64_t rows, int64_t columns, const float* values,
                            int32_t* picked, cudaStream_t stream);

}  // namespace nereus
