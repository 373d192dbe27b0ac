#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/peer.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Connections that have ended between live members. Both ends make a new
// connection in the next epoch. If two members lose each other too often, the
// coordinator drops one of them; otherwise the job would do nothing but change
// epochs.
//
// Plain bookkeeping. Memory for each pair of members: at most two timestamps,
// and one entry of of_epoch().
class BrokenLinks {
 public:
  // `own_shard`: the shard in the coordinator's own process, which never has to
  // go; -1: none.
  explicit BrokenLinks(int own_shard) : own_(PeerId::Shard(own_shard)) {}

  // Notes that two members have lost each other. Returns the member that has to
  // go, if they have lost each other too often.
  std::optional<PeerId> Note(PeerId one, PeerId other, absl::Time now);

  // Notes that two members never had a connection, and that the next epoch
  // makes two hosts of their host. This is no loss: they may need no connection
  // then.
  void NoteSplit(PeerId one, PeerId other);

  // Forgets the losses of a member that is gone. Its connections stay in
  // of_epoch() until the epoch ends.
  void Forget(PeerId member);

  // Connections that have ended in this epoch.
  const std::vector<PeerPair>& of_epoch() const { return of_epoch_; }
  // Returns them, and starts the next epoch.
  std::vector<PeerPair> Take() { return std::exchange(of_epoch_, {}); }

 private:
  // Adds a link to those of this epoch. Returns false if it is there already.
  bool Add(const PeerPair& link);
  // Returns the end of `link` that has to go: the worker, if the other end is a
  // server. Of two servers, the coordinator's own shard stays. Otherwise it is
  // the end with more losses in the last minute; if both have as many,
  // link.second.
  PeerId WorseOf(const PeerPair& link, absl::Time now) const;

  const PeerId own_;  // Shard in the coordinator's own process.
  std::map<PeerPair, std::vector<absl::Time>> losses_;  // Recent losses.
  std::vector<PeerPair> of_epoch_;  // Connections that ended in this epoch.
};

}  // namespace nereus
