#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {

// Part that a member plays in a job. A server has the role kShard: at the start
// of a job, server i is the primary of shard i.
enum class Role : uint8_t { kWorker, kShard };

// Identifier of a member within one job: worker `rank` or server `rank`. A
// PeerId names a place in the job and not a process: a server that is started
// again has the PeerId of the earlier process. The incarnation (EpochMember)
// tells the two processes apart. A value type.
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

// Returns the role and rank of the member for messages: "worker 3", "shard 0".
// Code that has a Job calls Job::NameOf, which shows a worker's name and not
// its rank.
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
