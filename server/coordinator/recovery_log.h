#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/peer.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Losses since the epoch began. Makes one log line about them when the next
// epoch begins: the members that were lost, the time without them, and the
// number of steps that workers do again.
//
// Memory: the names of lost members that have not come back, and the pairs of
// workers that were split in this epoch.
class RecoveryLog {
 public:
  // Notes that an admitted member counts as dead.
  void NoteLost(const MemberRecord& member);

  // Notes that two workers of a host could not connect, and are two hosts in
  // the next epoch.
  void NoteSplit(PeerId one, PeerId other) {
    split_.insert(std::minmax(one, other));
  }

  // Starts an epoch, before its new members are admitted. Returns the line; ""
  // if no member or connection was lost, and neither a lost member nor the
  // coordinator is back. `was_restarted`: the coordinator was restarted.
  // `begun_step`: last step that a worker had begun. `workers`, `shards`:
  // numbers of workers and of servers with which the job has started.
  std::string OnEpoch(const EpochInForce& epoch, const MemberList& roster,
                      bool was_restarted, int64_t begun_step, int workers,
                      int shards, absl::Time now);

 private:
  // Time of the last message of each member that was lost in this epoch.
  std::map<std::string, absl::Time> lost_;
  // Pairs of workers that are two hosts from the next epoch on.
  std::set<PeerPair> split_;
  // Names of lost members that have not come back, of any epoch.
  std::set<std::string> gone_;
};

}  // namespace nereus
