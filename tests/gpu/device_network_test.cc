// Compares the reference trainer's network on a GPU, or an emulated one, with
// the network on the CPU.

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
#include "tests/gpu/needs_gpu.h"
#include "worker/trainer/cuda_device.h"
#include "worker/trainer/layers.h"
#include "worker/trainer/network.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Half the relative distance of two neighbouring float32.
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

class DeviceNetworkTest : public NeedsGpu<testing::Test> {
 protected:
  void SetUp() override {
    NeedsGpu::SetUp();
    if (IsSkipped()) return;
    auto device = CudaDevice::Create(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  FloatArray Upload(const std::vector<float>& values) {
    auto array = device_->Allocate(std::ssize(values));
    EXPECT_TRUE(array.ok()) << array.status();
    device_->Write(values, array->data());
    return *std::move(array);
  }
  std::vector<float> Download(const FloatArray& array) {
    std::vector<float> values(array.count);
    device_->Read(array.data(), absl::MakeSpan(values));
    return values;
  }

  const std::shared_ptr<Device> cpu_ = MakeCpuDevice();
  std::shared_ptr<CudaDevice> device_;
};

// Results of one Forward and one Backward.
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

// Returns the results for the operands' absolute values. Bounds of errors are
// relative to these results.
Results MagnitudesOf(Layer& layer, Operands operands) {
  operands.input = Magnitudes(std::move(operands.input));
  operands.parameters = Magnitudes(std::move(operands.parameters));
  operands.output_gradient = Magnitudes(std::move(operands.output_gradient));
  return RunOnCpu(layer, operands);
}

// Expects that the results are near each other. Each element is a sum of
// `terms` products. Two sums in different orders may differ by twice the
// roundings of one sum.
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
    // Noise in the results, so that a value that is not written is noticed.
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

TEST_F(LayersTest, ConvolutionsAgreeWithTheCpu) {
  for (const ConvolutionShape& shape :
       {ConvolutionShape{{8, 7, 3}, 4, 3}, ConvolutionShape{{6, 6, 1}, 5, 5},
        ConvolutionShape{{4, 5, 2}, 3, 3}, ConvolutionShape{{3, 3, 2}, 1, 3}}) {
    for (const int64_t images : {1, 3}) {
      const auto on_cpu = Convolution::Create(cpu_.get(), shape, images);
      ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
      Layer& cpu = **on_cpu;
      const auto gpu = Convolution::Create(device_.get(), shape, images);
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

TEST_F(LayersTest, FullyConnectedLayersAgreeWithTheCpu) {
  for (const int64_t images : {1, 5}) {
    for (const int64_t outputs : {1, 33}) {
      FullyConnected cpu(cpu_.get(), {3, 4, 2}, outputs);
      FullyConnected gpu(device_.get(), {3, 4, 2}, outputs);
      const LayerSpec spec = cpu.Spec(images);
      const Operands operands = MakeOperands(cpu, images);
      const Results expected = RunOnCpu(cpu, operands);
      const Results magnitudes = MagnitudesOf(cpu, operands);
      const Results found = RunOnGpu(gpu, operands);
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
    MaxPooling cpu(cpu_.get(), shape);
    MaxPooling gpu(device_.get(), shape);
    Operands operands = MakeOperands(cpu, 3);
    // Rounded values, so that some windows have two largest values.
    for (float& value : operands.input) value = std::round(value * 2.0f);
    const Results expected = RunOnCpu(cpu, operands);
    const Results found = RunOnGpu(gpu, operands);
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
  for (Device* device : {cpu_.get(), static_cast<Device*>(device_.get())}) {
    const bool is_cpu = device == cpu_.get();
    float* const v = is_cpu ? values.data() : on_gpu.data();
    float* const g = is_cpu ? gradient.data() : gradient_on_gpu.data();
    device->ReluForward(1000, v);
    device->ReluBackward(1000, v, g);
  }
  const std::vector<float> found = Download(on_gpu);
  EXPECT_TRUE(std::isnan(found[3]) && std::isnan(values[3]));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(i == 3 || found[i] == values[i]) << i;
  }
  EXPECT_EQ(Download(gradient_on_gpu), gradient);
}

class ModelsTest : public DeviceNetworkTest,
                   public testing::WithParamInterface<const char*> {};

// Does one step of the whole network. The difference of two gradients must be
// far smaller than their length. Another image would give a much larger
// difference.
TEST_P(ModelsTest, GradientsOfAWholeStepAgreeWithTheCpu) {
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

TEST_F(DeviceNetworkTest, FailedAllocationNamesTheBytes) {
  const auto array = device_->Allocate(int64_t{1} << 45);
  EXPECT_EQ(array.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(array.status().message()),
              HasSubstr("cudaMalloc of 140737488355328 bytes"));
}

}  // namespace
}  // namespace nereus
