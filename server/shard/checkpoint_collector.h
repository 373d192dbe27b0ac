#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/plan/placement.h"
#include "common/protocol/chunk_values.h"
#include "common/protocol/outbox.h"
#include "server/shard/chunk_copy.h"

namespace nereus {

// Collects the values of all chunks of one shard as of one round, for a
// checkpoint or for the next plan. A slot is the place of one chunk in it.
//
//   begun --a slot's values, or its last frame--> ... --last slot--> complete
//   begun --the second later round begins--------------------------> forgotten
//
// Chunks that the servers update are added whole and by reference, as soon as
// they reach the round. Chunks that workers own arrive in frames of the first
// worker. If that worker dies before it has sent all of them, the round stays
// incomplete, and is forgotten when the second one after it begins.
//
// Memory: none while the collected buffers are not written over; otherwise at
// most twice the shard's chunks and their optimizer state.
class CheckpointCollector {
 public:
  // `chunks`: chunks of the shard, in the order of the slots. `state_arrays`:
  // number of arrays of optimizer state, see Job.
  CheckpointCollector(std::vector<Chunk> chunks, int state_arrays);

  // Forgets all incomplete rounds.
  void Clear() { open_.clear(); }

  // Allows `round` to be collected, even if it was collected before for another
  // purpose.
  void Reopen(int64_t round) { last_round_ = std::min(last_round_, round - 1); }

  // Values of all slots as of one round.
  struct Collected {
    int64_t round = 0;
    std::vector<ChunkValues> values;
  };

  // Adds the values of a slot as of `round`; nothing may write to these buffers
  // any more. Returns all values of the round if this slot was the last one.
  std::optional<Collected> Add(int slot, int64_t round, Buffer parameters,
                               Buffer state);

  // True if a frame of a chunk that workers own has arrived already, or if its
  // round is over. REQUIRES: `part` < parts().
  bool Has(int slot, int64_t round, int part, int64_t frame) const;
  // Number of parts that a worker sends of one chunk: the values, and one for
  // each array of optimizer state.
  int parts() const { return state_arrays_ + 1; }

  // Adds one frame of a chunk that workers own. Returns all values of the round
  // if this frame was the last one. REQUIRES: !Has().
  std::optional<Collected> AddFrame(int slot, int64_t round, int part,
                                    int64_t frame, const Buffer& payload,
                                    Outbox& out);

  // Bytes of the collected values, including buffers that others share.
  int64_t held_bytes() const;

 private:
  // Values of one round that is not complete yet.
  struct Collection {
    int64_t round = 0;
    std::vector<ChunkCopy> slots;
    int64_t slots_missing = 0;  // Number of slots that are not complete.
  };

  const Collection* Find(int64_t round) const;
  // Returns the collection of `round`, and begins one if there is none. Returns
  // null if the round is over.
  Collection* Open(int64_t round);
  // Notes that a slot is complete. Returns all values with the last slot.
  std::optional<Collected> FinishSlot(Collection& collection);

  const std::vector<Chunk> chunks_;
  const int state_arrays_;
  std::deque<Collection> open_;         // Incomplete rounds, ascending.
  int64_t last_round_ = kInitialRound;  // Last round that is over.
};

}  // namespace nereus
