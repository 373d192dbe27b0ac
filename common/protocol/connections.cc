#include "common/protocol/connections.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// True if workers own a layer, and so exchange its frames with each other.
bool WorkersOwnAny(const Job& job) {
  for (size_t layer = 0; layer < job.layers.size(); ++layer) {
    if (job.WorkersOwn(static_cast<int>(layer))) return true;
  }
  return false;
}

// True if one of the two servers is the primary and the other one is the backup
// of the same shard.
bool ShareShard(const Job& job, int server, int other) {
  return absl::c_any_of(job.shard_servers, [&](const ShardServers& servers) {
    return std::minmax(servers.primary, servers.backup) ==
           std::minmax(server, other);
  });
}

// True if this process dials `peer`. Workers dial all servers. Of two workers
// or two servers that exchange frames, the one with the higher rank dials. Two
// members that exchange no frames have no connection.
bool Dials(const EpochStart& start, PeerId peer) {
  const PeerId self = start.self;
  if (peer == self) return false;
  if (self.role == Role::kShard) {
    return peer.role == Role::kShard && self.rank > peer.rank &&
           ShareShard(*start.job, self.rank, peer.rank);
  }
  if (peer.role == Role::kShard) return true;
  return self.rank > peer.rank &&
         (AreMates(*start.job, self, peer) || WorkersOwnAny(*start.job));
}

}  // namespace

bool AreMates(const Job& job, PeerId one, PeerId other) {
  if (one.role != Role::kWorker || other.role != Role::kWorker) return false;
  const int position = job.PositionOf(one.rank);
  const int other_position = job.PositionOf(other.rank);
  return one != other && position >= 0 && other_position >= 0 &&
         job.workers[position].host >= 0 &&
         job.workers[position].host == job.workers[other_position].host;
}

Roster RosterOf(const EpochStart& start) {
  Roster roster;
  for (const EpochMember& member : start.epoch_members) {
    roster[member.id] = member.incarnation;
  }
  return roster;
}

Connections ConnectionsOf(const EpochStart& start, const EpochStart* before) {
  Connections connections;
  if (before != nullptr) {
    const Roster roster = RosterOf(start);
    for (const EpochMember& member : before->epoch_members) {
      const auto found = roster.find(member.id);
      const bool stays =
          found != roster.end() && found->second == member.incarnation;
      if (!stays) connections.dropped.push_back(member.id);
    }
  }
  for (const auto& [first, second] : start.broken_links) {
    if (first == start.self) connections.dropped.push_back(second);
    if (second == start.self) connections.dropped.push_back(first);
  }
  for (const EpochMember& member : start.epoch_members) {
    if (Dials(start, member.id)) connections.dialled.push_back(member);
  }
  return connections;
}

}  // namespace nereus
