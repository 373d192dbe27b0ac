// A mirror knows two copies of a layer, and which of the two is newer. Create
// makes the host's copy. Outdate and Update make the GPU's copy newer, and
// Await fetches it. After NoteFetched the host's copy is newer, and Return
// brings it to the GPU. LandPart and Land bring the result of a round to the
// GPU. MakeState makes the state of the job's optimizer, where workers run it.
// Kernels note results that are not finite in bad_, which CheckResults reads.

#include "worker/gpu/gpu_mirror.h"

#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/compute/update_rules_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

GpuMirror::GpuMirror(LayerBinding layer, Stager* stager,
                     std::shared_ptr<PinnedPool> pool, Buffer bad)
    : layer_(std::move(layer)),
      what_(absl::StrCat("layer ", layer_.spec.name, ", parameters")),
      stager_(stager),
      pool_(std::move(pool)),
      bad_(std::move(bad)) {
  new (bad_.data()) BadResult();
}

absl::StatusOr<std::shared_ptr<GpuMirror>> GpuMirror::Create(
    LayerBinding layer, Stager* stager, std::shared_ptr<PinnedPool> pool,
    Buffer bad, cudaStream_t stream) {
  auto mirror = std::shared_ptr<GpuMirror>(
      new GpuMirror(std::move(layer), stager, std::move(pool), std::move(bad)));
  const LayerBinding& bound = mirror->layer_;
  const int64_t bytes = bound.spec.parameters * kFloatBytes;
  const int64_t state_bytes = std::ssize(bound.state) * kFloatBytes;
  float* const state = bound.state.data();
  float* const values = bound.parameters.data();
  const bool is_null =
      values == nullptr || (state_bytes > 0 && state == nullptr);
  if (is_null) {
    return InvalidArgumentError("layer ", bound.spec.name,
                                ", parameters or state: null");
  }
  if (state_bytes > 0 && !bound.on_host) {
    NEREUS_TRY(stager->CheckPointer(
        absl::StrCat("layer ", bound.spec.name, ", state"), state));
  }
  if (bound.on_host) {
    mirror->parameters_ = Buffer::View(values, bytes);
    mirror->callers_state_ = Buffer::View(state, state_bytes);
    return mirror;
  }
  mirror->parameters_ = NEREUS_TRY(
      mirror->pool_->Take(mirror->what_, bytes, absl::ZeroDuration()));
  // The state is not read from the GPU: it is zero in a new job. In a job that
  // has begun, the host client writes it to the host copy, and Return copies it
  // to the GPU.
  mirror->callers_state_ = mirror->Allocate(state_bytes);
  {
    MutexLock lock(&mirror->mu_);
    mirror->state_ = {mirror->callers_state_, state, {}};
  }
  const Stager::Point now = NEREUS_TRY(stager->Mark(mirror->what_, stream));
  const auto parameters = NEREUS_TRY(stager->CopyOut(
      mirror->what_, values, mirror->parameters_, now, stager->side_stream()));
  NEREUS_TRY(parameters->Await(bytes));
  return mirror;
}

Buffer GpuMirror::Allocate(int64_t bytes) {
  if (bytes == 0) return Buffer();
  absl::StatusOr<Buffer> pinned =
      pool_->Take(what_, bytes, absl::ZeroDuration());
  // Memory that is not pinned is slower to copy, and as good otherwise.
  if (!pinned.ok()) return Buffer::AllocateZeroed(bytes);
  std::memset(pinned->data(), 0, static_cast<size_t>(bytes));
  return *std::move(pinned);
}

absl::Status GpuMirror::Outdate(cudaStream_t stream) {
  if (layer_.on_host) return absl::OkStatus();
  Stager::Point updated = NEREUS_TRY(stager_->Mark(what_, stream));
  MutexLock lock(&mu_);
  updated_ = std::move(updated);
  ++updates_;
  is_outdated_ = true;
  return absl::OkStatus();
}

bool GpuMirror::IsThere(int64_t) {
  MutexLock lock(&mu_);
  return !is_outdated_;
}

absl::Status GpuMirror::Await(int64_t) {
  int64_t updates = 0;
  State state;
  {
    MutexLock lock(&mu_);
    NEREUS_TRY(absl::Status(state_.error));
    if (!is_outdated_) return absl::OkStatus();
    updates = updates_;
    state = state_;
    // Another thread can call Outdate once the lock is released. This wait need
    // not include the values of that call.
    NEREUS_TRY(stager_->Follow(what_, stager_->side_stream(), updated_));
  }
  const auto parameters =
      NEREUS_TRY(stager_->CopyOut(what_, layer_.parameters.data(), parameters_,
                                  {}, stager_->side_stream()));
  const auto state_copy = NEREUS_TRY(stager_->CopyOut(
      what_, state.on_device, state.on_host, {}, stager_->side_stream()));
  NEREUS_TRY(parameters->Await(parameters_.bytes()));
  NEREUS_TRY(state_copy->Await(state.on_host.bytes()));
  NEREUS_TRY(CheckResults());
  MutexLock lock(&mu_);
  if (updates_ == updates) is_outdated_ = false;
  return absl::OkStatus();
}

void GpuMirror::NoteFetched() {
  MutexLock lock(&mu_);
  is_fetched_ = true;
  is_outdated_ = false;
}

absl::Status GpuMirror::Return(cudaStream_t stream) {
  State state;
  {
    MutexLock lock(&mu_);
    if (!std::exchange(is_fetched_, false) || layer_.on_host) {
      return absl::OkStatus();
    }
    state = state_;
  }
  const absl::StatusOr<Stager::Point> there = CopyBack(state, stream);
  MutexLock lock(&mu_);
  if (!there.ok()) is_fetched_ = true;
  read_ = NEREUS_TRY(there);
  return absl::OkStatus();
}

absl::StatusOr<Stager::Point> GpuMirror::CopyBack(const State& state,
                                                  cudaStream_t stream) {
  // Work that is queued on `stream` may still read the old values.
  const Stager::Point now = NEREUS_TRY(stager_->Mark(what_, stream));
  NEREUS_TRY(stager_->CopyIn(what_, state.on_host, state.on_device, now));
  // This point also follows the copy of the state, which is queued before on
  // the same stream.
  const Stager::Point there = NEREUS_TRY(
      stager_->CopyIn(what_, parameters_, layer_.parameters.data(), now));
  NEREUS_TRY(stager_->Follow(what_, stream, there));
  return there;
}

Buffer GpuMirror::MakeState(int64_t bytes) {
  const Buffer memory = Allocate(bytes);
  // With this mirror as the buffer's Arrival, readers of the state wait for the
  // newest values, as readers of the parameters do.
  Buffer state = Buffer::Borrow(
      memory.data(), bytes, [memory] {}, shared_from_this());
  MutexLock lock(&mu_);
  absl::Status made = MakeDeviceState(bytes);
  state_ = {memory, static_cast<float*>(jobs_state_.data()), std::move(made)};
  return state;
}

absl::Status GpuMirror::MakeDeviceState(int64_t bytes) {
  if (jobs_state_.bytes() != bytes) {
    jobs_state_ =
        NEREUS_TRY(DeviceMemory::Allocate(stager_->device(), what_, bytes));
  }
  const DeviceScope scope(stager_->device(), what_);
  NEREUS_TRY(scope.status());
  return CudaStatus(cudaMemsetAsync(jobs_state_.data(), 0,
                                    static_cast<size_t>(bytes), stager_->in()),
                    what_, "cudaMemsetAsync", bytes);
}

NoteBadResult GpuMirror::NoteOf(const std::optional<ValueCheck>& check) const {
  if (!check.has_value()) return {};
  return {reinterpret_cast<BadResult*>(bad_.data()), check->offset,
          check->round, static_cast<int64_t>(check->of)};
}

absl::Status GpuMirror::Look(const float* values, int64_t count,
                             const ValueCheck& check) {
  NEREUS_TRY(CheckResults());
  const DeviceScope scope(stager_->device(), what_);
  NEREUS_TRY(scope.status());
  return CudaStatus(
      CheckFiniteCuda(values, count, NoteOf(check), stager_->in()), what_,
      "CheckFiniteCuda");
}

absl::Status GpuMirror::CheckResults() {
  auto& bad = *reinterpret_cast<BadResult*>(bad_.data());
  if (std::atomic_ref(bad.index).load(std::memory_order_relaxed) < 0) {
    return absl::OkStatus();
  }
  // Waits until the kernel has ended, so that all it noted is there.
  const Stager::Point now = NEREUS_TRY(stager_->Mark(what_, stager_->in()));
  NEREUS_TRY(stager_->Await(what_, now));
  return AbortedError("layer ", layer_.spec.name, ", step ", bad.step, ": ",
                      SubjectOf(static_cast<Checked>(bad.of)),
                      "a NaN or an infinity at element ", bad.index, " of ",
                      layer_.spec.parameters);
}

// The kernel need not wait for the caller's stream, for the reason that Land
// gives.
absl::Status GpuMirror::Update(const UpdateParameters& update,
                               const float* gradient) {
  NEREUS_TRY(CheckResults());
  const DeviceScope scope(stager_->device(), what_);
  NEREUS_TRY(scope.status());
  const int64_t at = update.parameters.floats() - parameters_.floats();
  MutexLock lock(&mu_);
  NEREUS_TRY(absl::Status(state_.error));
  NEREUS_TRY(Apply(update, at, gradient));
  updated_ = NEREUS_TRY(stager_->Mark(what_, stager_->in()));
  ++updates_;
  is_outdated_ = true;
  return absl::OkStatus();
}

// The state has one or two arrays of the layer's length, one after the other.
absl::Status GpuMirror::Apply(const UpdateParameters& update, int64_t at,
                              const float* gradient) {
  const int64_t count = update.parameters.float_count();
  float* const parameters = layer_.parameters.data() + at;
  float* const first = state_.on_device + at;
  float* const second = first + layer_.spec.parameters;
  const cudaStream_t stream = stager_->in();
  const NoteBadResult note = NoteOf(update.check);
  if (HasMoments(update.optimizer.rule)) {
    NEREUS_TRY(CudaStatus(
        ApplyAdamCuda(
            AdamStepOf(update.optimizer, update.step, update.gradient_scale),
            count, gradient, parameters, first, second, parameters, note,
            stream),
        what_, "ApplyAdamCuda"));
  } else {
    NEREUS_TRY(CudaStatus(
        ApplySgdCuda(SgdStepOf(update.optimizer, update.gradient_scale), count,
                     gradient, parameters, first, parameters, note, stream),
        what_, "ApplySgdCuda"));
  }
  if (!update.clears_state) return absl::OkStatus();
  return CudaStatus(
      cudaMemsetAsync(first, 0, static_cast<size_t>(count * kFloatBytes),
                      stream),
      what_, "cudaMemsetAsync");
}

absl::StatusOr<Buffer> GpuMirror::Sample(const SampledElements& sampled,
                                         const Buffer& place) {
  MutexLock lock(&mu_);
  auto copy = NEREUS_TRY(stager_->CopyRunsOut(
      what_, layer_.parameters.data() + sampled.first,
      sampled.length * kFloatBytes, sampled.stride * kFloatBytes, sampled.runs,
      place, updated_, stager_->in()));
  return Buffer::Borrow(
      place.data(), place.bytes(), [place] {}, std::move(copy));
}

// Leaves read_ as it is. Otherwise the host would wait for this copy before it
// writes other parts of the same round.
bool GpuMirror::LandPart(ValueRange part) {
  {
    MutexLock lock(&mu_);
    if (is_outdated_ || is_behind_) return false;
  }
  return stager_
      ->CopyIn(what_, parameters_, {&part, 1}, layer_.parameters.data(), {})
      .ok();
}

absl::StatusOr<Stager::Point> GpuMirror::Land(
    absl::Span<const ValueRange> changed) {
  const ValueRange all = {0, parameters_.float_count()};
  {
    MutexLock lock(&mu_);
    if (is_outdated_) return stager_->Mark(what_, stager_->in());
    if (std::exchange(is_behind_, true)) changed = {&all, 1};
  }
  // The copy need not wait for the caller's stream: the caller has queued all
  // its reads of the parameters before it pushed the layer.
  const Stager::Point there = NEREUS_TRY(stager_->CopyIn(
      what_, parameters_, changed, layer_.parameters.data(), {}));
  MutexLock lock(&mu_);
  read_ = there;
  is_behind_ = false;
  return there;
}

void GpuMirror::AwaitUnread() {
  Stager::Point read;
  {
    MutexLock lock(&mu_);
    read = std::exchange(read_, Stager::Point());
  }
  // If this wait fails, the copies have failed, too. The caller's stream waits
  // for the same copies, so the caller learns of the error without this thread.
  stager_->Await(what_, read).IgnoreError();
}

}  // namespace nereus
