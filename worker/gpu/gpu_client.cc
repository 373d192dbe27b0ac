#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/device/stager.h"
#include "common/plan/layer_spec.h"
#include "common/tensor/value_range.h"
#include "worker/client/layer_bindings.h"
#include "worker/client/time_left.h"
#include "worker/gpu/device_factors.h"
#include "worker/gpu/device_look.h"
#include "worker/gpu/gpu_compute.h"
#include "worker/gpu/gpu_flights.h"
#include "worker/gpu/gpu_mirror.h"
#include "worker/gpu/gpu_pools.h"
#include "worker/gpu/gpu_splitter.h"
#include "worker/gpu/gpu_timeline.h"
#include "worker/gpu/push_stager.h"
#include "worker/public/gpu.h"

// The client of layers on a GPU. A push goes this way:
//
//   Push, on the caller's thread: checks, records an event on the stream
//     --GpuFlights--> staging thread (StagePushes): takes pinned memory, queues
//                     copies to the host, waits for the first part only
//     --PushArriving--> HostClient: sends each part once it has arrived
//     --OnPart, OnDone--> queues copies of the result to the GPU; none if the
//                     GPU has made the optimizer's step itself
//     --GpuFlights--> Wait: the caller's stream waits for these copies
//
// Read Start first, which makes all parts, and then the functions in the order
// of the file. Parameters have a copy in pinned memory (GpuMirror); the host
// client reads and writes them there.

namespace nereus {
namespace {

// Interval at which the staging thread, while it waits for pinned memory,
// checks whether the client is closed and the job goes on.
constexpr absl::Duration kLookInterval = absl::Milliseconds(1);

// Client of layers on a GPU, on top of a HostClient.
class GpuClient final : public Client {
 public:
  GpuClient(ClientOptions options, const GpuOptions& gpu,
            std::vector<LayerBinding> layers)
      : options_(std::move(options)),
        gpu_(gpu),
        layers_(std::move(layers)),
        flights_(layers_.size()) {}
  ~GpuClient() override;

  // Makes all parts, and begins to join the job.
  absl::Status Start(Stream stream);

  absl::Status AwaitJoined(absl::Duration timeout, Stream stream) override;
  const JobTraits& traits() const override { return client_->traits(); }
  absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout,
                                     Stream stream) override;
  absl::Status Push(int layer, int64_t step, absl::Span<float> gradient,
                    Stream stream) override;
  absl::Status PushFactors(int layer, int64_t step, const Factors& factors,
                           absl::Span<float> gradient, Stream stream) override;
  absl::Status SetFactorRows(absl::Span<const int64_t> rows) override {
    return client_->SetFactorRows(rows);
  }
  absl::StatusOr<int64_t> factor_rows(int layer) const override {
    return client_->factor_rows(layer);
  }
  absl::Status Wait(int layer, int64_t step, absl::Duration timeout,
                    Stream stream) override;
  absl::Status WaitForward(int layer, absl::Duration timeout,
                           Stream stream) override;
  absl::Status WaitAll(int64_t step, absl::Duration timeout,
                       Stream stream) override;
  absl::StatusOr<absl::Span<const float>> Mean(int layer) const override;
  bool Skipped(int64_t step) const override { return client_->Skipped(step); }
  absl::Status Checkpoint() override { return client_->Checkpoint(); }
  absl::StatusOr<std::vector<std::string>> Gather(
      absl::string_view value, absl::Duration timeout) const override {
    return client_->Gather(value, timeout);
  }
  absl::Status SetDeviceMemory(int64_t resident_bytes,
                               int64_t turn_bytes) override {
    return client_->SetDeviceMemory(resident_bytes, turn_bytes);
  }
  ClientReport Report() const override;
  absl::StatusOr<std::vector<GpuSpan>> Timeline() const override {
    return timeline_->Read();
  }
  absl::Status Abort(absl::string_view reason) override {
    return client_->Abort(reason);
  }

 private:
  absl::Status TakeTurn(absl::Duration timeout) override {
    turn_ = NEREUS_TRY(client_->TakeDeviceTurn(timeout));
    return absl::OkStatus();
  }
  void GiveTurn() override { turn_.reset(); }
  absl::Status LeaveJob(bool early, absl::Duration timeout,
                        Stream stream) override;
  std::string NameOf(int layer, absl::string_view what) const {
    return absl::StrCat("layer ", layers_[layer].spec.name, ", ", what);
  }
  bool updates_parameters() const { return traits_.updates_parameters; }

  // Makes the mirrors and splitters, and the bindings for the host client. Each
  // mirror copies the parameters as they are at this point of `stream`.
  absl::StatusOr<std::vector<HostLayerBinding>> Bind(Stream stream);

  // Makes room in the pool of gradients for the factors of the present plan, if
  // the job has learnt rows. Errors: as CheckStaging.
  absl::Status FitPools();

  // Check arguments. CheckGradient also checks that the layer's last push is
  // not open. Errors: kInvalidArgument, and those of Stager::CheckPointer.
  absl::Status CheckLayer(int layer) const {
    return client_->factor_rows(layer).status();
  }
  // `length`: number of values that the memory must have.
  absl::Status CheckMemory(int layer, absl::string_view name,
                           absl::Span<const float> memory,
                           int64_t length) const;
  absl::Status CheckGradient(int layer, int64_t step,
                             absl::Span<const float> gradient) const;
  // Checks a push before it queues work. Errors: kInvalidArgument,
  // kFailedPrecondition, and those of the job.
  absl::Status CheckPush(int layer, int64_t step,
                         absl::Span<const float> gradient, Stream stream) const;
  // Hands a checked push to the staging thread.
  absl::Status Queue(GpuPush pushed, Stream stream);
  // Body of the staging thread: stages pushes until the client is closed.
  void StagePushes();
  // Returns pinned memory for the staging thread, within round_timeout. Errors:
  // those of PinnedPool::Take and HurryAll; kCancelled, the client is closed.
  absl::StatusOr<Buffer> TakePinned(const std::string& what, int64_t bytes);
  // Makes the host client send the pushes that it has deferred, so that their
  // pinned memory becomes free. Errors: those of HostClient::Interruption. If
  // there is one, no memory becomes free.
  absl::Status HurryAll();

  // Handles a part of a result, on a thread of the host client: copies the part
  // to the GPU. If that fails, Land copies it again.
  void OnPart(const PartDone& part);
  // Handles the end of a round, or with `fetched` the arrival of the layer's
  // values from another member. Called on a thread of the host client.
  void OnDone(const LayerDone& done, bool fetched);
  // Copies the result of a round to the GPU. Returns the point at which it is
  // there.
  absl::StatusOr<Stager::Point> Land(const LayerDone& done,
                                     const GpuFlights::Outcome& outcome);
  // Waits for the last results of all layers. Ends the job, and returns an
  // error, if one of them is not finite (GpuMirror::CheckResults).
  absl::Status CheckResults();
  // Returns the ranges of values of the layer that the last round changed.
  std::vector<ValueRange> Updated(int layer) const;

  const ClientOptions options_;
  const GpuOptions gpu_;
  const std::vector<LayerBinding> layers_;
  // Declared before stager_, so freed after it: its copies use this memory.
  GpuPools pools_;
  // Copies pushes to pinned memory. Once thread_ runs, only it uses this.
  std::unique_ptr<PushStager> pushes_;
  std::unique_ptr<Stager> stager_;
  std::unique_ptr<GpuTimeline> timeline_;
  std::unique_ptr<DeviceLook> look_;  // Searches for NaNs.
  // Multiplies factors. Null: no layer has factors, and cuBLAS is not loaded.
  std::shared_ptr<DeviceFactors> products_;
  // Host copies of the parameters, by layer.
  std::vector<std::shared_ptr<GpuMirror>> mirrors_;
  // Splitters of sparse gradients, by layer. Null: the layer is on the host.
  std::vector<std::shared_ptr<GpuSplitter>> splitters_;
  GpuFlights flights_;
  // Null during Start and the destructor. OnDone and OnPart can be called at
  // both times, so they do not use it.
  std::unique_ptr<HostClient> client_;
  std::optional<DeviceTurn> turn_;  // Turn outside of steps; see TakeTurn.
  JobTraits traits_;                // Traits of the job; set when it is joined.
  // Sum of the learnt rows for which pools_ has room.
  std::atomic<int64_t> fitted_rows_ = 0;
  std::thread thread_;  // Staging thread.
};

GpuClient::~GpuClient() {
  turn_.reset();
  flights_.Stop();
  if (thread_.joinable()) thread_.join();
  // Destroyed first: its threads call OnDone and OnPart, which use the rest.
  client_.reset();
  // A job that has failed leaves copies and updates under way, and the mirrors
  // and moments that they use are destroyed before the stager.
  if (stager_ != nullptr) stager_->Drain();
}

absl::StatusOr<std::vector<HostLayerBinding>> GpuClient::Bind(Stream stream) {
  std::vector<HostLayerBinding> bindings;
  constexpr auto kBadBytes = static_cast<int64_t>(sizeof(BadResult));
  const Buffer bad = NEREUS_TRY(pools_.own->Take(
      "results", std::ssize(layers_) * kBadBytes, absl::ZeroDuration()));
  for (const LayerBinding& layer : layers_) {
    auto mirror = NEREUS_TRY(GpuMirror::Create(
        layer, stager_.get(), pools_.own,
        bad.Slice(std::ssize(bindings) * kBadBytes, kBadBytes), stream));
    std::shared_ptr<GpuSplitter> splitter;
    if (!layer.on_host) {
      splitter = std::make_shared<GpuSplitter>(
          static_cast<int>(bindings.size()), layer.spec,
          layer.parameters.data(), stager_.get(), pools_.own.get(),
          timeline_.get());
    }
    bindings.push_back({{layer.spec, FloatsOf(mirror->parameters()),
                         FloatsOf(mirror->state())},
                        layer.on_host ? nullptr : mirror});
    mirrors_.push_back(std::move(mirror));
    splitters_.push_back(std::move(splitter));
  }
  return bindings;
}

absl::Status GpuClient::Start(Stream stream) {
  NEREUS_TRY(CheckGpuLayers(layers_, gpu_));
  stager_ = NEREUS_TRY(Stager::Create(gpu_.device));
  NEREUS_TRY(stager_->CheckNotCaptured("Connect", stream));
  timeline_ = std::make_unique<GpuTimeline>(gpu_.device, gpu_.timeline);
  if (absl::c_any_of(layers_, [](const LayerBinding& layer) {
        return layer.spec.has_factors;
      })) {
    products_ = NEREUS_TRY(DeviceFactors::Create(stager_.get()));
  }
  pools_ = MakeGpuPools(layers_, gpu_);
  look_ = NEREUS_TRY(DeviceLook::Create(stager_.get(), *pools_.own));
  std::vector<HostLayerBinding> bindings = NEREUS_TRY(Bind(stream));
  HostClientOptions options = {.client = options_, .traced = timeline_.get()};
  options.compute = std::make_shared<GpuCompute>(GpuCompute::Parts{
      stager_.get(), products_, splitters_, mirrors_, pools_.own});
  // Saves a copy on the host: OnPart and Land read a mean where it is made.
  options.client.means_in_place = false;
  options.add_metrics = [this](MetricList& metrics) {
    timeline_->AddMetrics(metrics);
  };
  options.has_queued_all = [this](int64_t step) {
    return flights_.HasAll(step);
  };
  options.part_done = [this](const PartDone& part) { OnPart(part); };
  options.done = [this](const LayerDone& done, bool fetched) {
    OnDone(done, fetched);
  };
  client_ =
      NEREUS_TRY(HostClient::Join(std::move(options), std::move(bindings)));
  return absl::OkStatus();
}

absl::Status GpuClient::AwaitJoined(absl::Duration timeout, Stream stream) {
  if (thread_.joinable()) return absl::OkStatus();
  NEREUS_TRY(stager_->CheckNotCaptured("Connect", stream));
  NEREUS_TRY(client_->AwaitJoined(timeout, stream));
  traits_ = client_->traits();
  pushes_ = std::make_unique<PushStager>(
      PushStager::Parts{&layers_, stager_.get(), timeline_.get(), look_.get(),
                        client_.get(), &splitters_},
      [this](const std::string& what, int64_t bytes) {
        return TakePinned(what, bytes);
      });
  NEREUS_TRY(FitPools());
  NEREUS_TRY(PinAhead(layers_, *pushes_, *pools_.gradients));
  for (const auto& mirror : mirrors_) NEREUS_TRY(mirror->Return(stream));
  // Starts the thread last: a caller can call again after an error above.
  thread_ = std::thread([this] { StagePushes(); });
  return absl::OkStatus();
}

absl::Status GpuClient::FitPools() {
  int64_t learnt = 0;
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    const LayerSpec& spec = layers_[layer].spec;
    if (!spec.has_factors || spec.rows != kRowsNotKnown) continue;
    learnt += std::max<int64_t>(0, client_->RowsForFactors(layer));
  }
  // Known rows stay as they are, so the sum tells whether rows are new.
  if (fitted_rows_.exchange(learnt) == learnt) return absl::OkStatus();
  std::vector<LayerBinding> layers = layers_;
  for (int layer = 0; layer < std::ssize(layers); ++layer) {
    layers[layer].spec.rows = client_->RowsForFactors(layer);
  }
  NEREUS_TRY(CheckStaging(layers, gpu_));
  pools_.gradients->Raise(GradientBytesOf(layers, gpu_));
  return absl::OkStatus();
}

absl::StatusOr<StepInfo> GpuClient::BeginStep(absl::Duration timeout,
                                              Stream stream) {
  const absl::Time until = SteadyNow() + timeout;
  NEREUS_TRY(stager_->CheckNotCaptured("begin of a step", stream));
  NEREUS_TRY(flights_.AwaitStaged(until));
  const StepInfo info = NEREUS_TRY(client_->BeginStep(TimeLeft(until), stream));
  if (info.went_back) flights_.Reset();
  NEREUS_TRY(FitPools());
  for (const auto& mirror : mirrors_) {
    NEREUS_TRY(mirror->Return(stream));
  }
  timeline_->BeginStep(info.step, stream);
  return info;
}

absl::Status GpuClient::CheckMemory(int layer, absl::string_view name,
                                    absl::Span<const float> memory,
                                    int64_t length) const {
  if (std::ssize(memory) != length) {
    return InvalidArgumentError("layer ", layers_[layer].spec.name, ": the ",
                                name, " has ", memory.size(),
                                " values, must have ", length);
  }
  const std::string what = NameOf(layer, name);
  if (!layers_[layer].on_host) {
    return stager_->CheckPointer(what, memory.data());
  }
  if (memory.data() != nullptr) return absl::OkStatus();
  return InvalidArgumentError(what, " is null");
}

absl::Status GpuClient::CheckGradient(int layer, int64_t step,
                                      absl::Span<const float> gradient) const {
  const LayerSpec& spec = layers_[layer].spec;
  NEREUS_TRY(CheckMemory(layer, "gradient", gradient, spec.parameters));
  if (!flights_.IsOpen(layer)) return absl::OkStatus();
  return InvalidArgumentError("layer ", spec.name, ": step ", step,
                              " is pushed before the Wait for step ",
                              flights_.LastStep(layer));
}

absl::Status GpuClient::CheckPush(int layer, int64_t step,
                                  absl::Span<const float> gradient,
                                  Stream stream) const {
  NEREUS_TRY(CheckLayer(layer));
  NEREUS_TRY(client_->Interruption());
  NEREUS_TRY(stager_->CheckNotCaptured(NameOf(layer, "push"), stream));
  return CheckGradient(layer, step, gradient);
}

absl::Status GpuClient::Queue(GpuPush pushed, Stream stream) {
  const int layer = pushed.layer;
  pushed.by_factors = *client_->factor_rows(layer) > 0;
  timeline_->EndComputing(layer, stream);
  pushed.made = NEREUS_TRY(stager_->Mark(NameOf(layer, "gradient"), stream));
  timeline_->BeginComputing(stream);
  // The caller's update after the layer's last round is on `stream` by now.
  if (updates_parameters()) {
    NEREUS_TRY(mirrors_[layer]->Outdate(stream));
  }
  flights_.Add(std::move(pushed));
  return absl::OkStatus();
}

absl::Status GpuClient::Push(int layer, int64_t step,
                             absl::Span<float> gradient, Stream stream) {
  NEREUS_TRY(CheckPush(layer, step, gradient, stream));
  return Queue({layer, step, gradient, {}, {}}, stream);
}

absl::Status GpuClient::PushFactors(int layer, int64_t step,
                                    const Factors& factors,
                                    absl::Span<float> gradient, Stream stream) {
  NEREUS_TRY(CheckPush(layer, step, gradient, stream));
  LayerSpec spec = layers_[layer].spec;
  spec.rows = client_->RowsForFactors(layer);
  NEREUS_TRY(CheckTakesFactors(spec));
  const int64_t given = std::ssize(factors.output_gradient) / spec.m;
  if (given != spec.rows) {
    return InvalidArgumentError("layer ", spec.name, ": the factors have ",
                                given, " rows, and factors of ", spec.rows,
                                " rows are taken (factor_rows, after "
                                "BeginStep)");
  }
  NEREUS_TRY(CheckMemory(layer, "output gradient", factors.output_gradient,
                         spec.rows * spec.m));
  NEREUS_TRY(CheckMemory(layer, "input", factors.input, spec.rows * spec.n));
  // Unless the plan sends the factors, the GPU multiplies them before the push.
  if (*client_->factor_rows(layer) > 0) {
    return Queue({layer, step, gradient, factors, {}}, stream);
  }
  NEREUS_TRY(products_->MultiplyOwn(spec, factors, gradient.data(), stream));
  return Queue({layer, step, gradient, {}, {}}, stream);
}

void GpuClient::StagePushes() {
  while (const std::optional<GpuPush> push = flights_.Next()) {
    absl::StatusOr<PushStager::Staged> staged = pushes_->Stage(*push);
    absl::Status status = staged.status();
    if (staged.ok()) {
      // Sets them before hand_on: the round can be done when hand_on returns.
      flights_.SetValues(push->layer, std::move(staged->values));
      status = staged->hand_on();
    }
    const bool goes_on = staged.ok() || absl::IsCancelled(status) ||
                         !client_->Interruption().ok();
    // Without this gradient the round can never be done, so the job ends.
    if (!goes_on) client_->Abort(status.message()).IgnoreError();
    flights_.SetHandedOn(push->layer, std::move(status));
  }
}

absl::StatusOr<Buffer> GpuClient::TakePinned(const std::string& what,
                                             int64_t bytes) {
  const absl::Time deadline = SteadyNow() + options_.round_timeout;
  absl::Duration patience = absl::ZeroDuration();
  while (true) {
    absl::StatusOr<Buffer> values =
        pools_.gradients->Take(what, bytes, patience);
    if (!absl::IsDeadlineExceeded(values.status())) return values;
    if (flights_.is_stopped()) {
      return CancelledError("the client is closed");
    }
    if (SteadyNow() > deadline) return values.status();
    client_->EndTurn();  // Memory comes when other workers have sent.
    NEREUS_TRY(HurryAll());
    stager_->ReleaseRead();
    patience = kLookInterval;
  }
}

absl::Status GpuClient::HurryAll() {
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    if (!flights_.TakeUnhurried(layer)) continue;
    NEREUS_TRY(client_->Hurry(layer));
  }
  return client_->Interruption();
}

void GpuClient::OnPart(const PartDone& part) {
  const auto outcome = flights_.LookAt(part.layer, part.round);
  if (!outcome.has_value()) return;
  const ValueRange range = {part.offset, part.offset + part.count};
  timeline_->Begin(GpuSpan::Kind::kCopyIn, part.layer, part.round,
                   stager_->in());
  const bool is_landed =
      updates_parameters()
          ? stager_
                ->CopyIn(NameOf(part.layer, "mean gradient"), outcome->mean,
                         {&range, 1}, outcome->gradient, {})
                .ok()
          : mirrors_[part.layer]->LandPart(range);
  timeline_->End(GpuSpan::Kind::kCopyIn, part.layer, part.round, stager_->in());
  if (is_landed) flights_.NoteLanded(part.layer, part.count);
}

void GpuClient::OnDone(const LayerDone& done, bool fetched) {
  if (fetched) return mirrors_[done.layer]->NoteFetched();
  const auto outcome = flights_.TakeOutcome(done.layer, done.round);
  if (!outcome.has_value()) return;
  flights_.SetLanded(done.layer, Land(done, *outcome));
}

absl::StatusOr<Stager::Point> GpuClient::Land(
    const LayerDone& done, const GpuFlights::Outcome& outcome) {
  const int layer = done.layer;
  const std::string what = NameOf(layer, "mean gradient");
  if (layers_[layer].on_host) {
    std::copy_n(done.mean.floats(), done.mean.float_count(), outcome.gradient);
    return Stager::Point();
  }
  if (updates_parameters() && outcome.by_factors) {
    // The GPU has made the product of all workers' factors.
    return stager_->Mark(what, stager_->in());
  }
  // If all parts are copied already, only a point to wait for is needed.
  const bool all_landed =
      outcome.landed_count == layers_[layer].spec.parameters;
  const std::vector<ValueRange> rest =
      all_landed ? std::vector<ValueRange>() : Updated(layer);
  // A mean from the servers arrives in the pinned memory of the push; the mean
  // of a ring is in other memory (done.mean).
  const Buffer& mean = done.mean.bytes() > 0 ? done.mean : outcome.mean;
  const auto land = [&] {
    return updates_parameters()
               ? stager_->CopyIn(what, mean, rest, outcome.gradient, {})
               : mirrors_[layer]->Land(rest);
  };
  if (all_landed) return land();
  timeline_->Begin(GpuSpan::Kind::kCopyIn, layer, done.round, stager_->in());
  auto landed = land();
  timeline_->End(GpuSpan::Kind::kCopyIn, layer, done.round, stager_->in());
  return landed;
}

std::vector<ValueRange> GpuClient::Updated(int layer) const {
  if (traits_.sparse && !updates_parameters())
    return splitters_[layer]->Travelled();
  return {{0, layers_[layer].spec.parameters}};
}

absl::Status GpuClient::Wait(int layer, int64_t step, absl::Duration timeout,
                             Stream stream) {
  const absl::Time until = SteadyNow() + timeout;
  NEREUS_TRY(CheckLayer(layer));
  NEREUS_TRY(stager_->CheckNotCaptured(NameOf(layer, "wait"), stream));
  // If `step` was not pushed, the host client's Wait returns that error.
  NEREUS_TRY(flights_.AwaitHandedOn(layer, step, until));
  NEREUS_TRY(client_->Wait(layer, step, TimeLeft(until), stream));
  timeline_->EndComputing(layer, stream);
  const absl::Status followed =
      flights_.Follow(layer, step, *stager_, NameOf(layer, "outcome"), stream);
  timeline_->BeginComputing(stream);
  return followed;
}

absl::Status GpuClient::WaitForward(int layer, absl::Duration timeout,
                                    Stream stream) {
  NEREUS_TRY(CheckLayer(layer));
  const int64_t step = flights_.LastStep(layer);
  return step < 0 ? client_->WaitForward(layer, timeout, stream)
                  : Wait(layer, step, timeout, stream);
}

absl::Status GpuClient::WaitAll(int64_t step, absl::Duration timeout,
                                Stream stream) {
  const absl::Time until = SteadyNow() + timeout;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    NEREUS_TRY(Wait(static_cast<int>(layer), step, TimeLeft(until), stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> GpuClient::Mean(int layer) const {
  NEREUS_TRY(CheckLayer(layer));
  return FailedPreconditionError(
      "a client of a GPU writes the mean gradient over the pushed gradient, in "
      "the GPU's memory");
}

ClientReport GpuClient::Report() const {
  ClientReport report = client_->Report();
  report.bytes_copied_out = stager_->bytes_out();
  report.bytes_copied_in = stager_->bytes_in();
  return report;
}

absl::Status GpuClient::CheckResults() {
  constexpr absl::string_view kWhat = "last results";
  const Stager::Point last = NEREUS_TRY(stager_->Mark(kWhat, stager_->in()));
  NEREUS_TRY(stager_->Await(kWhat, last));
  for (const auto& mirror : mirrors_) {
    const absl::Status status = mirror->CheckResults();
    if (status.ok()) continue;
    NEREUS_TRY(client_->Abort(status.message()));
    return status;
  }
  return absl::OkStatus();
}

absl::Status GpuClient::LeaveJob(bool early, absl::Duration timeout,
                                 Stream stream) {
  const absl::Time until = SteadyNow() + timeout;
  for (int layer = 0; layer < std::ssize(layers_); ++layer) {
    NEREUS_TRY(WaitForward(layer, TimeLeft(until), stream));
  }
  NEREUS_TRY(CheckResults());
  // Only in the first call: each Outdate makes readers copy the values again.
  if (updates_parameters() && !flights_.is_leaving()) {
    for (const auto& mirror : mirrors_) NEREUS_TRY(mirror->Outdate(stream));
    flights_.SetLeaving();
  }
  return early ? client_->LeaveEarly(TimeLeft(until), stream)
               : client_->Leave(TimeLeft(until), stream);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> JoinOnGpu(
    const ClientOptions& options, const GpuOptions& gpu,
    std::vector<LayerBinding> layers, Stream stream) {
  NEREUS_TRY(options.Validate());
  NEREUS_TRY(gpu.Validate());
  auto client = std::make_unique<GpuClient>(options, gpu, std::move(layers));
  NEREUS_TRY(client->Start(stream));
  return client;
}

absl::StatusOr<std::unique_ptr<Client>> ConnectOnGpu(
    const ClientOptions& options, const GpuOptions& gpu,
    std::vector<LayerBinding> layers, Stream stream) {
  auto client = NEREUS_TRY(JoinOnGpu(options, gpu, std::move(layers), stream));
  NEREUS_TRY(client->AwaitJoined(absl::InfiniteDuration(), stream));
  return client;
}

}  // namespace nereus
