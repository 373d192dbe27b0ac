// The reference trainer's network on a GPU, or an emulated one, against the
// CPU's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/compute/factor_gradient.h"
#include "tests/gpu/device_array.h"
#include "worker/trainer/convolution.h"
#include "worker/trainer/cuda_device.h"
#include "worker/trainer/fully_connected.h"
#include "worker/trainer/network.h"
#include "worker/trainer/pooling.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Half the distance of float32 to the next one, relative.
constexpr double kRounding = 0x1p-24;

std::vector<float> Noise(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.Uniform() * 2.0 - 1.0);
  }
  return values;
}

std::vector<float> Magnitudes(std::vector<float> values) {
  for (float& value : values) value = std::fabs(value);
  return values;
}

class DeviceNetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const why = WhyNoGpu();
    if (why != nullptr) GTEST_SKIP() << "no GPU: " << why;
    auto device = CudaDevice::Create(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  FloatArray Upload(const std::vector<float>& values) {
    auto array = device_->Allocate(static_cast<int64_t>(values.size()));
    EXPECT_TRUE(array.ok()) << array.status();
    device_->Write(values, array->data());
    return *std::move(array);
  }
  std::vector<float> Download(const FloatArray& array) {
    std::vector<float> values(array.count);
    device_->Read(array.data(), absl::MakeSpan(values));
    return values;
  }

  std::shared_ptr<CudaDevice> device_;
};

// What one call of Forward and Backward makes.
struct Results {
  std::vector<float> output;
  std::vector<float> gradient;
  std::vector<float> input_gradient;
};

struct Operands {
  int64_t images = 0;
  std::vector<float> input;
  std::vector<float> parameters;
  std::vector<float> output_gradient;
};

Operands MakeOperands(const Layer& layer, int64_t images) {
  return {images, Noise(images * layer.input().length(), 1),
          Noise(layer.Spec(images).parameters, 2),
          Noise(images * layer.output().length(), 3)};
}

Results RunOnCpu(Layer& layer, const Operands& operands) {
  Results results;
  results.output.resize(operands.output_gradient.size());
  results.gradient.resize(operands.parameters.size());
  results.input_gradient.resize(operands.input.size());
  layer.Forward(operands.images, operands.input.data(),
                operands.parameters.data(), results.output.data());
  layer.Backward(operands.images, operands.input.data(),
                 operands.parameters.data(), operands.output_gradient.data(),
                 results.gradient.data(), results.input_gradient.data());
  return results;
}

// The same of absolute values: what an element's error is relative to.
Results MagnitudesOf(Layer& layer, Operands operands) {
  operands.input = Magnitudes(std::move(operands.input));
  operands.parameters = Magnitudes(std::move(operands.parameters));
  operands.output_gradient = Magnitudes(std::move(operands.output_gradient));
  return RunOnCpu(layer, operands);
}

// Two sums of `terms` products in any order differ by twice terms roundings.
void ExpectNear(const std::vector<float>& gpu, const std::vector<float>& cpu,
                const std::vector<float>& magnitudes, int64_t terms,
                const std::string& what) {
  ASSERT_EQ(gpu.size(), cpu.size()) << what;
  const double bound = 2.0 * static_cast<double>(terms + 1) * kRounding;
  for (size_t i = 0; i < gpu.size(); ++i) {
    ASSERT_NEAR(gpu[i], cpu[i], bound * magnitudes[i]) << what << " " << i;
  }
}

class LayersTest : public DeviceNetworkTest {
 protected:
  Results RunOnGpu(Layer& layer, const Operands& operands) {
    const FloatArray input = Upload(operands.input);
    const FloatArray parameters = Upload(operands.parameters);
    const FloatArray output_gradient = Upload(operands.output_gradient);
    // Not what it should be, if nobody writes it.
    const FloatArray output = Upload(Noise(output_gradient.count, 8));
    const FloatArray gradient = Upload(Noise(parameters.count, 8));
    const FloatArray input_gradient = Upload(Noise(input.count, 8));
    layer.Forward(operands.images, input.data(), parameters.data(),
                  output.data());
    layer.Backward(operands.images, input.data(), parameters.data(),
                   output_gradient.data(), gradient.data(),
                   input_gradient.data());
    EXPECT_TRUE(device_->status().ok()) << device_->status();
    return {Download(output), Download(gradient), Download(input_gradient)};
  }
};

TEST_F(LayersTest, Convolutions) {
  for (const ConvolutionShape& shape :
       {ConvolutionShape{{8, 7, 3}, 4, 3, 0}, ConvolutionShape{{6, 6, 1}, 5, 5},
        ConvolutionShape{{4, 5, 2}, 3, 3, 1},
        ConvolutionShape{{3, 3, 2}, 1, 3, 2}}) {
    for (const int64_t images : {1, 3}) {
      Convolution cpu(shape, images);
      auto gpu = device_->MakeConvolution(shape, images);
      ASSERT_TRUE(gpu.ok()) << gpu.status();
      const LayerSpec spec = cpu.Spec(images);
      const Operands operands = MakeOperands(cpu, images);
      const Results expected = RunOnCpu(cpu, operands);
      const Results magnitudes = MagnitudesOf(cpu, operands);
      const Results found = RunOnGpu(**gpu, operands);
      ExpectNear(found.output, expected.output, magnitudes.output, spec.n + 1,
                 "output");
      ExpectNear(found.gradient, expected.gradient, magnitudes.gradient,
                 spec.rows, "gradient");
      ExpectNear(found.input_gradient, expected.input_gradient,
                 magnitudes.input_gradient,
                 spec.m + shape.kernel * shape.kernel, "input gradient");
    }
  }
}

TEST_F(LayersTest, FullyConnectedLayers) {
  for (const int64_t images : {1, 5}) {
    for (const int64_t outputs : {1, 33}) {
      FullyConnected cpu({3, 4, 2}, outputs);
      const auto gpu = device_->MakeFullyConnected({3, 4, 2}, outputs);
      const LayerSpec spec = cpu.Spec(images);
      const Operands operands = MakeOperands(cpu, images);
      const Results expected = RunOnCpu(cpu, operands);
      const Results magnitudes = MagnitudesOf(cpu, operands);
      const Results found = RunOnGpu(*gpu, operands);
      ExpectNear(found.output, expected.output, magnitudes.output, spec.n + 1,
                 "output");
      ExpectNear(found.input_gradient, expected.input_gradient,
                 magnitudes.input_gradient, spec.m, "input gradient");
    }
  }
}

TEST_F(LayersTest, PoolsHaveTheSameBits) {
  for (const ImageShape& shape :
       {ImageShape{4, 6, 3}, ImageShape{5, 7, 2}, ImageShape{2, 2, 1}}) {
    MaxPooling cpu(shape);
    const auto gpu = device_->MakeMaxPooling(shape);
    Operands operands = MakeOperands(cpu, 3);
    // Some windows have two that are the largest.
    for (float& value : operands.input) value = std::round(value * 2.0f);
    const Results expected = RunOnCpu(cpu, operands);
    const Results found = RunOnGpu(*gpu, operands);
    EXPECT_EQ(found.output, expected.output);
    EXPECT_EQ(found.input_gradient, expected.input_gradient);
  }
}

TEST_F(LayersTest, ActivationsHaveTheSameBits) {
  std::vector<float> values = Noise(1000, 1);
  values[3] = std::nanf("");
  values[4] = -0.0f;
  std::vector<float> gradient = Noise(1000, 2);
  const FloatArray on_gpu = Upload(values);
  const FloatArray gradient_on_gpu = Upload(gradient);
  const auto cpu = MakeCpuDevice();
  for (Device* device : {cpu.get(), static_cast<Device*>(device_.get())}) {
    const bool is_cpu = device == cpu.get();
    float* const v = is_cpu ? values.data() : on_gpu.data();
    float* const g = is_cpu ? gradient.data() : gradient_on_gpu.data();
    device->ReluForward(1000, v);
    device->ReluBackward(1000, v, g);
    device->Scale(1000, 0.3f, g);
  }
  const std::vector<float> found = Download(on_gpu);
  EXPECT_TRUE(std::isnan(found[3]) && std::isnan(values[3]));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(i == 3 || found[i] == values[i]) << i;
  }
  EXPECT_EQ(Download(gradient_on_gpu), gradient);
}

// exp and log are not the same everywhere: CUDA's are off by 2 in the last
// place at most.
TEST_F(LayersTest, LossAndItsGradient) {
  const auto cpu = MakeCpuDevice();
  for (const int64_t classes : {1, 2, 10, 1000}) {
    for (const int64_t rows : {1, 7}) {
      std::vector<float> logits = Noise(rows * classes, 4);
      for (float& logit : logits) logit *= 20.0f;
      std::vector<int32_t> labels(rows);
      for (int64_t row = 0; row < rows; ++row) {
        labels[row] = static_cast<int32_t>(row * 3 % classes);
      }
      std::vector<float> gradient(logits.size());
      const float expected = cpu->SoftmaxCrossEntropy(
          rows, classes, logits.data(), labels.data(), gradient.data());
      const FloatArray in = Upload(logits);
      const FloatArray out = Upload(Noise(in.count, 8));
      const float found = device_->SoftmaxCrossEntropy(
          rows, classes, in.data(), labels.data(), out.data());
      EXPECT_NEAR(found, expected, 8.0 * kRounding * (1.0 + expected));
      const std::vector<float> found_gradient = Download(out);
      for (size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_NEAR(found_gradient[i], gradient[i],
                    16.0 * kRounding / static_cast<double>(rows))
            << i;
      }
      std::vector<int32_t> picked(rows), expected_picked(rows);
      cpu->PickLargest(classes, logits.data(), absl::MakeSpan(expected_picked));
      device_->PickLargest(classes, in.data(), absl::MakeSpan(picked));
      EXPECT_EQ(picked, expected_picked);
    }
  }
}

class ModelsTest : public DeviceNetworkTest,
                   public testing::WithParamInterface<const char*> {};

// A step of the whole network. What the layers' errors add up to is measured
// by each gradient's length: far below what another image makes of it.
TEST_P(ModelsTest, GradientsAreTheCpus) {
  const ImageShape image = {16, 16, 1};
  std::vector<std::unique_ptr<Network>> networks;
  for (const std::shared_ptr<Device>& device :
       {MakeCpuDevice(), std::static_pointer_cast<Device>(device_)}) {
    auto network = Network::Create(GetParam(), image, 10, 4, device);
    ASSERT_TRUE(network.ok()) << network.status();
    (*network)->Initialize(5);
    networks.push_back(*std::move(network));
  }
  const std::vector<float> images = Noise(4 * image.length(), 6);
  const std::vector<int32_t> labels = {1, 7, 0, 9};
  std::vector<float> losses;
  for (const auto& network : networks) {
    losses.push_back(network->Forward(images, labels));
    ASSERT_TRUE(network
                    ->Backward([](int) { return absl::OkStatus(); },
                               /*loss_scale=*/2.0f)
                    .ok());
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-6);
  for (size_t i = 0; i < networks[0]->specs().size(); ++i) {
    const LayerSpec& spec = networks[0]->specs()[i];
    const int layer = static_cast<int>(i);
    std::vector<std::vector<float>> gradients;
    for (const auto& network : networks) {
      std::vector<float>& gradient = gradients.emplace_back(spec.parameters);
      const auto read = [&](absl::Span<const float> values) {
        std::vector<float> host(values.size());
        network->device().Read(values.data(), absl::MakeSpan(host));
        return host;
      };
      if (!network->has_factors(layer)) {
        gradient = read(network->gradient(layer));
        continue;
      }
      const Factors factors = network->factors(layer);
      FactorGradient(spec.rows, spec.m, spec.n, true, 1.0f,
                     read(factors.output_gradient).data(),
                     read(factors.input).data(), gradient.data());
    }
    double difference = 0.0;
    double length = 0.0;
    for (int64_t j = 0; j < spec.parameters; ++j) {
      difference += std::pow(gradients[1][j] - gradients[0][j], 2.0);
      length += std::pow(gradients[0][j], 2.0);
    }
    EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(length)) << spec.name;
    EXPECT_GT(length, 0.0) << spec.name;
  }
  std::vector<int32_t> picked[2] = {std::vector<int32_t>(3),
                                    std::vector<int32_t>(3)};
  for (int i = 0; i < 2; ++i) {
    networks[i]->Predict(
        absl::MakeConstSpan(images).subspan(0, 3 * image.length()),
        absl::MakeSpan(picked[i]));
  }
  EXPECT_EQ(picked[1], picked[0]);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelsTest, testing::Values("mlp", "cnn"),
                         [](const auto& model) { return model.param; });

TEST_F(DeviceNetworkTest, AGpuThatIsNotThereIsNamed) {
  const auto none = CudaDevice::Create(99);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("GPU 99"));
}

TEST_F(DeviceNetworkTest, TooMuchMemoryIsAnErrorWithTheBytes) {
  const auto array = device_->Allocate(int64_t{1} << 45);
  EXPECT_EQ(array.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(array.status().message()),
              HasSubstr("cudaMalloc of 140737488355328 bytes"));
}

}  // namespace
}  // namespace nereus
