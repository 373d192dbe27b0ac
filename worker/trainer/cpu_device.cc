#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "worker/trainer/activation.h"
#include "worker/trainer/device.h"
#include "worker/trainer/fully_connected.h"
#include "worker/trainer/loss.h"
#include "worker/trainer/pooling.h"

namespace nereus {
namespace {

class CpuDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  absl::StatusOr<FloatArray> Allocate(int64_t count) override {
    return FloatArray{
        std::shared_ptr<float>(new float[static_cast<size_t>(count)](),
                               std::default_delete<float[]>()),
        count};
  }
  absl::StatusOr<std::unique_ptr<Layer>> MakeConvolution(
      const ConvolutionShape& shape, int64_t images_max) override {
    return std::make_unique<Convolution>(shape, images_max);
  }
  std::unique_ptr<Layer> MakeMaxPooling(const ImageShape& input) override {
    return std::make_unique<MaxPooling>(input);
  }
  std::unique_ptr<Layer> MakeFullyConnected(const ImageShape& input,
                                            int64_t outputs) override {
    return std::make_unique<FullyConnected>(input, outputs);
  }
  void ReluForward(int64_t length, float* values) override {
    nereus::ReluForward(length, values);
  }
  void ReluBackward(int64_t length, const float* values,
                    float* gradient) override {
    nereus::ReluBackward(length, values, gradient);
  }
  void Scale(int64_t length, float factor, float* values) override {
    for (int64_t i = 0; i < length; ++i) values[i] *= factor;
  }
  float SoftmaxCrossEntropy(int64_t rows, int64_t classes, const float* logits,
                            const int32_t* labels, float* gradient) override {
    return nereus::SoftmaxCrossEntropy(rows, classes, logits, labels, gradient);
  }
  void PickLargest(int64_t columns, const float* values,
                   absl::Span<int32_t> picked) override {
    for (int32_t& index : picked) {
      index = static_cast<int32_t>(std::max_element(values, values + columns) -
                                   values);
      values += columns;
    }
  }
  void Write(absl::Span<const float> values, float* to) override {
    std::copy(values.begin(), values.end(), to);
  }
  void Read(const float* from, absl::Span<float> values) override {
    std::copy_n(from, values.size(), values.begin());
  }
  absl::Status status() const override { return absl::OkStatus(); }
};

}  // namespace

std::shared_ptr<Device> MakeCpuDevice() {
  return std::make_shared<CpuDevice>();
}

}  // namespace nereus
