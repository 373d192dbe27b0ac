#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/peer.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Connections between members that have ended. Both ends make a new one in the
// next epoch. Of two members that lose each other too often, one has to go.
class BrokenLinks {
 public:
  // `own_shard`: the shard in the coordinator's own process, which is never the
  // one to go; -1: none.
  explicit BrokenLinks(int own_shard) : own_(PeerId::Shard(own_shard)) {}

  // Notes that two members have lost each other. Returns the one that has to
  // go, if they have done so too often.
  std::optional<PeerId> Note(PeerId one, PeerId other, absl::Time now);

  // Forgets a member that is gone.
  void Forget(PeerId member);

  // Connections that have ended in this epoch.
  const std::vector<PeerPair>& of_epoch() const { return of_epoch_; }
  // Returns them, and starts the next epoch.
  std::vector<PeerPair> Take() { return std::exchange(of_epoch_, {}); }

 private:
  PeerId WorseOf(const PeerPair& link, absl::Time now) const;

  const PeerId own_;
  std::map<PeerPair, std::vector<absl::Time>> losses_;  // Recent ones.
  std::vector<PeerPair> of_epoch_;
};

}  // namespace nereus
