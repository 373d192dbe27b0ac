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

// Replication of one chunk: on the primary its view of the backup, on the
// backup the frames that it takes.
//
// The primary sends either the mean of each round, which the backup applies by
// the same arithmetic, or the whole chunk, if the backup lacks a round. The
// state of the backup, as the primary knows it:
//
//   kUnknown --kHave: it lacks no closed round--> kCurrent
//   kUnknown --kHave: it lacks a closed round---> kBehind
//   kBehind ---SendChunk--> kSent --kHave----> kCurrent
//   any state --new epoch--> kUnknown
//
// Workers see a result only after a current backup has it too. Otherwise a
// worker could have seen a round that a backup, taking over, has never heard
// of.
class ChunkReplica {
 public:
  enum class State {
    kUnknown,  // The backup has not said yet which rounds it has.
    kBehind,   // The backup needs the whole chunk.
    kSent,     // The chunk is on its way.
    kCurrent,  // The backup follows the rounds.
  };

  // Both are borrowed and must outlive this.
  ChunkReplica(const ShardEpoch* epoch, const HeldChunk* held)
      : epoch_(*epoch), held_(*held) {}

  // Starts an epoch: forgets a copy on its way; the backup says again which
  // rounds it has.
  void Reset();

  // On the primary.

  State state() const { return state_; }
  // True if a complete round must go to the backup before it closes. A backup
  // that was not current when the epoch began delays no round until the whole
  // chunk has been sent to it, or it turns out to lack no round.
  bool DelaysClosing() const;
  // True if workers may see the values that the primary holds.
  bool AllowsShowing() const;

  // Checks a kHave frame, by which the backup says that it has all rounds
  // before header.round. `open`: the chunk's open round. `may_close`: the
  // backup may have that round, because its mean was sent in this epoch or may
  // have been sent in an earlier one. `offered`: the mean was sent in this
  // epoch.
  absl::StatusOr<Landing> OnHaveHeader(const FrameHeader& header, int64_t open,
                                       bool may_close, bool offered) const;
  // Notes that the backup has all rounds before `round`, while `open` is open.
  void OnHave(int64_t round, int64_t open) {
    state_ = round >= open ? State::kCurrent : State::kBehind;
  }

  // Sends the mean of `round`, or the verdict that skips `round`.
  void SendMean(int64_t round, const FullRound& full, bool skipped,
                Outbox& out) const;
  // Sends the whole chunk as of the round before `open`.
  void SendChunk(int64_t open, Outbox& out);

  // On the backup.

  // Checks a frame of the primary, while `open` is the open round, summed up in
  // `full`.
  absl::StatusOr<Landing> OnPrimaryHeader(const FrameHeader& header,
                                          int64_t open,
                                          const FullRound& full) const;
  // Adds a kCopy frame. Returns the copy if this frame was the last one.
  std::optional<ChunkCopy> OnCopyFrame(const Frame& frame, Outbox& out);
  // Tells the primary that all rounds before `open` are here.
  void SayHave(int64_t open, Outbox& out) const;
  // Bytes of the copy on its way.
  int64_t held_bytes() const { return incoming_.held_bytes(); }

 private:
  // Check a frame that skips the open round, a frame of its mean, and a frame
  // of the whole chunk.
  absl::StatusOr<Landing> OnVerdictHeader(const FrameHeader& header,
                                          int64_t open) const;
  absl::StatusOr<Landing> OnMeanHeader(const FrameHeader& header, int64_t open,
                                       const FullRound& full) const;
  absl::StatusOr<Landing> OnCopyHeader(const FrameHeader& header,
                                       int64_t open) const;
  // Returns an empty copy with the parts that the chunk has after `round`.
  ChunkCopy BeginCopy(int64_t round) const;

  const ShardEpoch& epoch_;
  const HeldChunk& held_;
  State state_ = State::kUnknown;  // State of the backup in this epoch.
  ChunkCopy incoming_;  // Copy on its way here; not begun if there is none.
};

}  // namespace nereus
