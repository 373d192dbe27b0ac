#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/compute/update_rules_cuda.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/needs_gpu.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"
#include "worker/public/gpu.h"

namespace nereus {

// Returns the options of a job with real servers in the test's process.
inline ServerOptions GpuJob(int workers, int shards) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = workers;
  options.spec.shards = shards;
  return options;
}

// True if all workers are done without an error.
inline testing::AssertionResult AllOk(
    const std::vector<absl::Status>& results) {
  for (const absl::Status& result : results) {
    if (!result.ok()) return testing::AssertionFailure() << result;
  }
  return testing::AssertionSuccess();
}

// ToyWorker with its layers in device memory. It makes the same gradients as
// ToyWorker, by work that it queues on a stream. Each step writes its gradients
// over those of the step before. That is safe, because on this stream the
// client's waits come before the writes.
class GpuToyWorker {
 public:
  explicit GpuToyWorker(std::vector<LayerSpec> layers = SmallModel())
      : layers_(std::move(layers)) {
    NEREUS_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (const LayerSpec& layer : layers_) {
      const auto array = [&](int64_t count, float value) {
        return std::make_unique<DeviceArray<float>>(
            std::vector<float>(count, value));
      };
      memory_.push_back(
          {array(layer.parameters, 1.0f), array(layer.parameters, 0.0f),
           array(layer.parameters, 0.0f), array(layer.rows * layer.m, 0.0f),
           array(layer.rows * layer.n, 0.0f)});
    }
  }
  ~GpuToyWorker() {
    NEREUS_CUDA(cudaStreamSynchronize(stream_));
    client_.reset();
    NEREUS_CUDA(cudaStreamDestroy(stream_));
  }

  GpuToyWorker(const GpuToyWorker&) = delete;
  GpuToyWorker& operator=(const GpuToyWorker&) = delete;

  // Returns the layers for ConnectOnGpu. With `with_state`, the velocity
  // is the optimizer state of each layer.
  std::vector<LayerBinding> Bindings(bool with_state = false) const {
    std::vector<LayerBinding> bindings;
    for (size_t i = 0; i < layers_.size(); ++i) {
      LayerBinding& binding = bindings.emplace_back();
      binding.spec = layers_[i];
      if (learns_rows_ && layers_[i].has_factors) {
        binding.spec.rows = kRowsNotKnown;
      }
      binding.parameters = memory_[i].parameters->span();
      if (with_state) binding.state = memory_[i].velocity->span();
    }
    return bindings;
  }

  // Joins the job. With `with_state`, updates of this worker have a momentum of
  // 0.5.
  absl::Status Connect(const ClientOptions& options, const GpuOptions& gpu = {},
                       bool with_state = false) {
    client_ =
        NEREUS_TRY(ConnectOnGpu(options, gpu, Bindings(with_state), stream_));
    momentum_ = with_state ? 0.5f : 0.0f;
    return absl::OkStatus();
  }

  // Does the next step. Updates the parameters if the job does not.
  absl::StatusOr<StepInfo> NextStep() {
    const StepInfo begun = NEREUS_TRY(client_->BeginStep(stream_));
    for (int i = static_cast<int>(layers_.size()) - 1; i >= 0; --i) {
      NEREUS_TRY(Push(i, begun));
    }
    NEREUS_TRY(client_->WaitAll(begun.step, stream_));
    if (!client_->traits().updates_parameters || client_->Skipped(begun.step)) {
      return begun;
    }
    for (size_t i = 0; i < layers_.size(); ++i) Update(i);
    return begun;
  }

  // Joins the job, does `steps` steps, and leaves the job.
  absl::Status Train(const ClientOptions& options, int64_t steps,
                     const GpuOptions& gpu = {}) {
    NEREUS_TRY(Connect(options, gpu));
    for (int64_t step = 0; step < steps; ++step) {
      NEREUS_TRY(NextStep().status());
    }
    return client_->Leave(stream_);
  }

  // Trains with the calls of ToyWorker::TrainLayerByLayer, in the same order.
  absl::Status TrainLayerByLayer(const ClientOptions& options, int64_t steps,
                                 const GpuOptions& gpu = {}) {
    NEREUS_TRY(Connect(options, gpu));
    const int layers = static_cast<int>(layers_.size());
    for (int64_t step = 0; step < steps; ++step) {
      const StepInfo begun = NEREUS_TRY(client_->BeginStep(stream_));
      for (int layer = 0; layer < layers; ++layer) {
        NEREUS_TRY(client_->WaitForward(layer, stream_));
      }
      for (int layer = layers - 1; layer >= 0; --layer) {
        NEREUS_TRY(Push(layer, begun));
      }
    }
    return client_->Leave(stream_);
  }

  // Does the same as that of ToyWorker.
  void set_pushes_dense(bool pushes_dense) { pushes_dense_ = pushes_dense; }
  // Makes the worker join without its rows, report them in each step, and push
  // factors only if the plan sends them.
  void set_learns_rows(bool learns_rows) { learns_rows_ = learns_rows; }

  // Makes the layer's gradient and pushes it.
  absl::Status Push(int layer, const StepInfo& begun) {
    Make(layer, begun);
    if (learns_rows_ && layer == 0) {
      std::vector<int64_t> rows;
      for (const LayerSpec& spec : layers_) {
        rows.push_back(spec.has_factors ? spec.rows : kRowsNotKnown);
      }
      NEREUS_TRY(client_->SetFactorRows(rows));
    }
    return PushAsItIs(layer, begun.step);
  }

  // Queues the work that makes the layer's gradient, or its factors.
  void Make(int layer, const StepInfo& begun) {
    const LayerSpec& spec = layers_[layer];
    const Memory& memory = memory_[layer];
    if (PushesFactors(layer, begun.step)) {
      Fill(*memory.output_gradient, spec.rows * spec.m, begun, 1,
           begun.loss_scale);
      Fill(*memory.input, spec.rows * spec.n, begun, 2, 1.0f);
    } else {
      Fill(*memory.gradient, spec.parameters, begun, 0, begun.loss_scale);
    }
  }

  // Pushes the values that are in the layer's memory. Makes no CUDA call
  // itself; only the client does.
  absl::Status PushAsItIs(int layer, int64_t step) {
    const Memory& memory = memory_[layer];
    if (!PushesFactors(layer, step)) {
      return client_->Push(layer, step, gradient(layer), stream_);
    }
    return client_->PushFactors(
        layer, step, {memory.output_gradient->span(), memory.input->span()},
        gradient(layer), stream_);
  }

  // Waits for the work on the stream. Returns the parameters.
  std::vector<std::vector<float>> parameters() const {
    NEREUS_CUDA(cudaStreamSynchronize(stream_));
    std::vector<std::vector<float>> parameters;
    for (const Memory& memory : memory_) {
      parameters.push_back(memory.parameters->Read());
    }
    return parameters;
  }

  // Destroys the client, on the calling thread.
  void Die() { client_.reset(); }

  Client* client() { return client_.get(); }
  // Returns the scheme of a layer in the latest plan.
  std::string scheme(int layer) const {
    return client_->Report().layers[layer].scheme;
  }
  cudaStream_t stream() const { return stream_; }
  absl::Span<float> gradient(int layer) const {
    return memory_[layer].gradient->span();
  }
  // Returns the layer's parameters, in device memory.
  float* device_parameters(int layer) const {
    return memory_[layer].parameters->data();
  }

 private:
  struct Memory {
    std::unique_ptr<DeviceArray<float>> parameters;
    std::unique_ptr<DeviceArray<float>> velocity;
    std::unique_ptr<DeviceArray<float>> gradient;
    std::unique_ptr<DeviceArray<float>> output_gradient;
    std::unique_ptr<DeviceArray<float>> input;
  };

  bool PushesFactors(int layer, int64_t step) const {
    const int rank = client_->traits().rank;
    return layers_[layer].has_factors &&
           (!learns_rows_ || *client_->factor_rows(layer) > 0) &&
           !(pushes_dense_ && ToyWorker::PushesDense(rank, step));
  }

  // Queues work on the stream that writes the values that ToyWorker would make.
  void Fill(const DeviceArray<float>& array, int64_t count,
            const StepInfo& begun, int salt, float scale) {
    const int rank = client_->traits().rank;
    auto* const values = new std::vector<float>(count);
    for (int64_t i = 0; i < count; ++i) {
      (*values)[i] =
          static_cast<float>((i * 7 + rank * 3 + begun.step + salt) % 11) -
          5.0f;
      (*values)[i] *= scale;
    }
    NEREUS_CUDA(cudaMemcpyAsync(array.data(), values->data(), count * 4,
                                cudaMemcpyHostToDevice, stream_));
    NEREUS_CUDA(cudaLaunchHostFunc(
        stream_,
        [](void* done) { delete static_cast<std::vector<float>*>(done); },
        values));
  }

  // Queues an update of the layer's parameters by the mean gradient.
  void Update(size_t layer) {
    const Memory& memory = memory_[layer];
    SgdStep sgd;
    sgd.learning_rate = 0.01f;
    sgd.momentum = momentum_;
    NEREUS_CUDA(ApplySgdCuda(sgd, layers_[layer].parameters,
                             memory.gradient->data(), memory.parameters->data(),
                             memory.velocity->data(), memory.parameters->data(),
                             /*note=*/{}, stream_));
  }

  const std::vector<LayerSpec> layers_;
  bool pushes_dense_ = false;
  bool learns_rows_ = false;
  float momentum_ = 0.0f;
  cudaStream_t stream_ = nullptr;
  std::vector<Memory> memory_;
  // Last member, so destroyed first: the client uses the memory above.
  std::unique_ptr<Client> client_;
};

}  // namespace nereus
