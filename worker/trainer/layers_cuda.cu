#include <cmath>

#include "common/compute/launch_cuda.h"
#include "worker/trainer/layers_cuda.h"

namespace nereus {
namespace {

// The value of a kernel's thread, of which there is one each.
__device__ int64_t OwnValue() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// Calls `kernel` with a thread for each of `values`.
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

__global__ void ScaleKernel(int64_t count, float factor, float* values) {
  const int64_t i = OwnValue();
  if (i < count) values[i] *= factor;
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

// Output positions per row and per column.
__device__ int64_t OutputsAlong(const PatchGeometry& geometry, int64_t side) {
  return side + 2 * geometry.padding - geometry.kernel + 1;
}

// A thread per value of the patches.
__global__ void ImagesToPatchesKernel(int64_t count, PatchGeometry geometry,
                                      const float* input, float* patches) {
  int64_t i = OwnValue();
  if (i >= count) return;
  float* const value = patches + i;
  const int64_t channel = i % geometry.channels;
  i /= geometry.channels;
  const int64_t kernel_x = i % geometry.kernel;
  i /= geometry.kernel;
  const int64_t kernel_y = i % geometry.kernel;
  i /= geometry.kernel;
  const int64_t columns = OutputsAlong(geometry, geometry.width);
  const int64_t x = i % columns + kernel_x - geometry.padding;
  i /= columns;
  const int64_t rows = OutputsAlong(geometry, geometry.height);
  const int64_t y = i % rows + kernel_y - geometry.padding;
  const int64_t image = i / rows;
  const bool inside =
      x >= 0 && x < geometry.width && y >= 0 && y < geometry.height;
  *value = inside ? input[((image * geometry.height + y) * geometry.width + x) *
                              geometry.channels +
                          channel]
                  : 0.0f;
}

// A thread per value of the images, which adds up its copies in the order in
// which the CPU comes to them.
__global__ void PatchesToImagesKernel(int64_t count, PatchGeometry geometry,
                                      const float* patches, float* input) {
  int64_t i = OwnValue();
  if (i >= count) return;
  float* const value = input + i;
  const int64_t channel = i % geometry.channels;
  i /= geometry.channels;
  const int64_t x = i % geometry.width + geometry.padding;
  i /= geometry.width;
  const int64_t y = i % geometry.height + geometry.padding;
  const int64_t image = i / geometry.height;
  const int64_t rows = OutputsAlong(geometry, geometry.height);
  const int64_t columns = OutputsAlong(geometry, geometry.width);
  const int64_t kernel = geometry.kernel;
  float sum = 0.0f;
  for (int64_t row = max(int64_t{0}, y - kernel + 1); row <= min(y, rows - 1);
       ++row) {
    for (int64_t column = max(int64_t{0}, x - kernel + 1);
         column <= min(x, columns - 1); ++column) {
      const int64_t patch = (image * rows + row) * columns + column;
      const int64_t within = (y - row) * kernel + (x - column);
      sum += patches[(patch * kernel * kernel + within) * geometry.channels +
                     channel];
    }
  }
  *value = sum;
}

struct PoolGeometry {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
};

// Offset in the input of the first pixel of window `i`, counted over the values
// of the output.
__device__ int64_t WindowOf(const PoolGeometry& geometry, int64_t i) {
  const int64_t channel = i % geometry.channels;
  i /= geometry.channels;
  const int64_t x = i % (geometry.width / 2);
  i /= geometry.width / 2;
  const int64_t y = i % (geometry.height / 2);
  const int64_t image = i / (geometry.height / 2);
  return ((image * geometry.height + 2 * y) * geometry.width + 2 * x) *
             geometry.channels +
         channel;
}

__device__ float Larger(float a, float b) { return a > b ? a : b; }

__global__ void MaxPoolForwardKernel(int64_t count, PoolGeometry geometry,
                                     const float* input, float* output) {
  const int64_t i = OwnValue();
  if (i >= count) return;
  const float* const window = input + WindowOf(geometry, i);
  const int64_t right = geometry.channels;
  const int64_t down = geometry.width * geometry.channels;
  output[i] = Larger(Larger(window[0], window[right]),
                     Larger(window[down], window[down + right]));
}

__global__ void MaxPoolBackwardKernel(int64_t count, PoolGeometry geometry,
                                      const float* input,
                                      const float* output_gradient,
                                      float* input_gradient) {
  const int64_t i = OwnValue();
  if (i >= count) return;
  const int64_t first = WindowOf(geometry, i);
  const float* const window = input + first;
  float* const out = input_gradient + first;
  const int64_t right = geometry.channels;
  const int64_t down = geometry.width * geometry.channels;
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

__global__ void SoftmaxCrossEntropyKernel(int64_t rows, int64_t classes,
                                          const float* logits,
                                          const int32_t* labels,
                                          float* gradient, double* losses) {
  const int64_t row = OwnValue();
  if (row >= rows) return;
  const float* const in = logits + row * classes;
  float* const out = gradient + row * classes;
  float largest = in[0];
  for (int64_t i = 1; i < classes; ++i) {
    largest = largest < in[i] ? in[i] : largest;
  }
  const double label_logit = in[labels[row]];
  double sum = 0.0;
  for (int64_t i = 0; i < classes; ++i) {
    out[i] = expf(in[i] - largest);
    sum += out[i];
  }
  losses[row] = log(sum) - (label_logit - largest);
  const auto scale =
      static_cast<float>(1.0 / (sum * static_cast<double>(rows)));
  for (int64_t i = 0; i < classes; ++i) out[i] *= scale;
  out[labels[row]] -= 1.0f / static_cast<float>(rows);
}

__global__ void PickLargestKernel(int64_t rows, int64_t columns,
                                  const float* values, int32_t* picked) {
  const int64_t row = OwnValue();
  if (row >= rows) return;
  const float* const in = values + row * columns;
  int64_t largest = 0;
  for (int64_t i = 1; i < columns; ++i) {
    if (in[largest] < in[i]) largest = i;
  }
  picked[row] = static_cast<int32_t>(largest);
}

int64_t PatchValues(const PatchGeometry& geometry) {
  const int64_t shrinks = geometry.kernel - 1 - 2 * geometry.padding;
  return geometry.images * (geometry.height - shrinks) *
         (geometry.width - shrinks) * geometry.kernel * geometry.kernel *
         geometry.channels;
}

}  // namespace

cudaError_t AddBiasCuda(int64_t rows, int64_t columns, const float* bias,
                        float* values, cudaStream_t stream) {
  return LaunchEach(rows * columns, stream, AddBiasKernel, columns, bias,
                    values);
}

cudaError_t ScaleCuda(int64_t length, float factor, float* values,
                      cudaStream_t stream) {
  return LaunchEach(length, stream, ScaleKernel, factor, values);
}

cudaError_t ReluForwardCuda(int64_t length, float* values,
                            cudaStream_t stream) {
  return LaunchEach(length, stream, ReluForwardKernel, values);
}

cudaError_t ReluBackwardCuda(int64_t length, const float* values,
                             float* gradient, cudaStream_t stream) {
  return LaunchEach(length, stream, ReluBackwardKernel, values, gradient);
}

cudaError_t ImagesToPatchesCuda(const PatchGeometry& geometry,
                                const float* input, float* patches,
                                cudaStream_t stream) {
  return LaunchEach(PatchValues(geometry), stream, ImagesToPatchesKernel,
                    geometry, input, patches);
}

cudaError_t PatchesToImagesCuda(const PatchGeometry& geometry,
                                const float* patches, float* input,
                                cudaStream_t stream) {
  return LaunchEach(
      geometry.images * geometry.height * geometry.width * geometry.channels,
      stream, PatchesToImagesKernel, geometry, patches, input);
}

cudaError_t MaxPoolForwardCuda(int64_t images, int64_t height, int64_t width,
                               int64_t channels, const float* input,
                               float* output, cudaStream_t stream) {
  return LaunchEach(images * (height / 2) * (width / 2) * channels, stream,
                    MaxPoolForwardKernel, PoolGeometry{height, width, channels},
                    input, output);
}

cudaError_t MaxPoolBackwardCuda(int64_t images, int64_t height, int64_t width,
                                int64_t channels, const float* input,
                                const float* output_gradient,
                                float* input_gradient, cudaStream_t stream) {
  // The windows cover everything but an odd last row and column.
  if (height % 2 != 0 || width % 2 != 0) {
    const auto values = static_cast<size_t>(images * height * width * channels);
    const cudaError_t error =
        cudaMemsetAsync(input_gradient, 0, values * sizeof(float), stream);
    if (error != cudaSuccess) return error;
  }
  return LaunchEach(images * (height / 2) * (width / 2) * channels, stream,
                    MaxPoolBackwardKernel,
                    PoolGeometry{height, width, channels}, input,
                    output_gradient, input_gradient);
}

cudaError_t SoftmaxCrossEntropyCuda(int64_t rows, int64_t classes,
                                    const float* logits, const int32_t* labels,
                                    float* gradient, double* losses,
                                    cudaStream_t stream) {
  return LaunchEach(rows, stream, SoftmaxCrossEntropyKernel, classes, logits,
                    labels, gradient, losses);
}

cudaError_t PickLargestCuda(int64_t rows, int64_t columns, const float* values,
                            int32_t* picked, cudaStream_t stream) {
  return LaunchEach(rows, stream, PickLargestKernel, columns, values, picked);
}

}  // namespace nereus
