#include "server/shard/held_chunk.h"

#include <utility>

#include "common/protocol/block_update.h"

namespace nereus {

void HeldChunk::Allocate(int state_arrays) {
  const int64_t bytes = chunk.length * static_cast<int64_t>(sizeof(float));
  parameters = Buffer::Allocate(bytes);
  state = Buffer::Allocate(bytes * state_arrays);
}

void HeldChunk::Begin(Buffer initial, int state_arrays) {
  parameters = std::move(initial);
  state = Buffer::AllocateLike(parameters, parameters.bytes() * state_arrays);
}

Buffer HeldChunk::RoomForUpdate(Outbox& out) {
  // A checkpoint may still read the state.
  if (!state.unique() && state.data() != nullptr) {
    const Buffer saved = std::exchange(state, Buffer::Allocate(state.bytes()));
    out.Add(CopyValues{state, saved});
  }
  // Frames of the last result may still wait for a slow worker: they keep the
  // old memory, and the new parameters get memory of their own.
  return parameters.unique() || parameters.data() == nullptr
             ? parameters
             : Buffer::Allocate(parameters.bytes());
}

void HeldChunk::Update(const OptimizerOptions& optimizer, int64_t step,
                       const Buffer& gradient, float scale, Outbox& out) {
  Buffer updated = RoomForUpdate(out);
  out.Add(UpdateParameters{optimizer, step, scale, gradient, parameters, state,
                           updated});
  parameters = std::move(updated);
}

// Dense layers take an optimizer step; the block layer chooses blocks.
void HeldChunk::UpdateFrom(const Job& job, int64_t round, const FullRound& full,
                           float scale, Outbox& out) {
  if (full.sparse()) return UpdateBlocks(job, round, full, scale, out);
  if (chunk.layer != job.block_layer) {
    return Update(job.options.optimizer, round, full.sum(), scale, out);
  }
  Buffer chosen = RoomForUpdate(out);
  out.Add(
      SelectBlocks{job.BlocksIn(round + 1), full.sum(), parameters, chosen});
  parameters = std::move(chosen);
}

// Values outside of the blocks keep their old values: new memory gets a copy of
// them first.
void HeldChunk::UpdateBlocks(const Job& job, int64_t round,
                             const FullRound& full, float scale, Outbox& out) {
  if (full.frames() == 0) return;
  const Buffer updated = RoomForUpdate(out);
  if (updated.data() != parameters.data()) {
    out.Add(CopyValues{updated, parameters});
  }
  parameters = updated;
  const FrameGrid grid = job.GridOf(chunk);
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!full.has(index)) continue;
    const auto block = [&](const Buffer& values) {
      return values.Slice(grid.Offset(index) * 4, grid.Length(index) * 4);
    };
    AddBlockUpdate(job, round, full.resumed(index), scale, block(full.sum()),
                   block(updated), block(state), out);
  }
}

}  // namespace nereus
