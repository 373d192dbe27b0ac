#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/placement.h"
#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"
#include "server/shard/full_round.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Request of a worker for the result of a round of one chunk.
struct PullRequest {
  int rank = 0;       // Rank of the worker.
  int64_t round = 0;  // Round of the result that it wants.
};

// Values of one chunk that a server holds. If the servers update the layer,
// parameters and state are as of the last closed round; with Quorum::kEach they
// also have the contributions that came later. If workers own the layer, they
// are as of the base round. Methods update the values, and send them to workers
// in frames.
//
// Buffers are shared by reference with frames on their way and with checkpoints
// being written. An update therefore writes to new memory while the old memory
// has another reader; an update in place would change a checkpoint that is half
// written.
struct HeldChunk {
  Chunk chunk;        // Range of the layer's values.
  Buffer parameters;  // Values of the layer's parameters.
  Buffer state;       // Arrays of the optimizer's state, one after the other.
  Buffer mean;  // OptimizerPlace::kWorker: mean gradient of the last round.
  uint64_t closed_in = 0;  // Epoch in which the last closed round was complete.
  // True for each frame that the last closed round had; empty if it was dense.
  std::vector<bool> closed_frames;

  // Allocates parameters and state, for a checkpoint to be read into.
  void Allocate(int state_arrays);

  // Takes the initial parameters, with `state_arrays` arrays of zeroed state.
  void Begin(Buffer initial, int state_arrays);

  // Applies one optimizer step after `round`. `scale` times `gradient` is the
  // mean gradient; `step`, 0-based, is the optimizer's step.
  void Update(const Job& job, int64_t round, int64_t step,
              const Buffer& gradient, float scale, Outbox& out);

  // Applies the outcome of `round`: the sum of `full` times `scale` is the
  // mean. A sparse round changes the values of the blocks that were sent, any
  // other round all values. A round of the block layer has no mean: it chooses
  // the blocks that are sent in the next round.
  void UpdateFrom(const Job& job, int64_t round, const FullRound& full,
                  float scale, Outbox& out);

  // Sends `result` of `round` to the workers `to`.
  void Broadcast(const ShardEpoch& epoch, int64_t round, const RankList& to,
                 const Buffer& result, Outbox& out) const;
  // Answers a worker's request: sends the parameters, or the mean gradient if
  // the caller runs the optimizer. In a sparse job, a worker that takes part in
  // the round gets the round's blocks only. If workers own the layer, also
  // sends its optimizer state, if the server has it: from a checkpoint, or
  // because the servers updated the layer in an earlier plan.
  void SendValues(const ShardEpoch& epoch, const PullRequest& request,
                  Outbox& out) const;

  // Returns the header of a frame about this chunk from this server.
  FrameHeader Header(const ShardEpoch& epoch, FrameKind kind,
                     int64_t round) const {
    return MakeHeader(*epoch.job, epoch.self, kind, chunk.layer, chunk.index,
                      round);
  }

  // Bytes of parameters and state.
  int64_t stored_bytes() const { return parameters.bytes() + state.bytes(); }

 private:
  // Applies a sparse round to the blocks that it has.
  void UpdateBlocks(const Job& job, int64_t round, const FullRound& full,
                    float scale, Outbox& out);
  // Returns memory for updated parameters, and gives the state memory of its
  // own if a checkpoint still reads it.
  Buffer RoomForUpdate(Outbox& out);

  // Calls `send` with the frames of a result. In a dense layer, these are all
  // frames of the chunk. In a sparse layer, they are the frames that the round
  // had, or one frame without payload if it had none; with `whole`, all frames
  // of the chunk, and then one frame without payload. The caller sets `whole`
  // if a worker may have begun the round with another choice of blocks.
  template <typename Send>
  void CutResult(const Job& job, bool whole, FrameHeader header,
                 const Buffer& values, Send send) const;
};

}  // namespace nereus
