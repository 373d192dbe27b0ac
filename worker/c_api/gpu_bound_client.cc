#include <algorithm>
#include <utility>

#include "worker/c_api/bound_client.h"
#include "worker/public/gpu_client.h"

namespace nereus {
namespace {

class GpuBoundClient final : public BoundClient {
 public:
  GpuBoundClient(std::unique_ptr<GpuClient> client,
                 std::vector<GpuLayerBinding> layers)
      : client_(std::move(client)), layers_(std::move(layers)) {}

  absl::Status AwaitJoined(absl::Duration timeout,
                           CUstream_st* stream) override {
    return client_->AwaitJoined(stream, timeout);
  }
  absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout,
                                     CUstream_st* stream) override {
    return client_->BeginStep(stream, timeout);
  }
  absl::Status Push(int layer, int64_t step, float* gradient, int64_t length,
                    CUstream_st* stream) override {
    NEREUS_TRY(CheckLayer(layer));
    const LayerSpec& spec = layers_[layer].spec;
    NEREUS_TRY(CheckLength(spec, "the gradient", length, spec.parameters));
    return client_->Push(layer, step, gradient, stream);
  }
  absl::Status PushFactors(int layer, int64_t step,
                           const nereus_factors& factors, float* gradient,
                           int64_t length, CUstream_st* stream) override {
    NEREUS_TRY(CheckLayer(layer));
    const LayerSpec& spec = layers_[layer].spec;
    NEREUS_TRY(CheckLength(spec, "the gradient", length, spec.parameters));
    // The client compares the rows with those that it takes.
    const int64_t rows = factors.output_gradient_length / spec.m;
    NEREUS_TRY(CheckLength(spec, "the output gradient",
                           factors.output_gradient_length,
                           std::max<int64_t>(rows, 1) * spec.m));
    NEREUS_TRY(
        CheckLength(spec, "the input", factors.input_length, rows * spec.n));
    return client_->PushFactors(layer, step,
                                {factors.output_gradient, factors.input, rows},
                                gradient, stream);
  }
  absl::Status Wait(int layer, int64_t step, absl::Duration timeout,
                    CUstream_st* stream) override {
    return client_->Wait(layer, step, stream, timeout);
  }
  absl::Status WaitForward(int layer, absl::Duration timeout,
                           CUstream_st* stream) override {
    return client_->WaitForward(layer, stream, timeout);
  }
  absl::Status WaitAll(int64_t step, absl::Duration timeout,
                       CUstream_st* stream) override {
    return client_->WaitAll(step, stream, timeout);
  }
  absl::StatusOr<absl::Span<const float>> Mean(int layer) const override {
    NEREUS_TRY(CheckLayer(layer));
    return FailedPreconditionError(
        "a client of a GPU writes the mean gradient over the pushed gradient, "
        "in the GPU's memory");
  }
  absl::StatusOr<int64_t> FactorRows(int layer) const override {
    NEREUS_TRY(CheckLayer(layer));
    return client_->client().factor_rows(layer);
  }
  absl::Status SetFactorRows(absl::Span<const int64_t> rows) override {
    return client_->SetFactorRows(rows);
  }
  absl::Status Checkpoint() override { return client_->Checkpoint(); }
  absl::Status Abort(absl::string_view reason) override {
    return client_->Abort(reason);
  }
  absl::Status Leave(bool early, absl::Duration timeout,
                     CUstream_st* stream) override {
    return early ? client_->LeaveEarly(stream, timeout)
                 : client_->Leave(stream, timeout);
  }
  const Client& client() const override { return client_->client(); }

 private:
  absl::Status CheckLayer(int layer) const {
    if (layer >= 0 && layer < std::ssize(layers_)) return absl::OkStatus();
    return InvalidArgumentError("there is no layer ", layer, ": the model has ",
                                layers_.size(), " layers, numbered from 0");
  }
  static absl::Status CheckLength(const LayerSpec& spec, absl::string_view what,
                                  int64_t length, int64_t expected) {
    if (length == expected) return absl::OkStatus();
    return InvalidArgumentError("layer ", spec.name, ": ", what, " has ",
                                length, " values, must have ", expected);
  }

  const std::unique_ptr<GpuClient> client_;
  const std::vector<GpuLayerBinding> layers_;  // The caller's layers.
};

}  // namespace

absl::StatusOr<std::unique_ptr<BoundClient>> JoinOnGpu(const Binding& binding,
                                                       CUstream_st* stream) {
  auto client = NEREUS_TRY(
      GpuClient::Join(binding.options, binding.gpu, binding.layers, stream));
  return std::make_unique<GpuBoundClient>(std::move(client), binding.layers);
}

}  // namespace nereus
