#include "server/shard/partial_sum.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/protocol/frame.h"

namespace nereus {

void PartialSum::SetWorkers(const std::vector<EpochWorker>& workers) {
  std::map<int, Progress> before = std::exchange(progress_, {});
  const int64_t frames = FrameCount(elements_);
  begun_.resize(frames, false);
  for (const EpochWorker& each : workers) {
    Progress& progress = progress_[each.rank];
    progress = std::move(before[each.rank]);
    // One that has a new each begins with that, also before where it was to
    // begin.
    if (progress.first_step == each.first_step) continue;
    progress.first_step = each.first_step;
    progress.counted = each.first_step - 1;
    progress.arrived.assign(frames, false);
    progress.missing = frames;
  }
}

bool PartialSum::Has(int rank, int64_t step, int64_t frame) const {
  const Progress& progress = progress_.at(rank);
  return step <= progress.counted || progress.arrived[frame];
}

bool PartialSum::Add(int rank, int64_t step, int64_t frame,
                     const Buffer& payload, Outbox& out) {
  Progress& progress = progress_.at(rank);
  NEREUS_CHECK(step == progress.counted + 1 && !progress.arrived[frame])
      << "step " << step << " of worker " << rank << ", frame " << frame;
  const bool none_begun = std::none_of(begun_.begin(), begun_.end(),
                                       [](bool each) { return each; });
  if (none_begun && !sum_.unique()) {
    sum_ = Buffer::AllocateLike(
        payload, elements_ * static_cast<int64_t>(sizeof(float)));
  }
  Buffer part = sum_.Slice(frame * kFramePayloadBytesMax, payload.bytes());
  if (begun_[frame]) {
    out.Add(AddValues{std::move(part), payload});
  } else {
    out.Add(CopyValues{std::move(part), payload});
  }
  begun_[frame] = true;
  progress.arrived[frame] = true;
  if (--progress.missing > 0) return false;
  whole_ = true;
  ++progress.counted;
  progress.missing = FrameCount(elements_);
  progress.arrived.assign(progress.missing, false);
  return true;
}

void PartialSum::Settle(Outbox& out) {
  for (size_t frame = 0; frame < begun_.size(); ++frame) {
    if (begun_[frame]) continue;
    const auto index = static_cast<int64_t>(frame);
    const Buffer part = sum_.Slice(index * kFramePayloadBytesMax,
                                   FrameGrid(elements_).Length(index) *
                                       static_cast<int64_t>(sizeof(float)));
    out.Add(CopyValues{part, Buffer::AllocateLike(sum_, part.bytes())});
    begun_[frame] = true;
  }
}

}  // namespace nereus
