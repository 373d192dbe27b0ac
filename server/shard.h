#ifndef NEREUS_SERVER_SHARD_H_
#define NEREUS_SERVER_SHARD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/placement.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "server/aggregation_round.h"
#include "server/checkpoint_collector.h"

namespace nereus {

// One shard of the parameter servers: owns a set of chunks, and runs their
// rounds.
//
// Of each chunk it holds the parameters, the optimizer's state and the open
// round. A round closes when every worker of the epoch has contributed its
// gradient; then the update runs once and the result goes to all workers. With
// OptimizerPlace::kWorker the result is the mean gradient, and the parameters
// stay the initial ones.
//
// The life of a chunk: worker 0 contributes the initial parameters (round -1),
// or they are loaded from a checkpoint (the base round); every worker pulls
// them, then come the rounds after it. Chunks of layers whose rounds do not
// pass the servers (kFactor) stay as of the base round.
//
// A new epoch drops what the open rounds have: the workers contribute to them
// again, in the new epoch, and those who missed the result of a round that was
// closed are sent it. So a dead worker's part of an open round is never
// counted, and that of a closed one is, for all alike.
//
// A checkpoint of a round is collected by reference: the next update of a chunk
// that is still to be written goes to memory of its own.
//
// Bounded: memory is linear in the shard's chunks, whatever the number of
// workers or their speed (but see JobOptions::deterministic).
class Shard final : public Machine {
 public:
  // `index`: this shard among job->shards().
  Shard(JobPtr job, int index);

  // Loads the values of the base round, if the job goes on from a checkpoint.
  void Start(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  // Rounds may be closed until the epoch's end: whoever has not heard of it by
  // then contributes again, and is sent the result.
  void Freeze() override {}
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;

  // Parameters and optimizer state held, in bytes.
  int64_t stored_bytes() const;
  // The same with what open rounds and checkpoints under way hold; twice where
  // those share it.
  int64_t held_bytes() const;
  int64_t chunk_count() const { return static_cast<int64_t>(slots_.size()); }

  // The oldest round that is open on some chunk, and who is missing from it:
  // for messages. Nothing if the shard has no chunks that take rounds.
  struct OpenRound {
    int32_t layer = 0;
    int64_t round = 0;
    std::vector<int> missing_workers;  // Ranks.
  };
  std::optional<OpenRound> oldest_open_round() const;

  // The parameters of a chunk of this shard, for tests and tools.
  const Buffer& parameters(int layer, int chunk) const;

 private:
  // A worker that asked for a chunk's values as of a round that is still open.
  struct EarlyPull {
    int rank = 0;
    int64_t round = 0;
  };

  // One chunk's state.
  struct Slot {
    Chunk chunk;
    // The open one; kInitialRound until the initial parameters are there.
    int64_t round = kInitialRound;
    uint64_t closed_in = 0;  // The epoch in which the one before was closed.
    AggregationRound aggregation;
    Buffer parameters;
    Buffer state;    // Of the optimizer.
    Buffer average;  // OptimizerPlace::kWorker: of the last closed round.

    // Of this epoch, by the workers' positions: a worker may ask once, and is
    // sent again once what it missed.
    std::vector<bool> pulled;
    std::vector<bool> repeated;
    std::vector<EarlyPull> early_pulls;
  };

  absl::StatusOr<Landing> OnOwnedHeader(const Slot& slot,
                                        const FrameHeader& header,
                                        int position) const;
  absl::Status CheckContribution(const Slot& slot, const FrameHeader& header,
                                 int position) const;
  absl::StatusOr<Landing> OnPullHeader(const Slot& slot,
                                       const FrameHeader& header,
                                       int position) const;
  // Whether a contribution to a closed round asks for its result again.
  bool AsksAgain(const Slot& slot, const FrameHeader& header,
                 int position) const;
  void Pull(Slot& slot, EarlyPull pull, Outbox& out);
  void SendValues(const Slot& slot, int rank, int64_t round, Outbox& out) const;
  void Close(Slot& slot, Outbox& out);
  void CloseInitial(Slot& slot, Outbox& out);
  void Update(Slot& slot, Outbox& out);
  // Hands what is held to a checkpoint of `round`, if one is made of it.
  void Collect(const Slot& slot, int64_t round, Outbox& out);
  // Starts the epoch for one chunk.
  void Reopen(Slot& slot) const;
  // Index into slots_ of the chunk that a frame means. Errors:
  // kInvalidArgument.
  absl::StatusOr<int> FindSlot(const FrameHeader& header) const;
  // Whether rounds change the parameters held here.
  bool updates_here(const Slot& slot) const {
    return !job_->WorkersOwn(slot.chunk.layer);
  }
  // The round whose values are held.
  int64_t held_round(const Slot& slot) const;
  SumOrder sum_order() const;
  FrameHeader ResultHeader(const Slot& slot, int64_t round) const;

  // Constant after construction.
  const PeerId self_;
  std::vector<int>
      slot_of_chunk_;  // By position in placement; -1: another shard's.

  JobPtr job_;
  std::vector<Slot> slots_;
  CheckpointCollector collector_;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_SHARD_H_
