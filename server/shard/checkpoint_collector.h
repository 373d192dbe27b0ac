#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/plan/placement.h"
#include "common/protocol/chunk_values.h"
#include "common/protocol/outbox.h"

namespace nereus {

// What one shard saves in a checkpoint, or hands over to the next plan: the
// values of all its chunks as of one round, collected chunk by chunk as each
// gets there, by reference.
//
// Chunks that workers own come in frames, from the first worker. Should it die
// before it has sent them, that checkpoint stays incomplete, and is forgotten
// when the second one after it begins.
//
// Memory: none, as long as nothing is written over; else as much as the shard's
// chunks and their state, twice at most.
class CheckpointCollector {
 public:
  // `chunks`: of one shard, in the order of its slots. `state_arrays`: see Job.
  CheckpointCollector(std::vector<Chunk> chunks, int state_arrays);

  // Forgets what is not complete.
  void Clear() { open_.clear(); }

  // `round` is to be collected, though it may have been before, for another
  // use.
  void Reopen(int64_t round) { last_round_ = std::min(last_round_, round - 1); }

  // All of a round, by slot.
  struct Collected {
    int64_t round = 0;
    std::vector<ChunkValues> values;
  };

  // The values of a slot as of `round`, which must stay as they are. The whole
  // if they were the last that were missing.
  std::optional<Collected> Add(int slot, int64_t round, Buffer parameters,
                               Buffer state);

  // Whether a frame of a chunk that workers own is in, or of no use any more.
  // `part`: below parts().
  bool Has(int slot, int64_t round, int part, int64_t frame) const;
  int parts() const { return state_arrays_ + 1; }

  // The same for values that come as a frame. REQUIRES: !Has().
  std::optional<Collected> AddFrame(int slot, int64_t round, int part,
                                    int64_t frame, const Buffer& payload,
                                    Outbox& out);

  // Of what is collected, whoever else holds it.
  int64_t held_bytes() const;

 private:
  // One round's.
  struct Collection {
    int64_t round = 0;
    std::vector<ChunkValues> values;         // By slot.
    std::vector<std::vector<bool>> arrived;  // By slot, part and frame.
    std::vector<int64_t> missing;            // By slot: frames; 0: complete.
    int64_t slots_missing = 0;
  };

  int64_t FramesOf(int slot) const;
  const Collection* Find(int64_t round) const;
  // Begins one if there is none; null if it is over.
  Collection* Open(int64_t round);
  std::optional<Collected> TakeIfComplete(Collection& collection);

  const std::vector<Chunk> chunks_;
  const int state_arrays_;
  std::deque<Collection> open_;         // Rounds ascend.
  int64_t last_round_ = kInitialRound;  // Of those that are over.
};

}  // namespace nereus
