#pragma once

#include <vector>

#include "common/protocol/hello.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"

namespace nereus {

// Changes that an epoch makes to the connections of one process.
struct Connections {
  // Peers to disconnect, before any new connection is made: members that have
  // left, members that were replaced by another process, and peers at the other
  // end of a broken connection.
  std::vector<PeerId> dropped;
  // Members that this process dials, unless it has a connection to them
  // already. Of two linked processes only one dials, so that no link has two
  // connections.
  std::vector<EpochMember> dialled;
};

// True if the two are workers of one host, so that one of them may carry a unit
// for the other.
bool AreMates(const Job& job, PeerId one, PeerId other);

// Returns the members of an epoch with their incarnations.
Roster RosterOf(const EpochStart& start);

// Returns the changes that the epoch `start` makes. `before` is the epoch that
// the process leaves; null if it enters its first epoch.
Connections ConnectionsOf(const EpochStart& start,
                          const EpochStart* before = nullptr);

}  // namespace nereus
