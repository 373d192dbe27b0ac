#include "server/shard/held_chunk.h"

#include <utility>

#include "common/protocol/outbox.h"

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
  // A checkpoint may still read the old state, so the update gets a copy.
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

void HeldChunk::Update(const Job& job, int64_t round, int64_t step,
                       const Buffer& gradient, float scale, Outbox& out) {
  Buffer updated = RoomForUpdate(out);
  out.Add(UpdateParameters{chunk.layer, job.OptimizerOf(round), step, scale,
                           gradient, parameters, state, updated,
                           ResultCheck(job, chunk.layer, round, chunk.offset)});
  parameters = std::move(updated);
}

// Dense layers take an optimizer step; the block layer chooses blocks.
void HeldChunk::UpdateFrom(const Job& job, int64_t round, const FullRound& full,
                           float scale, Outbox& out) {
  if (full.sparse()) return UpdateBlocks(job, round, full, scale, out);
  if (chunk.layer != job.pool.layer) {
    return Update(job, round, round, full.sum(), scale, out);
  }
  Buffer chosen = RoomForUpdate(out);
  out.Add(
      SelectBlocks{job.BlocksIn(round + 1), full.sum(), parameters, chosen});
  parameters = std::move(chosen);
}

// Values outside of the round's blocks do not change. So if the update needs
// new memory, it first copies the old values there.
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
    AddBlockUpdate(job, chunk.layer, round, full.resumed(index),
                   chunk.offset + grid.Offset(index), scale, block(full.sum()),
                   block(updated), block(state), out);
  }
}

// The last frame of a sparse result has no payload if `whole` is set or if the
// round had no frame.
template <typename Send>
void HeldChunk::CutResult(const Job& job, bool whole, FrameHeader header,
                          const Buffer& values, Send send) const {
  const FrameGrid grid = job.GridOf(chunk);
  if (!job.IsSparse(chunk.layer)) {
    return CutIntoFrames(job, header, grid, values, send);
  }
  whole = whole || closed_frames.empty();
  bool none = true;
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!whole && !closed_frames[index]) continue;
    send(CutFrame(job, header, grid, index, values));
    none = false;
  }
  if (!whole && !none) return;
  header.wire = job.WireOf(header);
  send(Frame{header, {}});
}

void HeldChunk::Broadcast(const ShardEpoch& epoch, int64_t round,
                          const RankList& to, const Buffer& result,
                          Outbox& out) const {
  CutResult(*epoch.job, /*whole=*/false,
            Header(epoch, FrameKind::kResult, round), result, [&](Frame frame) {
              out.Add(BroadcastFrame{to, std::move(frame)});
            });
}

// A worker that takes part in the round gets the result of the round. A worker
// that joins after it gets all values of the chunk.
void HeldChunk::SendValues(const ShardEpoch& epoch, const PullRequest& request,
                           Outbox& out) const {
  const Job& job = *epoch.job;
  const bool is_mean = job.options.optimizer_place == OptimizerPlace::kWorker &&
                       request.round > job.history.base_round;
  const Buffer& values = is_mean ? mean : parameters;
  const FrameGrid grid = job.GridOf(chunk);
  const auto send = [&](Frame frame) {
    out.Add(SendFrame{PeerId::Worker(request.rank), std::move(frame)});
  };
  FrameHeader header = Header(epoch, FrameKind::kResult, request.round);
  const int position = job.PositionOf(request.rank);
  if (position >= 0 && request.round >= job.workers[position].first_step) {
    CutResult(job, /*whole=*/closed_in != job.epoch, header, values, send);
  } else {
    CutIntoFrames(job, header, grid, values, send);
  }
  // Sends the optimizer state of a layer that workers own, if this server has
  // it.
  if (is_mean || epoch.Updates(chunk.layer)) return;
  const int64_t bytes = parameters.bytes();
  for (int64_t start = 0; start < state.bytes(); start += bytes) {
    ++header.part;
    CutIntoFrames(job, header, grid, state.Slice(start, bytes), send);
  }
}

}  // namespace nereus
