#include "worker/gpu/gpu_splitter.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/compute/blocks_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"
#include "common/protocol/job_options.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Number of bytes that the three lists have per piece.
constexpr int64_t kListBytes =
    sizeof(float) + sizeof(int32_t) + sizeof(PieceUse);

// Longest gap that Travelled joins, in values. An estimate: to queue one more
// copy takes as long as to copy this many values.
constexpr int64_t kGapMax = 16 << 10;

}  // namespace

GpuSplitter::GpuSplitter(int layer, const LayerSpec& spec,
                         const float* parameters, Stager* stager,
                         PinnedPool* pool, GpuTimeline* timeline)
    : layer_(layer),
      what_(absl::StrCat("layer ", spec.name, ", gradient")),
      parameters_(parameters),
      stager_(stager),
      pool_(pool),
      timeline_(timeline) {}

GpuSplitter::~GpuSplitter() {
  stager_->Await(what_, norms_.there).IgnoreError();
  stager_->Await(what_, copied_).IgnoreError();
}

int64_t GpuSplitter::PinnedBytesOf(const LayerSpec& spec) {
  const int64_t pieces = spec.parameters / kBlockElementsMin + 2;
  return pieces * kListBytes;
}

GpuSplitter::Lists GpuSplitter::ListsAt(void* memory, int64_t pieces) {
  Lists lists;
  lists.norms = static_cast<float*>(memory);
  lists.chosen = reinterpret_cast<int32_t*>(lists.norms + pieces);
  lists.uses = reinterpret_cast<PieceUse*>(lists.chosen + pieces);
  return lists;
}

void GpuSplitter::Take(int64_t step,
                       const std::shared_ptr<DeviceGradient>& gradient) {
  MutexLock lock(&mu_);
  taken_ = {step, gradient};
}

absl::Status GpuSplitter::Split(const SplitGradient& split) {
  Taken taken;
  {
    MutexLock lock(&mu_);
    taken = taken_;
  }
  const std::shared_ptr<DeviceGradient> gradient = taken.gradient.lock();
  // This happens if the job has gone back to a checkpoint and the caller has
  // pushed again.
  if (gradient == nullptr ||
      gradient->staged().data() != split.gradient.data()) {
    return InternalError(what_,
                         ": this is not the gradient that was pushed last");
  }
  const DeviceScope scope(stager_->device(), what_);
  NEREUS_TRY(scope.status());
  const absl::Status status = TrySplit(split, taken.step, *gradient);
  // After an error, waits, because queued work could still write to memory that
  // others reuse.
  if (!status.ok()) (void)cudaStreamSynchronize(stager_->side_stream());
  return status;
}

absl::Status GpuSplitter::TrySplit(const SplitGradient& split, int64_t step,
                                   DeviceGradient& gradient) {
  // If the job has gone back to a checkpoint, the last split may still use the
  // lists, and the last copy may still read the packed pieces.
  NEREUS_TRY(Finish());
  NEREUS_TRY(stager_->Await(what_, copied_));
  pieces_ = split.pieces;
  uses_ = split.uses;
  NEREUS_TRY(Reserve());
  const Lists lists = ListsAt(host_lists_.data(), pieces_.Count());
  int64_t chosen = 0;
  int64_t travelling = 0;  // Number of values that travel.
  for (int64_t k = 0; k < pieces_.Count(); ++k) {
    lists.uses[k] = uses_[k];
    if (!Travels(uses_[k])) continue;
    lists.chosen[chosen++] = static_cast<int32_t>(k);
    travelling += pieces_.End(k) - pieces_.Begin(k);
  }
  // If all pieces travel, they leave from the gradient itself, without packing.
  const bool all = travelling == pieces_.values;
  float* const source = all ? gradient.values() : MemoryOf(Held::kPacked);
  NEREUS_TRY(QueueSplit(split, all ? 0 : chosen, gradient.values()));
  norms_.there = NEREUS_TRY(stager_->Mark(what_, stager_->side_stream()));
  norms_.sum = split.norms;
  return CopyOut(step, gradient, source, travelling);
}

absl::Status GpuSplitter::Finish() {
  const Buffer sum = std::exchange(norms_.sum, Buffer());
  if (sum.bytes() == 0) return absl::OkStatus();
  NEREUS_TRY(stager_->Await(what_, norms_.there));
  // Adds, because a block can have pieces in several layers, and the kernel
  // gives the norms of this layer's pieces only.
  const Lists lists = ListsAt(host_lists_.data(), pieces_.Count());
  for (int64_t k = 0; k < pieces_.Count(); ++k) {
    sum.floats()[k] += lists.norms[k];
  }
  return absl::OkStatus();
}

absl::Status GpuSplitter::Reserve() {
  const int64_t list_bytes = pieces_.Count() * kListBytes;
  if (lists_.data() == nullptr) {
    host_lists_ =
        NEREUS_TRY(pool_->Take(what_, list_bytes, absl::ZeroDuration()));
    lists_ = NEREUS_TRY(
        DeviceMemory::Allocate(stager_->device(), what_, list_bytes));
  }
  const bool holds_some =
      absl::c_any_of(uses_, [](PieceUse use) { return !Travels(use); });
  if (!holds_some || held_.data() != nullptr) return absl::OkStatus();
  held_ = NEREUS_TRY(DeviceMemory::Allocate(stager_->device(), what_,
                                            3 * pieces_.values * kFloatBytes));
  return absl::OkStatus();
}

absl::Status GpuSplitter::QueueSplit(const SplitGradient& split, int64_t chosen,
                                     float* gradient) {
  const cudaStream_t stream = stager_->side_stream();
  const int64_t count = pieces_.Count();
  const Lists host = ListsAt(host_lists_.data(), count);
  const Lists device = ListsAt(lists_.data(), count);
  // Copies the second and the third list, which lie side by side.
  NEREUS_TRY(CopyAsync(what_, device.chosen, host.chosen,
                       count * (kListBytes - kFloatBytes), stream));
  NEREUS_TRY(CudaStatus(
      SplitPiecesCuda(pieces_, split.momentum, split.weight_decay, device.uses,
                      parameters_, gradient, MemoryOf(Held::kVelocity),
                      MemoryOf(Held::kValues), device.norms, stream),
      what_, "SplitPiecesCuda"));
  NEREUS_TRY(
      CudaStatus(GatherPiecesCuda(pieces_, device.chosen, chosen, gradient,
                                  MemoryOf(Held::kPacked), stream),
                 what_, "GatherPiecesCuda"));
  return CopyAsync(what_, host.norms, device.norms, count * kFloatBytes,
                   stream);
}

absl::Status GpuSplitter::CopyOut(int64_t step, DeviceGradient& gradient,
                                  const float* source, int64_t count) {
  if (count == 0) return absl::OkStatus();
  const cudaStream_t stream = stager_->out();
  timeline_->Begin(GpuSpan::Kind::kCopyOut, layer_, step, stream);
  auto copy = NEREUS_TRY(stager_->CopyOut(
      what_, source, gradient.staged().Slice(0, count * kFloatBytes),
      norms_.there, stream));
  timeline_->End(GpuSpan::Kind::kCopyOut, layer_, step, stream);
  gradient.SetCopy(std::move(copy));
  copied_ = NEREUS_TRY(stager_->Mark(what_, stream));
  return absl::OkStatus();
}

std::vector<ValueRange> GpuSplitter::Travelled() const {
  std::vector<ValueRange> ranges;
  for (int64_t k = 0; k < pieces_.Count(); ++k) {
    if (!Travels(uses_[k])) continue;
    const bool is_near =
        !ranges.empty() && pieces_.Begin(k) - ranges.back().end <= kGapMax;
    if (is_near) {
      ranges.back().end = pieces_.End(k);
    } else {
      ranges.push_back({pieces_.Begin(k), pieces_.End(k)});
    }
  }
  return ranges;
}

}  // namespace nereus
