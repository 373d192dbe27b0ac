#include "worker/trainer/gpu_worker.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/compute/update_rules_cuda.h"
#include "common/device/cuda_status.h"
#include "worker/public/gpu_client.h"
#include "worker/trainer/cuda_device.h"

namespace nereus {
namespace {

// Network on a GPU: a thin layer over GpuClient, with the GPU's optimizer.
class GpuNetworkClient final : public NetworkClient {
 public:
  GpuNetworkClient(CudaDevice* device, Network* network)
      : device_(*device), network_(*network) {}

  // Connects the client. Called once, first.
  absl::Status Join(const ClientOptions& options, bool keep_timeline);

  Network& network() override { return network_; }
  const Client& client() const override { return client_->client(); }
  absl::StatusOr<StepInfo> BeginStep() override {
    return client_->BeginStep(device_.stream());
  }
  absl::Status Push(int layer, int64_t step) override;
  absl::Status WaitForward(int layer) override {
    return client_->WaitForward(layer, device_.stream());
  }
  absl::Status Update(int layer, int64_t step) override;
  absl::Status Abort(absl::string_view reason) override {
    return client_->Abort(reason);
  }
  absl::Status Leave() override { return client_->Leave(device_.stream()); }
  absl::Status LeaveEarly() override {
    return client_->LeaveEarly(device_.stream());
  }
  absl::StatusOr<std::vector<GpuSpan>> Timeline() const override {
    return client_->Timeline();
  }

 private:
  CudaDevice& device_;
  Network& network_;
  std::vector<FloatArray> state_;  // Optimizer state, by layer.
  // Last member, so destroyed first: the client uses the memory above.
  std::unique_ptr<GpuClient> client_;
};

absl::Status GpuNetworkClient::Join(const ClientOptions& options,
                                    bool keep_timeline) {
  std::vector<GpuLayerBinding> layers;
  for (const LayerSpec& spec : network_.specs()) {
    const int layer = static_cast<int>(layers.size());
    state_.emplace_back() =
        NEREUS_TRY(device_.Allocate(kOptimizerStatesMax * spec.parameters));
    layers.push_back({.spec = spec,
                      .parameters = network_.parameters(layer).data(),
                      .state = state_.back().data(),
                      .state_arrays = kOptimizerStatesMax});
  }
  GpuOptions gpu;
  gpu.device = device_.number();
  gpu.timeline = keep_timeline;
  client_ = NEREUS_TRY(
      GpuClient::Connect(options, gpu, std::move(layers), device_.stream()));
  return absl::OkStatus();
}

absl::Status GpuNetworkClient::Push(int layer, int64_t step) {
  float* const gradient = network_.gradient(layer).data();
  if (!network_.has_factors(layer)) {
    return client_->Push(layer, step, gradient, device_.stream());
  }
  const Factors factors = network_.factors(layer);
  return client_->PushFactors(
      layer, step, {factors.output_gradient.data(), factors.input.data()},
      gradient, device_.stream());
}

absl::Status GpuNetworkClient::Update(int layer, int64_t step) {
  const OptimizerOptions& options = client().traits().optimizer;
  const LayerSpec& spec = network_.specs()[layer];
  const float* const gradient = network_.gradient(layer).data();
  float* const parameters = network_.parameters(layer).data();
  float* const state = state_[layer].data();
  // The mean replaces the gradient before the update: WaitForward has made this
  // stream wait for the mean.
  const cudaError_t error =
      options.rule == UpdateRule::kSgd
          ? ApplySgdCuda(SgdStepOf(options, 1.0f), spec.parameters, gradient,
                         parameters, state, parameters, /*note=*/{},
                         device_.stream())
          : ApplyAdamCuda(AdamStepOf(options, step, 1.0f), spec.parameters,
                          gradient, parameters, state, state + spec.parameters,
                          parameters, /*note=*/{}, device_.stream());
  return CudaStatus(error, absl::StrCat("layer ", spec.name), "the optimizer");
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> MakeGpuDevice(int number) {
  return CudaDevice::Create(number);
}

absl::StatusOr<std::unique_ptr<NetworkClient>> JoinWithGpu(
    const ClientOptions& options, Network* network, bool keep_timeline) {
  // A network on the CPU is a mistake of the calling program.
  auto* const device = dynamic_cast<CudaDevice*>(&network->device());
  if (device == nullptr) {
    return InvalidArgumentError("the network is on ", network->device().name(),
                                ", which is not a GPU");
  }
  auto network_client = std::make_unique<GpuNetworkClient>(device, network);
  NEREUS_TRY(network_client->Join(options, keep_timeline));
  return network_client;
}

}  // namespace nereus
