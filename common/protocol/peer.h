#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace nereus {

enum class Role : uint8_t { kWorker, kShard };

// A member of a job: worker `rank` or shard `rank`.
struct PeerId {
  Role role = Role::kWorker;
  int32_t rank = 0;

  static PeerId Worker(int rank) { return {Role::kWorker, rank}; }
  static PeerId Shard(int rank) { return {Role::kShard, rank}; }

  auto operator<=>(const PeerId&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const PeerId& peer) {
    return H::combine(std::move(h), peer.role, peer.rank);
  }
};

// "worker 3", "shard 0".
inline std::string PeerName(PeerId peer) {
  return absl::StrCat(peer.role == Role::kWorker ? "worker " : "shard ",
                      peer.rank);
}

// Ranks of either role are below this; checked wherever one comes from outside.
inline constexpr int kRanksMax = 65536;

}  // namespace nereus
