#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "worker/public/client.h"
#include "worker/trainer/image_shape.h"

namespace nereus {

// Array of float32 in the memory of a device. Zero after Device::Allocate.
// Copies share the memory; the last one frees it.
struct FloatArray {
  std::shared_ptr<float> values;
  int64_t count = 0;  // Number of floats.

  float* data() const { return values.get(); }
  absl::Span<float> span() const {
    return {values.get(), static_cast<size_t>(count)};
  }
};

// Arithmetic of a network on one processor: this process's CPU, or a GPU. The
// network's layers are written once, over this interface. The host always
// computes the loss: that is little work, and it needs the result.
//
// Pointers are to float32 in the device's memory, row-major. Spans are of host
// memory. Results overlap no argument, unless a call works in place. With a
// host pointer for a device pointer, a GPU fails (status()).
//
// Calls queue their work, in order, and return. Read and Write wait until all
// queued work is done. After an error of the device, all results are undefined,
// and status() returns the error. So a caller can run a whole forward pass and
// check status() once. The thread that makes the device makes all calls.
class Device {
 public:
  virtual ~Device() = default;

  // Returns "cpu" or, for example, "cuda:0".
  virtual std::string name() const = 0;
  // Number of the GPU, as for cudaSetDevice; below 0: this is a CPU.
  virtual int gpu() const { return -1; }
  // Stream on which a GPU queues all calls; null on a CPU.
  virtual Stream stream() const { return nullptr; }

  // Returns `count` zeros. Errors: on a GPU, kResourceExhausted with the bytes,
  // and others of CudaStatus.
  virtual absl::StatusOr<FloatArray> Allocate(int64_t count) = 0;

  // Computes the output (rows x m) of a fully connected layer:
  //   output = input * weight^T + bias
  // input: rows x n. parameters: the weight (m x n), then the bias (m).
  virtual void Affine(int64_t rows, int64_t m, int64_t n, const float* input,
                      const float* parameters, float* output) = 0;

  // Computes the gradient of Affine with respect to its input (rows x n):
  //   input_gradient = output_gradient * weight
  virtual void AffineInputGradient(int64_t rows, int64_t m, int64_t n,
                                   const float* output_gradient,
                                   const float* parameters,
                                   float* input_gradient) = 0;

  // Computes the gradient of Affine with respect to its parameters: the result
  // of FactorGradient, on a GPU with other bits
  // (common/compute/factor_gradient.h).
  virtual void AffineGradient(int64_t rows, int64_t m, int64_t n,
                              const float* output_gradient, const float* input,
                              float* gradient) = 0;

  // Compute ImagesToPatches and PatchesToImages of layers.h.
  virtual void ImagesToPatches(const ConvolutionShape& shape, int64_t images,
                               const float* input, float* patches) = 0;
  virtual void PatchesToImages(const ConvolutionShape& shape, int64_t images,
                               const float* patches, float* input) = 0;

  // Compute MaxPoolForward and MaxPoolBackward of layers.h.
  virtual void MaxPoolForward(const ImageShape& shape, int64_t images,
                              const float* input, float* output) = 0;
  virtual void MaxPoolBackward(const ImageShape& shape, int64_t images,
                               const float* input, const float* output_gradient,
                               float* input_gradient) = 0;

  // Compute ReluForward and ReluBackward of layers.h, in place.
  virtual void ReluForward(int64_t length, float* values) = 0;
  virtual void ReluBackward(int64_t length, const float* values,
                            float* gradient) = 0;

  // Runs the optimizer for `step` on `count` parameters with the mean gradient.
  // `state`: OptimizerStateCount arrays of `count` values. A CPU returns the
  // index of the first result that is a NaN or an infinity (ApplyOptimizer);
  // below 0: there is none. A GPU does not look.
  virtual int64_t Optimize(const OptimizerOptions& optimizer, int64_t step,
                           int64_t count, const float* gradient,
                           float* parameters, float* state) = 0;

  // For a replay. Keeps the device busy for `time`, after all its work so far;
  // the calling thread sleeps in the place of a CPU that computes, or computes
  // (MakeCpuDevice).
  virtual void Spend(absl::Duration time) = 0;
  // Notes the time at which the device has done all its work so far.
  virtual void Mark() = 0;
  // Returns the time between the last two times that Mark has noted. REQUIRES:
  // two calls of Mark.
  virtual absl::Duration BetweenMarks() = 0;

  // Copies from the host to the device, and from the device to the host. Both
  // wait.
  virtual void Write(absl::Span<const float> values, float* to) = 0;
  virtual void Read(const float* from, absl::Span<float> values) = 0;

  // Returns the first error since the device was made.
  virtual absl::Status status() const = 0;
};

// Returns this process's CPU. Never fails. `spins`: Spend uses so much time of
// a core, and takes longer if other processes use the core, too.
std::shared_ptr<Device> MakeCpuDevice(bool spins = false);

}  // namespace nereus
