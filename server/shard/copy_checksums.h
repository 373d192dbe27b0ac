#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/protocol/outbox.h"
#include "server/shard/held_chunk.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Checksums by which the coordinator compares the two copies of a shard: that
// of its primary and that of its backup (CopyCheck). Both have the same values
// as of each round, to the last bit. If the memory of a machine changes a
// value, all workers go on with the wrong value, or the values change when the
// backup takes over; without checksums no process would notice.
//
// Both servers choose the rounds and chunks by the same rule, so they need no
// messages for this: all chunks as of the round of a checkpoint, and one chunk,
// in turn, as of every kCopyCheckRounds-th round. Chunks of layers that workers
// own are left out: the workers compare those (ReplicaCheck).
//
// Cost: to read the compared chunks once on each of the two servers, about 10
// GB/s on one core. That is the shard's parameters and optimizer state for each
// checkpoint; and at most 2 MiB of parameters with their state in 64 rounds.
//
// Memory: 8 bytes for each chunk of at most kOpenMax rounds.
class CopyChecksums {
 public:
  // `epoch` is borrowed and must outlive this.
  explicit CopyChecksums(const ShardEpoch* epoch);

  // Range of the shard's chunks.
  struct Range {
    int first = 0;
    int count = 0;

    bool Has(int index) const {
      return index >= first && index < first + count;
    }
  };
  // Returns the chunks that are compared as of `round`.
  Range ChunksOf(int64_t round) const;

  // Asks for the checksums of chunk `index`, whose values are as of `round`, if
  // they are compared. The caller calls this for each round that closes, unless
  // the shard has no current copy on another server.
  void Compute(int index, int64_t round, const HeldChunk& held, Outbox& out);
  // Takes `crc`, the checksum of a part of chunk `index`. With the last missing
  // one, returns the checksums of all compared chunks; otherwise nothing.
  std::optional<ReplicaChecksums> OnChecksum(int index,
                                             const ChecksumValues& checked,
                                             uint32_t crc);

 private:
  // Largest number of rounds that are incomplete. A chunk can be one round
  // ahead of another one. A round stays incomplete if the server got a chunk's
  // later values as a whole.
  static constexpr size_t kOpenMax = 3;
  // Checksums as of a round, some of which are missing.
  struct Open {
    Range range;
    std::vector<uint32_t> checksums;  // Two for each chunk of the range.
    int chunks_missing = 0;           // Chunks that have not reached the round.
    int sums_missing = 0;             // Checksums that Compute has asked for.
  };

  // True if chunk `index` has values that the servers update.
  bool IsUpdated(int index) const;

  const ShardEpoch& epoch_;
  std::vector<int32_t> layers_;   // Layer of each chunk of the shard.
  std::map<int64_t, Open> open_;  // Incomplete rounds, by their number.
};

}  // namespace nereus
