#include <utility>

#include "worker/c_api/bound_client.h"
#include "worker/client/host_client.h"

namespace nereus {
namespace {

absl::Span<float> SpanOf(float* values, int64_t length) {
  return {values, static_cast<size_t>(length)};
}

class HostBoundClient final : public BoundClient {
 public:
  HostBoundClient(std::unique_ptr<HostClient> client, int layer_count)
      : client_(std::move(client)), layer_count_(layer_count) {}

  absl::Status AwaitJoined(absl::Duration timeout, CUstream_st*) override {
    return client_->AwaitJoined(timeout);
  }
  absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout,
                                     CUstream_st*) override {
    return client_->BeginStep(timeout);
  }
  absl::Status Push(int layer, int64_t step, float* gradient, int64_t length,
                    CUstream_st*) override {
    return client_->PushArriving(layer, step, SpanOf(gradient, length),
                                 /*arrival=*/nullptr);
  }
  absl::Status PushFactors(int layer, int64_t step,
                           const nereus_factors& factors, float* gradient,
                           int64_t length, CUstream_st*) override {
    const auto view = [](const float* values, int64_t count) {
      return absl::MakeConstSpan(values, static_cast<size_t>(count));
    };
    return client_->PushFactors(
        layer, step,
        {view(factors.output_gradient, factors.output_gradient_length),
         view(factors.input, factors.input_length)},
        SpanOf(gradient, length));
  }
  absl::Status Wait(int layer, int64_t step, absl::Duration timeout,
                    CUstream_st*) override {
    return client_->Wait(layer, step, timeout);
  }
  absl::Status WaitForward(int layer, absl::Duration timeout,
                           CUstream_st*) override {
    return client_->WaitForward(layer, timeout);
  }
  absl::Status WaitAll(int64_t step, absl::Duration timeout,
                       CUstream_st*) override {
    return client_->WaitAll(step, timeout);
  }
  absl::StatusOr<absl::Span<const float>> Mean(int layer) const override {
    NEREUS_TRY(CheckLayer(layer));
    if (!client_->traits().updates_parameters) {
      return FailedPreconditionError(
          "the job updates the parameters (--optimizer=server), so there is "
          "no mean gradient for the caller");
    }
    const absl::Span<const float> mean = client_->Mean(layer);
    if (!mean.empty()) return mean;
    return FailedPreconditionError(
        "layer ", layer,
        " has no mean gradient: push it, and wait for it, in this step");
  }
  absl::StatusOr<int64_t> FactorRows(int layer) const override {
    NEREUS_TRY(CheckLayer(layer));
    return client_->factor_rows(layer);
  }
  absl::Status SetFactorRows(absl::Span<const int64_t> rows) override {
    return client_->SetFactorRows(rows);
  }
  absl::Status Checkpoint() override { return client_->Checkpoint(); }
  absl::Status Abort(absl::string_view reason) override {
    return client_->Abort(reason);
  }
  absl::Status Leave(bool early, absl::Duration timeout,
                     CUstream_st*) override {
    return early ? client_->LeaveEarly(timeout) : client_->Leave(timeout);
  }
  const Client& client() const override { return *client_; }

 private:
  absl::Status CheckLayer(int layer) const {
    if (layer >= 0 && layer < layer_count_) return absl::OkStatus();
    return InvalidArgumentError("there is no layer ", layer, ": the model has ",
                                layer_count_, " layers, numbered from 0");
  }

  const std::unique_ptr<HostClient> client_;
  const int layer_count_;  // Number of layers of the model.
};

}  // namespace

absl::StatusOr<std::unique_ptr<BoundClient>> JoinOnHost(
    const Binding& binding) {
  std::vector<HostLayerBinding> layers;
  for (const GpuLayerBinding& layer : binding.layers) {
    layers.push_back(
        {{layer.spec, SpanOf(layer.parameters, layer.spec.parameters),
          SpanOf(layer.state, layer.state_arrays * layer.spec.parameters)}});
  }
  auto client = NEREUS_TRY(
      HostClient::Join({.client = binding.options}, std::move(layers)));
  return std::make_unique<HostBoundClient>(
      std::move(client), static_cast<int>(binding.layers.size()));
}

}  // namespace nereus
