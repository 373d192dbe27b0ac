#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/plan/placement.h"
#include "common/protocol/chunk_values.h"
#include "common/protocol/machine.h"
#include "server/shard/chunk_copy.h"
#include "server/shard/held_chunk.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Saves rounds of a shard: collects the values of all chunks as of a round, and
// hands them to a checkpoint or keeps them for the next plan. States of a
// round:
//
//   begun --all values of a chunk are here--> begun
//   begun --the last chunk is complete--> saved, or kept for the next plan
//   begun --the second later round begins--> forgotten
//
// Chunks that the servers update are added whole and by reference, as soon as
// they reach the round. Layers that workers own come as kOwned frames from the
// first worker; for the last round of the job, from the worker that the
// coordinator names. If this worker dies before it has sent all frames, the
// round stays incomplete. RoundSaver forgets it when it has begun to collect
// two later rounds.
//
// Memory: that of worker-owned layers; chunks that the servers update cost
// memory only once an update writes to new memory. In all, at most twice the
// shard's chunks and their optimizer state, and the values that are handed
// over.
class RoundSaver {
 public:
  // `epoch` is borrowed and must outlive this. Chunks of the block layer, which
  // come last in the shard, are not saved.
  explicit RoundSaver(const ShardEpoch* epoch);

  // Values of all chunks as of one round.
  struct Saved {
    int64_t round = 0;
    std::vector<ChunkValues> values;
  };

  // Starts an epoch, and forgets the values that were handed over.
  // `was_serving`: this server was the primary before.
  void OnEpoch(bool was_serving);
  // Starts the save of the job's last round, for which worker `sender` sends
  // the worker-owned layers. Returns false if the round is saved already.
  bool BeginLast(int64_t round, int32_t sender);

  // Checks a kOwned frame of chunk `index` from the worker at `position`.
  absl::StatusOr<Landing> OnOwnedHeader(int index, const HeldChunk& held,
                                        const FrameHeader& header,
                                        int position) const;
  // Adds the frame to the values that are collected.
  void OnOwnedFrame(int index, const Frame& frame, Outbox& out);

  // Takes the values of chunk `index` as of `round`, if that round is to be
  // saved. From then on the caller must not write to these buffers.
  void Collect(int index, int64_t round, const HeldChunk& held, Outbox& out);
  // Takes the values of chunk `index` that workers have handed over as of
  // `round`, for the save of the job's last round.
  void CollectHandedOver(int index, int64_t round, Outbox& out);

  // Values of worker-owned layers as of Job::switch_round, by chunk of the
  // shard. The entries of other chunks are empty. std::nullopt until all these
  // values have arrived.
  const std::optional<Saved>& handed_over() const { return handed_over_; }

  // Bytes of the values that are collected or handed over. A buffer that the
  // shard's chunk uses, too, counts here as well.
  int64_t held_bytes() const;

 private:
  // Values of one round, of which some have not arrived yet.
  struct Collection {
    int64_t round = 0;
    std::vector<ChunkCopy> chunks;
    int64_t missing = 0;  // Number of chunks whose values are incomplete.
  };

  // Returns the collection of `round`, or null.
  const Collection* Find(int64_t round) const;
  // Returns the collection of `round`, and begins one if there is none. Returns
  // null if this round, or a later one, is over: it was saved, handed over or
  // forgotten.
  Collection* Open(int64_t round);
  void Add(int index, int64_t round, const Buffer& parameters,
           const Buffer& state, Outbox& out);
  // Notes that a chunk is complete. If no chunk of the round is missing any
  // more, saves a checkpoint's round, and hands over a switch round (a round
  // may be both).
  void FinishChunk(Collection& collection, Outbox& out);

  const ShardEpoch& epoch_;
  std::vector<Chunk> chunks_;           // The shard's chunks that it saves.
  std::deque<Collection> open_;         // Incomplete rounds, ascending.
  int64_t last_round_ = kInitialRound;  // Last round that is over.
  std::optional<Saved> handed_over_;
  // Rank of the worker that sends this shard the worker-owned layers at the end
  // of the job (SaveLast); -1 until the coordinator has named it.
  int32_t last_sender_ = -1;
  // Last round for which SaveCheckpoint was appended.
  int64_t saved_round_ = kInitialRound;
};

}  // namespace nereus
