#pragma once

#include <vector>

#include "common/protocol/hello.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"

namespace nereus {

// Changes that an epoch makes to the connections of one process.
struct Connections {
  // Peers to disconnect before this process makes any new connection: peers
  // that are no longer members, peers that another process has replaced, and
  // peers at the other end of a broken link.
  std::vector<PeerId> dropped;
  // Members that this process dials, unless they are connected already. For
  // each link only one of the two members dials, so that no link gets two
  // connections.
  std::vector<EpochMember> dialled;
};

// True if `one` and `other` are two workers of one host in this epoch, so that
// each can be a carrier for the other.
bool AreMates(const Job& job, PeerId one, PeerId other);

// Returns the members of an epoch with their incarnations.
Roster RosterOf(const EpochStart& start);

// Returns the changes that a process makes when it enters the epoch `start`.
// `before` is the epoch that the process leaves; null if it enters its first
// epoch.
Connections ConnectionsOf(const EpochStart& start,
                          const EpochStart* before = nullptr);

}  // namespace nereus
