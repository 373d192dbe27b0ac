#pragma once

#include <cstdint>
#include <optional>

#include "common/base/status.h"
#include "common/protocol/machine.h"
#include "server/shard/chunk_copy.h"
#include "server/shard/full_round.h"
#include "server/shard/held_chunk.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Replication of one chunk. On the primary, this class follows the state of the
// backup and sends frames to it. On the backup, it takes these frames.
//
// For each round, the primary sends the mean, which the backup applies by the
// same arithmetic, or the verdict that skips the round. If the backup lacks a
// closed round, the primary sends the whole chunk. The state of the backup, as
// the primary knows it:
//
//   kUnknown --kHave: it lacks no closed round--> kCurrent
//   kUnknown --kHave: it lacks a closed round---> kBehind
//   kBehind ---SendChunk--> kSent --kHave----> kCurrent
//   any state --new epoch--> kUnknown
//
// If the backup is current, workers see a result only after the backup has it
// too. Without this rule, the primary could die after a worker has got a
// result, and the backup that takes over would not have the round.
class ChunkReplica {
 public:
  enum class State {
    kUnknown,  // The backup has not said yet which rounds it has.
    kBehind,   // The backup needs the whole chunk.
    kSent,     // The whole chunk is on its way.
    kCurrent,  // The backup lacks no round, and gets the mean of each new one.
  };

  // Both are borrowed and must outlive this.
  ChunkReplica(const ShardEpoch* epoch, const HeldChunk* held)
      : epoch_(*epoch), held_(*held) {}

  // Starts an epoch: forgets a copy that is on its way, and the state of the
  // backup, which says again which rounds it has.
  void Reset();

  // On the primary.

  State state() const { return state_; }
  // True if a complete round must go to the backup before it closes. A backup
  // that was current when the epoch began delays all rounds. Any other backup
  // delays rounds once its state is kSent or kCurrent.
  bool DelaysClosing() const;
  // True if the primary may send workers the values that it holds.
  bool AllowsShowing() const;

  // Checks a kHave frame, by which the backup says that it has all rounds
  // before header.round. `open`: the chunk's open round. `may_close`: the
  // backup may have the open round, because the primary has sent its mean in
  // this epoch, or may have sent it in an earlier one. `offered`: the primary
  // has sent this mean in this epoch.
  absl::StatusOr<Landing> OnHaveHeader(const FrameHeader& header, int64_t open,
                                       bool may_close, bool offered) const;
  // Notes that the backup has all rounds before `round`, while `open` is open.
  void OnHave(int64_t round, int64_t open) {
    state_ = round >= open ? State::kCurrent : State::kBehind;
  }

  // Sends the mean of `round`. REQUIRES: `full` is scaled, so its sum is the
  // mean. If `skipped`, sends the verdict that skips `round` instead.
  void SendMean(int64_t round, const FullRound& full, bool skipped,
                Outbox& out) const;
  // Sends the whole chunk as of the round before `open`.
  void SendChunk(int64_t open, Outbox& out);

  // On the backup.

  // Checks a frame of the primary. `open`: the open round. `full`: frames of
  // the open round that have arrived.
  absl::StatusOr<Landing> OnPrimaryHeader(const FrameHeader& header,
                                          int64_t open,
                                          const FullRound& full) const;
  // Adds a kCopy frame. Returns the copy if this frame has completed it.
  std::optional<ChunkCopy> OnCopyFrame(const Frame& frame, Outbox& out);
  // Tells the primary that this backup has all rounds before `open`.
  void SayHave(int64_t open, Outbox& out) const;
  // Bytes of the memory of the copy that is on its way here.
  int64_t held_bytes() const { return incoming_.held_bytes(); }

 private:
  // Check a frame that skips the open round, a frame of the round's mean, and a
  // frame of the whole chunk.
  absl::StatusOr<Landing> OnVerdictHeader(const FrameHeader& header,
                                          int64_t open) const;
  absl::StatusOr<Landing> OnMeanHeader(const FrameHeader& header, int64_t open,
                                       const FullRound& full) const;
  absl::StatusOr<Landing> OnCopyHeader(const FrameHeader& header,
                                       int64_t open) const;
  // Returns a copy without frames yet, with the parts that a chunk has as of
  // `round`.
  ChunkCopy BeginCopy(int64_t round) const;
  // True if a copy as of `round` has the mean of that round: the workers then
  // run the optimizer.
  bool HasMean(int64_t round) const;

  const ShardEpoch& epoch_;
  const HeldChunk& held_;
  State state_ = State::kUnknown;  // State of the backup in this epoch.
  ChunkCopy incoming_;  // Copy on its way here; not begun if there is none.
};

}  // namespace nereus
