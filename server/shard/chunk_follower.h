#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/protocol/machine.h"
#include "server/shard/chunk_copy.h"
#include "server/shard/full_round.h"
#include "server/shard/held_chunk.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Backup's side of one chunk: which frames of the primary it takes, and a copy
// of the chunk that is on its way.
//
// The primary sends either the mean of each round, which the backup applies by
// the same arithmetic, or the whole chunk, if the backup lacks a round.
class ChunkFollower {
 public:
  // Both are borrowed and must outlive this.
  ChunkFollower(const ShardEpoch* epoch, const HeldChunk* held)
      : epoch_(*epoch), held_(*held) {}

  // Starts an epoch: the primary begins a copy again.
  void Reset() { incoming_ = ChunkCopy(); }

  // Checks a frame of the primary, while `open` is the open round, summed up in
  // `full`.
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header, int64_t open,
                                   const FullRound& full) const;
  // Adds a kCopy frame. Returns the copy with its last frame.
  std::optional<ChunkCopy> OnCopyFrame(const Frame& frame, Outbox& out);

  // Tells the primary that all rounds before `open` are here.
  void SayHave(int64_t open, Outbox& out) const;

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
  ChunkCopy incoming_;  // Copy on its way; not begun if there is none.
};

}  // namespace nereus
