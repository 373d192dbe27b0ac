#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/convolution.h"
#include "worker/trainer/layer.h"

namespace nereus {

// float32 in a device's memory, zero at first.
struct FloatArray {
  std::shared_ptr<float> values;
  int64_t count = 0;

  float* data() const { return values.get(); }
  absl::Span<float> span() const {
    return {values.get(), static_cast<size_t>(count)};
  }
};

// Where a network has its memory and computes: this process's CPU, or a GPU.
// Pointers are of its memory, but for those that are said to be the host's.
//
// Calls return when the work is queued, in order; those that give something to
// the host wait until it is there. After an error of the device, which status()
// then has, results are any values. Thread-compatible.
class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda:0".
  virtual std::string name() const = 0;

  // Errors: kResourceExhausted, with the bytes.
  virtual absl::StatusOr<FloatArray> Allocate(int64_t count) = 0;

  // Layers on this device, which must outlive them. Errors: as above.
  virtual absl::StatusOr<std::unique_ptr<Layer>> MakeConvolution(
      const ConvolutionShape& shape, int64_t images_max) = 0;
  virtual std::unique_ptr<Layer> MakeMaxPooling(const ImageShape& input) = 0;
  virtual std::unique_ptr<Layer> MakeFullyConnected(const ImageShape& input,
                                                    int64_t outputs) = 0;

  // activation.h
  virtual void ReluForward(int64_t length, float* values) = 0;
  virtual void ReluBackward(int64_t length, const float* values,
                            float* gradient) = 0;
  virtual void Scale(int64_t length, float factor, float* values) = 0;

  // loss.h; `labels` are the host's. Waits.
  virtual float SoftmaxCrossEntropy(int64_t rows, int64_t classes,
                                    const float* logits, const int32_t* labels,
                                    float* gradient) = 0;

  // The first of the largest values of each row of {picked.size(), columns};
  // `picked` is the host's. Waits.
  virtual void PickLargest(int64_t columns, const float* values,
                           absl::Span<int32_t> picked) = 0;

  // From the host and to it. Both wait.
  virtual void Write(absl::Span<const float> values, float* to) = 0;
  virtual void Read(const float* from, absl::Span<float> values) = 0;

  // The first error since the device was made.
  virtual absl::Status status() const = 0;
};

// This process's CPU. Never fails.
std::shared_ptr<Device> MakeCpuDevice();

}  // namespace nereus
