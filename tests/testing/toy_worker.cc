#include "tests/testing/toy_worker.h"

#include <cmath>

#include "absl/types/span.h"
#include "common/base/status.h"

namespace nereus {
namespace {

LayerSpec Conv(const char* name, int64_t m, int64_t n) {
  return {name, LayerKind::kConvolution, m, n, m * n, 1};
}

LayerSpec FullyConnected(const char* name, int64_t m, int64_t n, int64_t rows) {
  return {name, LayerKind::kFullyConnected, m, n, m * n + m, rows, true};
}

}  // namespace

std::vector<LayerSpec> SmallModel() {
  return {Conv("conv", 300, 700), FullyConnected("fc", 64, 128, 8),
          FullyConnected("head", 10, 64, 8)};
}

ToyWorker::ToyWorker(std::vector<LayerSpec> layers) : layers_(layers) {
  for (const LayerSpec& layer : layers_) {
    parameters_.emplace_back(layer.parameters, 1.0f);
    gradients_.emplace_back(layer.parameters);
    output_gradients_.emplace_back(layer.rows * layer.m);
    inputs_.emplace_back(layer.rows * layer.n);
  }
}

absl::Status ToyWorker::Connect(const ClientOptions& options) {
  std::vector<HostLayerBinding> bindings;
  for (size_t i = 0; i < layers_.size(); ++i) {
    bindings.push_back({{layers_[i], absl::MakeSpan(parameters_[i])}});
  }
  client_ = NEREUS_TRY(HostClient::Connect(
      {.client = options, .compute = compute_}, std::move(bindings)));
  return absl::OkStatus();
}

absl::Status ToyWorker::Step(int64_t step) {
  const StepInfo begun = NEREUS_TRY(client_->BeginStep());
  if (begun.step != step) {
    return InternalError("step ", begun.step, " began, not step ", step);
  }
  return Do(begun);
}

absl::StatusOr<int64_t> ToyWorker::NextStep() {
  const StepInfo begun = NEREUS_TRY(client_->BeginStep());
  NEREUS_TRY(Do(begun));
  schemes_.clear();
  for (const LayerReport& layer : client_->Report().layers) {
    schemes_.push_back(layer.scheme);
  }
  return begun.step;
}

absl::Status ToyWorker::Do(const StepInfo& begun) {
  const int64_t step = begun.step;
  loss_scale_ = begun.loss_scale;
  for (int i = static_cast<int>(layers_.size()) - 1; i >= 0; --i) {
    NEREUS_TRY(Push(i, step));
  }
  NEREUS_TRY(client_->WaitAll(step));
  if (client_->Skipped(step)) {
    skipped_.push_back(step);
    return absl::OkStatus();
  }
  if (!client_->traits().updates_parameters) return absl::OkStatus();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const absl::Span<const float> mean =
        NEREUS_TRY(client_->Mean(static_cast<int>(i)));
    for (size_t j = 0; j < parameters_[i].size(); ++j) {
      parameters_[i][j] -= 0.01f * mean[j];
    }
  }
  return absl::OkStatus();
}

absl::Status ToyWorker::Train(const ClientOptions& options, int64_t steps) {
  NEREUS_TRY(Connect(options));
  for (int64_t step = 0; step < steps; ++step) {
    NEREUS_TRY(Step(step));
  }
  return client_->Leave();
}

absl::Status ToyWorker::TrainLayerByLayer(const ClientOptions& options,
                                          int64_t steps) {
  NEREUS_TRY(Connect(options));
  const int layers = static_cast<int>(layers_.size());
  for (int64_t step = 0; step < steps; ++step) {
    NEREUS_TRY(client_->BeginStep().status());
    for (int layer = 0; layer < layers; ++layer) {
      NEREUS_TRY(client_->WaitForward(layer));
    }
    for (int layer = layers - 1; layer >= 0; --layer) {
      NEREUS_TRY(Push(layer, step));
    }
  }
  return client_->Leave();
}

absl::Status ToyWorker::Push(int layer, int64_t step) {
  const int rank = client_->traits().rank;
  const auto fill = [&](std::vector<float>& values, int salt, float scale) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<float>((i * 7 + rank * 3 + step + salt) % 11) - 5.0f;
      values[i] *= scale;
    }
    float& last_but_two = values[values.size() - 3];
    if (poisoned_ == std::pair{layer, step}) last_but_two = poison_;
    if (scale > loss_scale_max_) last_but_two = HUGE_VALF;
  };
  const bool is_dense = pushes_dense_ && PushesDense(rank, step);
  if (!layers_[layer].has_factors || is_dense) {
    fill(gradients_[layer], 0, loss_scale_);
    return client_->Push(layer, step, absl::MakeSpan(gradients_[layer]));
  }
  fill(output_gradients_[layer], 1, loss_scale_);
  fill(inputs_[layer], 2, 1.0f);
  return client_->PushFactors(layer, step,
                              {output_gradients_[layer], inputs_[layer]},
                              absl::MakeSpan(gradients_[layer]));
}

}  // namespace nereus
