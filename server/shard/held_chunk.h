#pragma once

#include <cstdint>

#include "common/plan/placement.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"
#include "server/shard/full_round.h"

namespace nereus {

// Values of one chunk that a server holds, and their updates.
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

  // Allocates parameters and state, for a checkpoint to be read into.
  void Allocate(int state_arrays);

  // Takes the initial parameters, with `state_arrays` arrays of zeroed state.
  void Begin(Buffer initial, int state_arrays);

  // Applies one optimizer step. `scale` times `gradient` is the mean gradient;
  // `step`, 0-based, is the optimizer's step.
  void Update(const OptimizerOptions& optimizer, int64_t step,
              const Buffer& gradient, float scale, Outbox& out);

  // Applies the outcome of `round`; its sum times `scale` is the mean. It
  // changes all values, or the blocks that a sparse round has, or, in the block
  // layer, the choice of the blocks that travel next.
  void UpdateFrom(const Job& job, int64_t round, const FullRound& full,
                  float scale, Outbox& out);

  // Bytes of parameters and state.
  int64_t stored_bytes() const { return parameters.bytes() + state.bytes(); }

 private:
  // Applies a sparse round to the blocks that it has.
  void UpdateBlocks(const Job& job, int64_t round, const FullRound& full,
                    float scale, Outbox& out);
  // Returns memory for updated parameters, and gives the state memory of its
  // own where a checkpoint still reads it.
  Buffer RoomForUpdate(Outbox& out);
};

}  // namespace nereus
