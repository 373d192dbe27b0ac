#include "worker/public/gpu_client.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/device/stager.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"
#include "common/tensor/value_range.h"
#include "worker/client/layer_bindings.h"
#include "worker/gpu/device_factors.h"
#include "worker/gpu/device_look.h"
#include "worker/gpu/gpu_accelerator.h"
#include "worker/gpu/gpu_mirror.h"
#include "worker/gpu/gpu_pools.h"
#include "worker/gpu/gpu_splitter.h"
#include "worker/gpu/gpu_timeline.h"
#include "worker/gpu/push_stager.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// How often one who waits for pinned memory looks whether all is over.
constexpr absl::Duration kLookInterval = absl::Milliseconds(1);

int64_t BytesOf(const LayerSpec& spec) { return spec.parameters * kFloatBytes; }

absl::Span<float> FloatsOf(const Buffer& values) {
  return {values.floats(), static_cast<size_t>(values.float_count())};
}

// The client's side of what is pushed and not yet waited for.
//
//   Push --queue--> staging thread: pinned memory, copy, first piece
//                      --PushArriving--> Client --done--> copy back --> Wait
class GpuClientImpl final : public GpuClient {
 public:
  GpuClientImpl(ClientOptions options, const GpuOptions& gpu,
                std::vector<GpuLayerBinding> layers)
      : options_(std::move(options)),
        gpu_(gpu),
        layers_(std::move(layers)),
        flights_(layers_.size()) {}
  ~GpuClientImpl() override;

  absl::Status Start(cudaStream_t stream);

  absl::StatusOr<StepInfo> BeginStep(cudaStream_t stream) override;
  absl::Status Push(int layer, int64_t step, float* gradient,
                    cudaStream_t stream) override;
  absl::Status PushFactors(int layer, int64_t step, const GpuFactors& factors,
                           float* gradient, cudaStream_t stream) override;
  absl::Status Wait(int layer, int64_t step, cudaStream_t stream) override;
  absl::Status WaitForward(int layer, cudaStream_t stream) override;
  absl::Status WaitAll(int64_t step, cudaStream_t stream) override;
  absl::Status Leave(cudaStream_t stream) override;
  Staged staged() const override {
    return {stager_->bytes_out(), stager_->bytes_in()};
  }
  absl::StatusOr<std::vector<GpuSpan>> Timeline() const override;
  const Client& client() const override { return *client_; }

 private:
  // Where a layer's last push is.
  struct Flight {
    int64_t step = -1;       // Below 0: none was pushed.
    bool handed_on = false;  // To the client, or it has failed.
    bool done = false;
    absl::Status failure;
    float* gradient = nullptr;
    bool by_factors = false;
    bool hurried = false;
    Buffer values;  // Pinned, where the mean will be.
    absl::StatusOr<Stager::Point> landed = Stager::Point();
  };

  std::string NameOf(int layer, absl::string_view what) const {
    return absl::StrCat("layer ", layers_[layer].spec.name, ", ", what);
  }
  // What `stream` has come to by now is where parameters start from.
  absl::StatusOr<std::vector<HostLayerBinding>> Bind(cudaStream_t stream);
  absl::Status CheckLayer(int layer) const;
  absl::Status CheckMemory(int layer, absl::string_view name,
                           const float* memory) const;
  absl::Status CheckGradient(int layer, int64_t step,
                             const float* gradient) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Queue(GpuPush pushed, cudaStream_t stream)
      ABSL_LOCKS_EXCLUDED(mu_);

  // On the staging thread.
  void StagePushes() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Buffer> TakePinned(const std::string& what, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Has the client finish what it may hold back in the hope of more. Errors: it
  // never will, since the job has gone back, or failed.
  absl::Status HurryAll() ABSL_LOCKS_EXCLUDED(mu_);

  void OnDone(int layer, int64_t step, bool fetched) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies what a round came to back; the point at which it is there.
  absl::StatusOr<Stager::Point> Land(int layer, int64_t step, bool by_factors,
                                     const Buffer& mean, float* gradient);
  // What the last round has changed of a layer's parameters.
  std::vector<ValueRange> Updated(int layer) const;
  // Waits until it has been handed on.
  absl::Status AwaitHandedOn(int layer, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);

  const ClientOptions options_;
  const GpuOptions gpu_;
  const std::vector<GpuLayerBinding> layers_;
  // Outlive the stager: its copies have memory of theirs.
  GpuPools pools_;
  // The staging thread's.
  std::unique_ptr<PushStager> pushes_;
  std::unique_ptr<Stager> stager_;
  std::unique_ptr<GpuTimeline> timeline_;
  std::unique_ptr<DeviceLook> look_;
  std::shared_ptr<DeviceFactors> products_;
  // By layer.
  std::vector<std::shared_ptr<GpuMirror>> mirrors_;
  std::vector<std::shared_ptr<GpuSplitter>> splitters_;  // Null: on the host.
  // Constant after Start.
  bool updates_parameters_ = false;
  bool is_sparse_ = false;

  mutable Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool staging_ ABSL_GUARDED_BY(mu_) = false;  // One that is off the queue.
  std::deque<GpuPush> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<Flight> flights_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<HostClient> client_;
  std::thread thread_;  // Stages.
};

GpuClientImpl::~GpuClientImpl() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  client_.reset();
}

absl::StatusOr<std::vector<HostLayerBinding>> GpuClientImpl::Bind(
    cudaStream_t stream) {
  std::vector<HostLayerBinding> bindings;
  for (const GpuLayerBinding& layer : layers_) {
    NEREUS_ASSIGN_OR_RETURN(
        auto mirror,
        GpuMirror::Create(layer, stager_.get(), *pools_.own, stream));
    std::shared_ptr<GpuSplitter> splitter;
    if (!layer.on_host) {
      splitter = std::make_shared<GpuSplitter>(
          static_cast<int>(bindings.size()), layer.spec, layer.parameters,
          stager_.get(), pools_.own.get(), timeline_.get());
    }
    bindings.push_back({{layer.spec, FloatsOf(mirror->parameters()),
                         FloatsOf(mirror->state())},
                        mirror});
    mirrors_.push_back(std::move(mirror));
    splitters_.push_back(std::move(splitter));
  }
  return bindings;
}

absl::Status GpuClientImpl::Start(cudaStream_t stream) {
  NEREUS_RETURN_IF_ERROR(CheckGpuLayers(layers_, gpu_));
  NEREUS_ASSIGN_OR_RETURN(stager_, Stager::Create(gpu_.device));
  timeline_ = std::make_unique<GpuTimeline>(gpu_.device, gpu_.timeline);
  NEREUS_ASSIGN_OR_RETURN(products_, DeviceFactors::Create(gpu_.device));
  pools_ = MakeGpuPools(layers_, gpu_);
  NEREUS_ASSIGN_OR_RETURN(look_,
                          DeviceLook::Create(stager_.get(), *pools_.own));
  NEREUS_ASSIGN_OR_RETURN(std::vector<HostLayerBinding> bindings, Bind(stream));
  HostClientOptions options = {.client = options_};
  options.accelerator = std::make_shared<GpuAccelerator>(products_, splitters_);
  options.client.means_in_place = true;
  options.done = [this](int layer, int64_t step, bool fetched) {
    OnDone(layer, step, fetched);
  };
  NEREUS_ASSIGN_OR_RETURN(
      client_, HostClient::Connect(std::move(options), std::move(bindings)));
  updates_parameters_ = client_->traits().updates_parameters;
  is_sparse_ = client_->traits().sparse;
  pushes_ = std::make_unique<PushStager>(
      PushStager::Parts{&layers_, stager_.get(), timeline_.get(), look_.get(),
                        client_.get(), &splitters_},
      [this](const std::string& what, int64_t bytes) {
        return TakePinned(what, bytes);
      });
  thread_ = std::thread([this] { StagePushes(); });
  for (const auto& mirror : mirrors_) {
    NEREUS_RETURN_IF_ERROR(mirror->Return(stream));
  }
  return absl::OkStatus();
}

absl::Status GpuClientImpl::CheckLayer(int layer) const {
  if (layer >= 0 && layer < static_cast<int>(layers_.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no layer ", layer, ", the model has ",
                   layers_.size(), ", from 0 on"));
}

absl::StatusOr<StepInfo> GpuClientImpl::BeginStep(cudaStream_t stream) {
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return queue_.empty() && !staging_;
    });
  }
  NEREUS_ASSIGN_OR_RETURN(const StepInfo info, client_->BeginStep());
  if (info.went_back) {
    MutexLock lock(&mu_);
    for (Flight& flight : flights_) flight = Flight();
  }
  for (const auto& mirror : mirrors_) {
    NEREUS_RETURN_IF_ERROR(mirror->Return(stream));
  }
  timeline_->Begin(GpuSpan::Kind::kCompute, 0, info.step, stream);
  return info;
}

absl::Status GpuClientImpl::CheckMemory(int layer, absl::string_view name,
                                        const float* memory) const {
  const std::string what = NameOf(layer, name);
  if (!layers_[layer].on_host) return stager_->CheckPointer(what, memory);
  if (memory != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is null"));
}

absl::Status GpuClientImpl::CheckGradient(int layer, int64_t step,
                                          const float* gradient) const {
  NEREUS_RETURN_IF_ERROR(CheckMemory(layer, "gradient", gradient));
  MutexLock lock(&mu_);
  const Flight& before = flights_[layer];
  if (before.step < 0 || before.done || !before.failure.ok()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layers_[layer].spec.name, ": step ", step,
                   " is pushed before the Wait for step ", before.step));
}

absl::Status GpuClientImpl::Queue(GpuPush pushed, cudaStream_t stream) {
  const int layer = pushed.layer;
  timeline_->End(GpuSpan::Kind::kCompute, layer, pushed.step, stream);
  NEREUS_ASSIGN_OR_RETURN(pushed.made,
                          stager_->Mark(NameOf(layer, "gradient"), stream));
  timeline_->Begin(GpuSpan::Kind::kCompute, layer, pushed.step, stream);
  // The caller has updated them, if that is its part.
  if (updates_parameters_) {
    NEREUS_RETURN_IF_ERROR(mirrors_[layer]->Outdate(stream));
  }
  MutexLock lock(&mu_);
  Flight& flight = flights_[layer];
  flight = Flight();
  flight.step = pushed.step;
  flight.gradient = pushed.gradient;
  flight.by_factors = pushed.factors.input != nullptr;
  queue_.push_back(std::move(pushed));
  return absl::OkStatus();
}

absl::Status GpuClientImpl::Push(int layer, int64_t step, float* gradient,
                                 cudaStream_t stream) {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  NEREUS_RETURN_IF_ERROR(client_->Interruption());
  NEREUS_RETURN_IF_ERROR(CheckGradient(layer, step, gradient));
  NEREUS_RETURN_IF_ERROR(CheckHasNoFactors(layers_[layer].spec));
  return Queue({layer, step, gradient, {}, {}}, stream);
}

absl::Status GpuClientImpl::PushFactors(int layer, int64_t step,
                                        const GpuFactors& factors,
                                        float* gradient, cudaStream_t stream) {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  NEREUS_RETURN_IF_ERROR(client_->Interruption());
  NEREUS_RETURN_IF_ERROR(CheckGradient(layer, step, gradient));
  const LayerSpec& spec = layers_[layer].spec;
  if (!spec.has_factors) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", DescribeLayer(spec), " has no factors"));
  }
  NEREUS_RETURN_IF_ERROR(
      CheckMemory(layer, "output gradient", factors.output_gradient));
  NEREUS_RETURN_IF_ERROR(CheckMemory(layer, "input", factors.input));
  if (client_->takes_factors(layer) || layers_[layer].on_host) {
    return Queue({layer, step, gradient, factors, {}}, stream);
  }
  NEREUS_RETURN_IF_ERROR(
      products_->MultiplyOwn(spec, factors, gradient, stream));
  return Queue({layer, step, gradient, {}, {}}, stream);
}

void GpuClientImpl::StagePushes() {
  while (true) {
    GpuPush pushed;
    {
      MutexLock lock(&mu_);
      staging_ = false;
      mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      });
      if (stopping_) return;
      pushed = std::move(queue_.front());
      queue_.pop_front();
      staging_ = true;
    }
    const int layer = pushed.layer;
    absl::StatusOr<PushStager::Staged> staged = pushes_->Stage(pushed);
    absl::Status status = staged.status();
    if (staged.ok()) {
      {
        MutexLock lock(&mu_);
        flights_[layer].values = std::move(staged->values);
      }
      status = staged->hand_on();
    }
    const bool goes_on = staged.ok() || absl::IsCancelled(status) ||
                         !client_->Interruption().ok();
    // Without this gradient nobody can.
    if (!goes_on) client_->Abort(status.message()).IgnoreError();
    MutexLock lock(&mu_);
    Flight& flight = flights_[layer];
    flight.failure = std::move(status);
    flight.handed_on = true;
  }
}

absl::StatusOr<Buffer> GpuClientImpl::TakePinned(const std::string& what,
                                                 int64_t bytes) {
  const absl::Time deadline = SteadyNow() + options_.round_timeout;
  absl::Duration patience = absl::ZeroDuration();
  while (true) {
    absl::StatusOr<Buffer> values =
        pools_.gradients->Take(what, bytes, patience);
    if (!absl::IsDeadlineExceeded(values.status())) return values;
    {
      MutexLock lock(&mu_);
      if (stopping_) return absl::CancelledError("the client is closed");
    }
    if (SteadyNow() > deadline) return values.status();
    NEREUS_RETURN_IF_ERROR(HurryAll());
    stager_->ReleaseRead();
    patience = kLookInterval;
  }
}

absl::Status GpuClientImpl::HurryAll() {
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    {
      MutexLock lock(&mu_);
      Flight& flight = flights_[layer];
      const bool waits =
          flight.handed_on && flight.failure.ok() && !flight.done;
      if (!waits || std::exchange(flight.hurried, true)) continue;
    }
    NEREUS_RETURN_IF_ERROR(client_->Hurry(layer));
  }
  return client_->Interruption();
}

void GpuClientImpl::OnDone(int layer, int64_t step, bool fetched) {
  if (fetched) return mirrors_[layer]->NoteFetched();
  Buffer mean;
  float* gradient = nullptr;
  bool by_factors = false;
  {
    MutexLock lock(&mu_);
    Flight& flight = flights_[layer];
    if (flight.step != step) return;
    mean = std::exchange(flight.values, Buffer());
    gradient = flight.gradient;
    by_factors = flight.by_factors;
  }
  absl::StatusOr<Stager::Point> landed =
      Land(layer, step, by_factors, mean, gradient);
  MutexLock lock(&mu_);
  flights_[layer].done = true;
  flights_[layer].landed = std::move(landed);
}

absl::StatusOr<Stager::Point> GpuClientImpl::Land(int layer, int64_t step,
                                                  bool by_factors,
                                                  const Buffer& mean,
                                                  float* gradient) {
  const std::string what = NameOf(layer, "mean gradient");
  if (layers_[layer].on_host) return Stager::Point();
  if (updates_parameters_ && by_factors) {
    return stager_->Mark(what, products_->stream());
  }
  timeline_->Begin(GpuSpan::Kind::kCopyIn, layer, step, stager_->in());
  auto landed = updates_parameters_ ? stager_->CopyIn(what, mean, gradient, {})
                                    : mirrors_[layer]->Land(Updated(layer));
  timeline_->End(GpuSpan::Kind::kCopyIn, layer, step, stager_->in());
  return landed;
}

std::vector<ValueRange> GpuClientImpl::Updated(int layer) const {
  if (is_sparse_) return splitters_[layer]->Travelled();
  return {{0, layers_[layer].spec.parameters}};
}

absl::Status GpuClientImpl::AwaitHandedOn(int layer, int64_t step) {
  MutexLock lock(&mu_);
  const Flight& flight = flights_[layer];
  if (flight.step != step) return absl::OkStatus();  // The client says why.
  mu_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return flight.handed_on || flight.step != step || stopping_;
  });
  return flight.step == step ? flight.failure : absl::OkStatus();
}

absl::Status GpuClientImpl::Wait(int layer, int64_t step, cudaStream_t stream) {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  NEREUS_RETURN_IF_ERROR(AwaitHandedOn(layer, step));
  NEREUS_RETURN_IF_ERROR(client_->Wait(layer, step));
  MutexLock lock(&mu_);
  Flight& flight = flights_[layer];
  if (flight.step != step) return absl::OkStatus();
  NEREUS_RETURN_IF_ERROR(flight.landed.status());
  return stager_->Follow(NameOf(layer, "outcome"), stream, *flight.landed);
}

absl::Status GpuClientImpl::WaitForward(int layer, cudaStream_t stream) {
  NEREUS_RETURN_IF_ERROR(CheckLayer(layer));
  int64_t step = 0;
  {
    MutexLock lock(&mu_);
    step = flights_[layer].step;
  }
  return step < 0 ? client_->WaitForward(layer) : Wait(layer, step, stream);
}

absl::Status GpuClientImpl::WaitAll(int64_t step, cudaStream_t stream) {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    NEREUS_RETURN_IF_ERROR(Wait(static_cast<int>(layer), step, stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GpuSpan>> GpuClientImpl::Timeline() const {
  return timeline_->Read();
}

absl::Status GpuClientImpl::Leave(cudaStream_t stream) {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    NEREUS_RETURN_IF_ERROR(WaitForward(static_cast<int>(layer), stream));
    if (updates_parameters_) {
      NEREUS_RETURN_IF_ERROR(mirrors_[layer]->Outdate(stream));
    }
  }
  return client_->Leave();
}

}  // namespace

absl::Status GpuOptions::Validate() const {
  if (device < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device is ", device, ", not a GPU's number"));
  }
  if (staging_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging_bytes is ", staging_bytes, ", below 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GpuClient>> GpuClient::Connect(
    const ClientOptions& options, const GpuOptions& gpu,
    std::vector<GpuLayerBinding> layers, CUstream_st* stream) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  NEREUS_RETURN_IF_ERROR(gpu.Validate());
  auto client =
      std::make_unique<GpuClientImpl>(options, gpu, std::move(layers));
  NEREUS_RETURN_IF_ERROR(client->Start(stream));
  return client;
}

}  // namespace nereus
