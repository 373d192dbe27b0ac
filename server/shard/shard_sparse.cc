// Rounds of which only some blocks travel (JobOptions::sparsity).

#include <algorithm>
#include <utility>

#include "common/protocol/block_update.h"
#include "server/shard/shard.h"

namespace nereus {

void Shard::UpdateFromRound(Slot& slot, Outbox& out) {
  if (slot.aggregation.sparse()) return UpdateBlocks(slot, out);
  if (slot.chunk.layer != job_->block_layer) {
    return Update(slot, slot.round, slot.aggregation.sum(), slot.scale, out);
  }
  Buffer chosen = RoomForUpdate(slot, out);
  out.Add(SelectBlocks{job_->BlocksIn(slot.round + 1), slot.aggregation.sum(),
                       slot.parameters, chosen});
  slot.parameters = std::move(chosen);
}

void Shard::UpdateBlocks(Slot& slot, Outbox& out) {
  if (slot.aggregation.frames() == 0) return;
  Buffer updated = RoomForUpdate(slot, out);
  if (updated.data() != slot.parameters.data()) {
    out.Add(CopyValues{updated, slot.parameters});
  }
  slot.parameters = updated;
  const FrameGrid grid = job_->GridOf(slot.chunk);
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!slot.aggregation.has(index)) continue;
    const auto part = [&](const Buffer& values) {
      return values.Slice(grid.Offset(index) * 4, grid.Length(index) * 4);
    };
    AddBlockUpdate(*job_, slot.round, slot.aggregation.resumed(index),
                   slot.scale, part(slot.aggregation.sum()), part(updated),
                   part(slot.state), out);
  }
}

void Shard::ScaleSum(const Slot& slot, Outbox& out) const {
  const AggregationRound& round = slot.aggregation;
  if (!round.sparse()) {
    out.Add(ScaleValues{round.sum(), slot.scale});
    return;
  }
  const FrameGrid grid = job_->GridOf(slot.chunk);
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!round.has(index)) continue;
    out.Add(ScaleValues{
        round.sum().Slice(grid.Offset(index) * 4, grid.Length(index) * 4),
        slot.scale});
  }
}

void Shard::LeaveChoice(Slot& slot) const {
  if (!serves() || slot.chunk.layer != job_->block_layer ||
      slot.round == kInitialRound || job_->workers.empty()) {
    return;
  }
  slot.round = std::max(slot.round, job_->workers.front().first_step);
}

void Shard::NoteFrames(Slot& slot) const {
  slot.closed_frames.clear();
  if (!slot.aggregation.sparse()) return;
  const int64_t frames = job_->GridOf(slot.chunk).Count();
  for (int64_t index = 0; index < frames; ++index) {
    slot.closed_frames.push_back(slot.aggregation.has(index));
  }
}

}  // namespace nereus
