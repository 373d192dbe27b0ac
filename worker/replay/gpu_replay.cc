#include "worker/replay/gpu_replay.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/device/cuda_status.h"
#include "common/device/device_memory.h"
#include "common/device/device_scope.h"
#include "worker/public/gpu_client.h"
#include "worker/replay/spin_cuda.h"

namespace nereus {
namespace {

// Replay on a GPU: a thin layer over GpuClient, and kernels that spin. In a
// step, this class queues its work on one stream, as a trainer does; the client
// copies on other streams. During steps, the calling thread waits for the GPU
// only in the client's calls and in BetweenMarks.
class GpuReplay final : public ReplayDevice {
 public:
  explicit GpuReplay(int number)
      : number_(number), name_(absl::StrCat("GPU ", number)) {}
  ~GpuReplay() override;
  GpuReplay(const GpuReplay&) = delete;
  GpuReplay& operator=(const GpuReplay&) = delete;

  // Makes the stream and the memory, and connects the client. Called once,
  // first.
  absl::Status Join(const ClientOptions& options,
                    const std::vector<LayerSpec>& specs);

  const Client& client() const override { return client_->client(); }
  absl::StatusOr<StepInfo> BeginStep() override {
    return client_->BeginStep(stream_);
  }
  absl::Status Push(int layer, int64_t step) override;
  absl::Status WaitForward(int layer) override {
    return client_->WaitForward(layer, stream_);
  }
  absl::Status WaitAll(int64_t step) override {
    return client_->WaitAll(step, stream_);
  }
  absl::Status Leave(bool early) override;
  absl::Status Compute(absl::Duration time) override;
  absl::Status MarkBackward() override;
  absl::StatusOr<absl::Duration> BetweenMarks() override;
  absl::StatusOr<std::optional<GpuUse>> gpu_use() const override;

 private:
  // Memory of one layer on the GPU.
  struct Layer {
    LayerSpec spec;
    DeviceMemory parameters;
    DeviceMemory gradient;
    // Factors; empty for a layer without factors.
    DeviceMemory output_gradient;
    DeviceMemory input;
  };

  // Makes the stream and the events.
  absl::Status Start();
  // Returns memory of the GPU for `values`, and begins to copy them there. The
  // copy is done once the default stream is. Empty memory for no values.
  absl::StatusOr<DeviceMemory> Upload(absl::string_view what,
                                      const std::vector<float>& values) const;

  const int number_;        // Number of the GPU, as for cudaSetDevice.
  const std::string name_;  // Name of the GPU in messages.
  cudaStream_t stream_ = nullptr;
  // Events of MarkBackward, which takes them in turn. They record the time.
  std::array<cudaEvent_t, 2> marks_ = {};
  int last_mark_ = 0;  // Index of the event of the last call.
  std::vector<Layer> layers_;
  // Bytes that the client had copied since Connect: before the first step, and
  // after the last one.
  GpuClient::Staged staged_before_;
  GpuClient::Staged staged_after_;
  // Uses the memory above, so the destructor destroys the client first.
  std::unique_ptr<GpuClient> client_;
};

GpuReplay::~GpuReplay() {
  const DeviceScope scope(number_, name_);
  // Waits, because queued work may use the memory and the client's events.
  if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  client_.reset();
  for (const cudaEvent_t mark : marks_) {
    if (mark != nullptr) (void)cudaEventDestroy(mark);
  }
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

absl::Status GpuReplay::Start() {
  NEREUS_TRY(CheckDevice(number_));
  NEREUS_TRY(CudaStatus(cudaSetDevice(number_), name_, "cudaSetDevice"));
  NEREUS_TRY(
      CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                 name_, "cudaStreamCreateWithFlags"));
  for (cudaEvent_t& mark : marks_) {
    NEREUS_TRY(
        CudaStatus(cudaEventCreateWithFlags(&mark, cudaEventBlockingSync),
                   name_, "cudaEventCreateWithFlags"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMemory> GpuReplay::Upload(
    absl::string_view what, const std::vector<float>& values) const {
  if (values.empty()) return DeviceMemory();
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  DeviceMemory memory =
      NEREUS_TRY(DeviceMemory::Allocate(number_, what, bytes));
  // cudaMemcpy returns once CUDA has read the values. Join waits until they are
  // on the GPU.
  NEREUS_TRY(
      CudaStatus(cudaMemcpy(memory.data(), values.data(),
                            static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
                 what, "cudaMemcpy", bytes));
  return memory;
}

absl::Status GpuReplay::Join(const ClientOptions& options,
                             const std::vector<LayerSpec>& specs) {
  NEREUS_TRY(Start());
  std::vector<GpuLayerBinding> bindings;
  for (const LayerSpec& spec : specs) {
    const ReplayLayer values =
        MakeReplayLayer(spec, static_cast<int>(layers_.size()));
    const std::string what = absl::StrCat("layer ", spec.name);
    Layer& layer = layers_.emplace_back();
    layer.spec = spec;
    layer.parameters = NEREUS_TRY(Upload(what, values.parameters));
    layer.gradient = NEREUS_TRY(Upload(what, values.gradient));
    layer.output_gradient = NEREUS_TRY(Upload(what, values.output_gradient));
    layer.input = NEREUS_TRY(Upload(what, values.input));
    bindings.push_back(
        {.spec = spec,
         .parameters = static_cast<float*>(layer.parameters.data())});
  }
  // The copies above are work of the default stream, which stream_ does not
  // wait for.
  NEREUS_TRY(CudaStatus(cudaStreamSynchronize(nullptr), name_,
                        "cudaStreamSynchronize"));
  GpuOptions gpu;
  gpu.device = number_;
  gpu.timeline = true;
  client_ = NEREUS_TRY(
      GpuClient::Connect(options, gpu, std::move(bindings), stream_));
  staged_before_ = client_->staged();
  return absl::OkStatus();
}

absl::Status GpuReplay::Push(int layer, int64_t step) {
  const Layer& memory = layers_[layer];
  auto* const gradient = static_cast<float*>(memory.gradient.data());
  if (!memory.spec.has_factors) {
    return client_->Push(layer, step, gradient, stream_);
  }
  return client_->PushFactors(
      layer, step,
      {static_cast<const float*>(memory.output_gradient.data()),
       static_cast<const float*>(memory.input.data())},
      gradient, stream_);
}

absl::Status GpuReplay::Leave(bool early) {
  // Waits for the last results, so that their copies count: in a decoupled job
  // nothing has waited for them.
  for (size_t i = 0; i < layers_.size(); ++i) {
    NEREUS_TRY(WaitForward(static_cast<int>(i)));
  }
  // Leave makes the client copy parameters to the host once more where the GPU
  // has updated them: all layers with `optimizer=worker`, else worker-owned
  // layers. The client needs them for checksums, and one worker also for the
  // job's last checkpoint. These copies belong to no step, so they do not
  // count.
  staged_after_ = client_->staged();
  return early ? client_->LeaveEarly(stream_) : client_->Leave(stream_);
}

absl::Status GpuReplay::Compute(absl::Duration time) {
  if (time == absl::ZeroDuration()) return absl::OkStatus();
  return CudaStatus(SpinCuda(absl::ToInt64Nanoseconds(time), stream_), name_,
                    "SpinCuda");
}

absl::Status GpuReplay::MarkBackward() {
  last_mark_ = 1 - last_mark_;
  return CudaStatus(cudaEventRecord(marks_[last_mark_], stream_), name_,
                    "cudaEventRecord");
}

absl::StatusOr<absl::Duration> GpuReplay::BetweenMarks() {
  NEREUS_TRY(CudaStatus(cudaEventSynchronize(marks_[last_mark_]), name_,
                        "cudaEventSynchronize"));
  float milliseconds = 0.0f;
  NEREUS_TRY(
      CudaStatus(cudaEventElapsedTime(&milliseconds, marks_[1 - last_mark_],
                                      marks_[last_mark_]),
                 name_, "cudaEventElapsedTime"));
  return absl::Milliseconds(milliseconds);
}

absl::StatusOr<std::optional<GpuUse>> GpuReplay::gpu_use() const {
  GpuUse use;
  use.staged = {staged_after_.bytes_out - staged_before_.bytes_out,
                staged_after_.bytes_in - staged_before_.bytes_in};
  use.timeline = NEREUS_TRY(client_->Timeline());
  return use;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplayDevice>> JoinReplayOnGpu(
    const ClientOptions& options, const std::vector<LayerSpec>& layers,
    int number) {
  auto replay = std::make_unique<GpuReplay>(number);
  NEREUS_TRY(replay->Join(options, layers));
  return replay;
}

}  // namespace nereus
