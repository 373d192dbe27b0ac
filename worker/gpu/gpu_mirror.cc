#include "worker/gpu/gpu_mirror.h"

#include <utility>

#include "absl/time/time.h"
#include "common/base/status.h"

namespace nereus {

GpuMirror::GpuMirror(GpuLayerBinding layer, Stager* stager)
    : layer_(std::move(layer)),
      what_(absl::StrCat("layer ", layer_.spec.name, ", parameters")),
      stager_(stager) {}

absl::StatusOr<std::shared_ptr<GpuMirror>> GpuMirror::Create(
    GpuLayerBinding layer, Stager* stager, PinnedPool& pool,
    cudaStream_t stream) {
  auto mirror =
      std::shared_ptr<GpuMirror>(new GpuMirror(std::move(layer), stager));
  const GpuLayerBinding& bound = mirror->layer_;
  const int64_t bytes =
      bound.spec.parameters * static_cast<int64_t>(sizeof(float));
  const bool is_null = bound.parameters == nullptr ||
                       (bound.state_arrays > 0 && bound.state == nullptr);
  if (is_null) {
    return InvalidArgumentError("layer ", bound.spec.name,
                                ", parameters or state: null");
  }
  if (bound.state_arrays > 0 && !bound.on_host) {
    NEREUS_TRY(stager->CheckPointer(
        absl::StrCat("layer ", bound.spec.name, ", state"), bound.state));
  }
  if (bound.on_host) {
    mirror->parameters_ = Buffer::View(bound.parameters, bytes);
    mirror->state_ = Buffer::View(bound.state, bytes * bound.state_arrays);
    return mirror;
  }
  mirror->parameters_ =
      NEREUS_TRY(pool.Take(mirror->what_, bytes, absl::ZeroDuration()));
  mirror->state_ = Buffer::AllocateZeroed(bytes * bound.state_arrays);
  const Stager::Point now = NEREUS_TRY(stager->Mark(mirror->what_, stream));
  // The state is not fetched: it is zero in a new job, and in another job the
  // host client writes it.
  const auto parameters = NEREUS_TRY(
      stager->CopyOut(mirror->what_, bound.parameters, mirror->parameters_, now,
                      stager->side_stream()));
  NEREUS_TRY(parameters->Await(bytes));
  return mirror;
}

absl::Status GpuMirror::Outdate(cudaStream_t stream) {
  if (layer_.on_host) return absl::OkStatus();
  Stager::Point updated = NEREUS_TRY(stager_->Mark(what_, stream));
  MutexLock lock(&mu_);
  updated_ = std::move(updated);
  ++updates_;
  outdated_ = true;
  return absl::OkStatus();
}

bool GpuMirror::IsThere(int64_t) {
  MutexLock lock(&mu_);
  return !outdated_;
}

absl::Status GpuMirror::Await(int64_t) {
  int64_t updates = 0;
  {
    MutexLock lock(&mu_);
    if (!outdated_) return absl::OkStatus();
    updates = updates_;
    // Copies made by another thread's Outdate are newer than this wait needs.
    NEREUS_TRY(stager_->Follow(what_, stager_->side_stream(), updated_));
  }
  const auto parameters = NEREUS_TRY(stager_->CopyOut(
      what_, layer_.parameters, parameters_, {}, stager_->side_stream()));
  const auto state = NEREUS_TRY(stager_->CopyOut(what_, layer_.state, state_,
                                                 {}, stager_->side_stream()));
  NEREUS_TRY(parameters->Await(parameters_.bytes()));
  NEREUS_TRY(state->Await(state_.bytes()));
  MutexLock lock(&mu_);
  if (updates_ == updates) outdated_ = false;
  return absl::OkStatus();
}

void GpuMirror::NoteFetched() {
  MutexLock lock(&mu_);
  fetched_ = true;
  outdated_ = false;
}

absl::Status GpuMirror::Return(cudaStream_t stream) {
  {
    MutexLock lock(&mu_);
    if (!std::exchange(fetched_, false) || layer_.on_host) {
      return absl::OkStatus();
    }
  }
  // Work that is queued on `stream` may still read the old values.
  const Stager::Point now = NEREUS_TRY(stager_->Mark(what_, stream));
  const Stager::Point parameters =
      NEREUS_TRY(stager_->CopyIn(what_, parameters_, layer_.parameters, now));
  const Stager::Point state =
      NEREUS_TRY(stager_->CopyIn(what_, state_, layer_.state, now));
  NEREUS_TRY(NoteReading());
  NEREUS_TRY(stager_->Follow(what_, stream, parameters));
  return stager_->Follow(what_, stream, state);
}

absl::StatusOr<Stager::Point> GpuMirror::Land(
    absl::Span<const ValueRange> changed) {
  const ValueRange all = {0, parameters_.float_count()};
  {
    MutexLock lock(&mu_);
    if (std::exchange(is_behind_, true)) changed = {&all, 1};
  }
  // No point to wait for: a caller that has pushed the layer has queued all its
  // reads of the parameters before the push.
  Stager::Point there = NEREUS_TRY(
      stager_->CopyIn(what_, parameters_, changed, layer_.parameters, {}));
  NEREUS_TRY(NoteReading());
  MutexLock lock(&mu_);
  is_behind_ = false;
  return there;
}

absl::Status GpuMirror::NoteReading() {
  Stager::Point read = NEREUS_TRY(stager_->Mark(what_, stager_->in()));
  MutexLock lock(&mu_);
  read_ = std::move(read);
  return absl::OkStatus();
}

void GpuMirror::AwaitUnread() {
  Stager::Point read;
  {
    MutexLock lock(&mu_);
    read = std::exchange(read_, Stager::Point());
  }
  // If this wait fails, the copies have failed, too, and Land has reported
  // that.
  stager_->Await(what_, read).IgnoreError();
}

}  // namespace nereus
