// Kernels of the trainer's layers, one thread per value. First the kernels,
// then the functions that launch them, both in the order of layers_cuda.h. The
// kernels are not tuned, because the products of the layers, which cuBLAS
// computes, take most of the time.

#include "common/compute/launch_cuda.h"
#include "worker/trainer/layers_cuda.h"

#if !defined(__CUDACC__)
#include <chrono>
#include <thread>
#endif

namespace nereus {
namespace {

// Returns the index of the value that the calling thread treats.
__device__ int64_t OwnValue() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// Launches `kernel` with one thread for each of `values` values.
template <typename... Parameters>
cudaError_t LaunchEach(int64_t values, cudaStream_t stream,
                       void (*kernel)(int64_t, Parameters...),
                       std::type_identity_t<Parameters>... arguments) {
  return Launch(kernel, BlocksFor(values, kThreads), kThreads, stream, values,
                arguments...);
}

__global__ void AddBiasKernel(int64_t count, int64_t columns, const float* bias,
                              float* values) {
  const int64_t i = OwnValue();
  if (i < count) values[i] += bias[i % columns];
}

__global__ void ReluForwardKernel(int64_t count, float* values) {
  const int64_t i = OwnValue();
  if (i < count) values[i] = values[i] < 0.0f ? 0.0f : values[i];
}

__global__ void ReluBackwardKernel(int64_t count, const float* values,
                                   float* gradient) {
  const int64_t i = OwnValue();
  if (i < count) gradient[i] = values[i] > 0.0f ? gradient[i] : 0.0f;
}

// Has a thread for each value of the patches, which copies that value.
__global__ void ImagesToPatchesKernel(int64_t count, ConvolutionShape shape,
                                      const float* input, float* patches) {
  int64_t i = OwnValue();
  if (i >= count) return;
  float* const value = patches + i;
  const int64_t channel = i % shape.input.channels;
  i /= shape.input.channels;
  const int64_t kernel_x = i % shape.kernel;
  i /= shape.kernel;
  const int64_t kernel_y = i % shape.kernel;
  i /= shape.kernel;
  const ImageShape output = shape.output();
  const int64_t x = i % output.width + kernel_x;
  i /= output.width;
  const int64_t y = i % output.height + kernel_y;
  const int64_t image = i / output.height;
  *value = input[((image * shape.input.height + y) * shape.input.width + x) *
                     shape.input.channels +
                 channel];
}

// Has a thread for each value of the images, which adds up the copies of that
// value in the order in which the CPU adds them: so the bits are equal.
__global__ void PatchesToImagesKernel(int64_t count, ConvolutionShape shape,
                                      const float* patches, float* input) {
  int64_t i = OwnValue();
  if (i >= count) return;
  float* const value = input + i;
  const int64_t channel = i % shape.input.channels;
  i /= shape.input.channels;
  const int64_t x = i % shape.input.width;
  i /= shape.input.width;
  const int64_t y = i % shape.input.height;
  const int64_t image = i / shape.input.height;
  const ImageShape output = shape.output();
  const int64_t kernel = shape.kernel;
  float sum = 0.0f;
  for (int64_t row = max(int64_t{0}, y - kernel + 1);
       row <= min(y, output.height - 1); ++row) {
    for (int64_t column = max(int64_t{0}, x - kernel + 1);
         column <= min(x, output.width - 1); ++column) {
      const int64_t patch =
          (image * output.height + row) * output.width + column;
      const int64_t within = (y - row) * kernel + (x - column);
      sum += patches[(patch * kernel * kernel + within) * shape.input.channels +
                     channel];
    }
  }
  *value = sum;
}

// Returns the offset in the input of the first pixel of the window of output
// value `i`.
__device__ int64_t WindowOf(const ImageShape& shape, int64_t i) {
  const int64_t channel = i % shape.channels;
  i /= shape.channels;
  const int64_t x = i % (shape.width / 2);
  i /= shape.width / 2;
  const int64_t y = i % (shape.height / 2);
  const int64_t image = i / (shape.height / 2);
  return ((image * shape.height + 2 * y) * shape.width + 2 * x) *
             shape.channels +
         channel;
}

// Returns the larger value, or a NaN if one of the two is one.
__device__ float Larger(float a, float b) { return a > b || a != a ? a : b; }

__global__ void MaxPoolForwardKernel(int64_t count, ImageShape shape,
                                     const float* input, float* output) {
  const int64_t i = OwnValue();
  if (i >= count) return;
  const float* const window = input + WindowOf(shape, i);
  const int64_t right = shape.channels;
  const int64_t down = shape.width * shape.channels;
  output[i] = Larger(Larger(window[0], window[right]),
                     Larger(window[down], window[down + right]));
}

__global__ void MaxPoolBackwardKernel(int64_t count, ImageShape shape,
                                      const float* input,
                                      const float* output_gradient,
                                      float* input_gradient) {
  const int64_t i = OwnValue();
  if (i >= count) return;
  const int64_t first = WindowOf(shape, i);
  const float* const window = input + first;
  float* const out = input_gradient + first;
  const int64_t right = shape.channels;
  const int64_t down = shape.width * shape.channels;
  const float g = output_gradient[i];
  const bool in_top = Larger(window[0], window[right]) >=
                      Larger(window[down], window[down + right]);
  const bool top_left = window[0] >= window[right];
  const bool bottom_left = window[down] >= window[down + right];
  out[0] = in_top && top_left ? g : 0.0f;
  out[right] = in_top && !top_left ? g : 0.0f;
  out[down] = !in_top && bottom_left ? g : 0.0f;
  out[down + right] = !in_top && !bottom_left ? g : 0.0f;
}

// Number of values of the outputs of MaxPoolForward.
int64_t PooledValues(const ImageShape& shape, int64_t images) {
  return images * (shape.height / 2) * (shape.width / 2) * shape.channels;
}

}  // namespace

cudaError_t AddBiasCuda(int64_t rows, int64_t columns, const float* bias,
                        float* values, cudaStream_t stream) {
  return LaunchEach(rows * columns, stream, AddBiasKernel, columns, bias,
                    values);
}

cudaError_t ReluForwardCuda(int64_t length, float* values,
                            cudaStream_t stream) {
  return LaunchEach(length, stream, ReluForwardKernel, values);
}

cudaError_t ReluBackwardCuda(int64_t length, const float* values,
                             float* gradient, cudaStream_t stream) {
  return LaunchEach(length, stream, ReluBackwardKernel, values, gradient);
}

cudaError_t ImagesToPatchesCuda(const ConvolutionShape& shape, int64_t images,
                                const float* input, float* patches,
                                cudaStream_t stream) {
  return LaunchEach(images * shape.positions() * shape.patch_length(), stream,
                    ImagesToPatchesKernel, shape, input, patches);
}

cudaError_t PatchesToImagesCuda(const ConvolutionShape& shape, int64_t images,
                                const float* patches, float* input,
                                cudaStream_t stream) {
  return LaunchEach(images * shape.input.length(), stream,
                    PatchesToImagesKernel, shape, patches, input);
}

cudaError_t MaxPoolForwardCuda(const ImageShape& shape, int64_t images,
                               const float* input, float* output,
                               cudaStream_t stream) {
  return LaunchEach(PooledValues(shape, images), stream, MaxPoolForwardKernel,
                    shape, input, output);
}

cudaError_t MaxPoolBackwardCuda(const ImageShape& shape, int64_t images,
                                const float* input,
                                const float* output_gradient,
                                float* input_gradient, cudaStream_t stream) {
  // The windows cover everything but an odd last row and column.
  if (shape.height % 2 != 0 || shape.width % 2 != 0) {
    const auto values = static_cast<size_t>(images * shape.length());
    const cudaError_t error =
        cudaMemsetAsync(input_gradient, 0, values * sizeof(float), stream);
    if (error != cudaSuccess) return error;
  }
  return LaunchEach(PooledValues(shape, images), stream, MaxPoolBackwardKernel,
                    shape, input, output_gradient, input_gradient);
}

#if defined(__CUDACC__)

namespace {

// Returns the GPU's clock, in nanoseconds.
__device__ int64_t GpuNow() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(int64_t nanoseconds) {
  const int64_t end = GpuNow() + nanoseconds;
  while (GpuNow() < end) {
  }
}

}  // namespace

cudaError_t SpinCuda(int64_t nanoseconds, cudaStream_t stream) {
  return Launch(SpinKernel, /*blocks=*/1, /*threads=*/1, stream, nanoseconds);
}

#else

// The emulation runs one kernel at a time. A kernel that takes time would hold
// up the kernels of all other streams, so the stream itself sleeps.
cudaError_t SpinCuda(int64_t nanoseconds, cudaStream_t stream) {
  return cuda_emulation::Enqueue(stream, [nanoseconds] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
  });
}

#endif

}  // namespace nereus
