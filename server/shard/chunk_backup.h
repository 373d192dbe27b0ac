#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/protocol/machine.h"
#include "server/shard/full_round.h"
#include "server/shard/held_chunk.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Primary's view of the backup of one chunk.
//
//   unknown --backup has the open round--> current <--has it-- sent
//      \----backup lacks it----> behind --SendChunk------------/
//
// Workers see a result only after a current backup has it too. Otherwise a
// worker could have seen a round that a backup, taking over, has never heard
// of.
class ChunkBackup {
 public:
  enum class State {
    kUnknown,  // The backup has not said yet which round it has.
    kBehind,   // The backup needs the whole chunk.
    kSent,     // The chunk is on its way.
    kCurrent,  // The backup follows the rounds.
  };

  // `epoch` is borrowed and must outlive this.
  explicit ChunkBackup(const ShardEpoch* epoch) : epoch_(*epoch) {}

  State state() const { return state_; }
  // Starts an epoch: the backup says again which round it has.
  void Reset() { state_ = State::kUnknown; }

  // True if a complete round must go to the backup before it closes. A backup
  // that has never been current does not delay the rounds that it lacks.
  bool DelaysClosing() const;
  // True if workers may see the values that the primary holds.
  bool AllowsShowing() const;

  // Checks a kHave frame, by which the backup says that it has all rounds
  // before header.round. `open`: the chunk's open round. `may_close`: the
  // backup was sent that round's mean, in this epoch or in one before.
  // `offered`: in this epoch.
  absl::StatusOr<Landing> OnHaveHeader(const FrameHeader& header, int64_t open,
                                       bool may_close, bool offered) const;
  // Notes that the backup has all rounds before `round`, while `open` is open.
  void OnHave(int64_t round, int64_t open);

  // Sends the mean of `round`, or that it is skipped.
  void SendMean(const HeldChunk& held, int64_t round, const FullRound& full,
                bool skipped, Outbox& out) const;
  // Sends the whole chunk as of the round before `open`.
  void SendChunk(const HeldChunk& held, int64_t open, Outbox& out);

 private:
  const ShardEpoch& epoch_;
  State state_ = State::kUnknown;  // State in this epoch.
};

}  // namespace nereus
