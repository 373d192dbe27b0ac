#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/peer.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Pairs of live members that have lost their connection to each other. They
// connect again in the next epoch. If a pair loses its connection too often
// (three times within a minute or five leases), the coordinator drops one of
// the two members; otherwise the job would do nothing but change epochs.
//
// Plain bookkeeping. Memory for each pair of members: at most two timestamps,
// and one entry of of_epoch().
class BrokenLinks {
 public:
  // `own_shard`: the shard in the coordinator's own process, which is never
  // dropped; -1: none. `lease`: that of the job.
  BrokenLinks(int own_shard, absl::Duration lease)
      : own_(PeerId::Shard(own_shard)), lease_(lease) {}

  // Notes that two members have lost their connection. `reached`: false if they
  // were never connected. Such a report comes only after some seconds of
  // trying, so losses then count for ten minutes instead of one. A loss counts
  // once in an epoch, although both ends report it. Returns the member to drop,
  // if the two have lost their connection too often.
  std::optional<PeerId> Note(PeerId one, PeerId other, bool reached,
                             absl::Time now);

  // Notes that two workers of one host could not connect, and that the next
  // epoch counts them as two hosts. Adds the pair to of_epoch(), but counts no
  // loss: workers of two hosts may need no connection.
  void NoteSplit(PeerId one, PeerId other);

  // Forgets the losses of a member that is gone. Its pairs stay in of_epoch()
  // until the epoch ends.
  void Forget(PeerId member);

  // Pairs that Note and NoteSplit have added in this epoch.
  const std::vector<PeerPair>& of_epoch() const { return of_epoch_; }
  // Returns of_epoch() and empties it. Called when the next epoch begins.
  std::vector<PeerPair> Take() { return std::exchange(of_epoch_, {}); }

 private:
  // Adds a pair to of_epoch(). Returns false if it is there already.
  bool Add(const PeerPair& link);
  // Returns the end of `link` to drop. That is the end that has lost
  // connections to more members from `since` on, but never the coordinator's
  // own shard. If both have lost as many: of a worker and a server, the worker,
  // which is easier to replace; else link.second.
  PeerId WorseOf(const PeerPair& link, absl::Time since) const;

  const PeerId own_;            // Shard in the coordinator's own process.
  const absl::Duration lease_;  // Lease of the job.
  std::map<PeerPair, std::vector<absl::Time>> losses_;  // Recent losses.
  std::vector<PeerPair> of_epoch_;                      // See of_epoch().
};

}  // namespace nereus
