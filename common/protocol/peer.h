#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace nereus {

// Part that a member plays in a job. A server has the role kShard, because
// peers address the shard that it serves.
enum class Role : uint8_t { kWorker, kShard };

// Identifier of a member within one job: worker `rank` or server `rank`. It
// names a place in the job and not a process. A server that is started again
// takes the same place; the incarnation (EpochMember) tells the two processes
// apart. A value type.
struct PeerId {
  Role role = Role::kWorker;  // Part that the member plays.
  int32_t rank =
      0;  // Number among the members of that role, in [0, kRanksMax).

  // Shorthands: PeerId::Worker(3), PeerId::Shard(0).
  static PeerId Worker(int rank) { return {Role::kWorker, rank}; }
  static PeerId Shard(int rank) { return {Role::kShard, rank}; }

  auto operator<=>(const PeerId&) const = default;

  // Hashes a PeerId, so that it can be the key of a flat_hash_map.
  template <typename H>
  friend H AbslHashValue(H h, const PeerId& peer) {
    return H::combine(std::move(h), peer.role, peer.rank);
  }
};

// Returns the name of the member for messages of code that has no Job: "worker
// 3", "shard 0". Job::NameOf shows the worker's name instead.
inline std::string PeerName(PeerId peer) {
  return absl::StrCat(peer.role == Role::kWorker ? "worker " : "shard ",
                      peer.rank);
}

// Ranks are below this bound, for both roles. Every rank that comes from the
// network or from a file is checked against it.
inline constexpr int kRanksMax = 65536;

// Numbers of hosts (EpochMember::host) are below this bound.
inline constexpr int kHostsMax = kRanksMax;

}  // namespace nereus
