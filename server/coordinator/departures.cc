#include "server/coordinator/departures.h"

#include <algorithm>

namespace nereus {
namespace {

// Longest time that a coordinator at the end waits for silent members.
const absl::Duration kSilentKept = absl::Minutes(1);

}  // namespace

// A worker that is behind may still fetch a round from the leaver. In partial
// rounds the servers have all values.
void Departures::ReleaseLeavers(const Job& job, int64_t saved_round,
                                absl::Time until, MemberList& roster,
                                CoordinatorOutbox& out) {
  const auto& members = roster.members();
  std::vector<PeerId> leavers;
  for (const MemberRecord& leaver : members) {
    // A worker of the epoch: the others have not gone on without it.
    if (!leaver.has_left() || job.PositionOf(leaver.id.rank) >= 0) continue;
    const bool is_needed = std::any_of(
        members.begin(), members.end(), [&](const MemberRecord& other) {
          return other.is_worker() && !other.has_left() && !job.partial() &&
                 other.heartbeat.round < *leaver.last_step;
        });
    if (!is_needed) leavers.push_back(leaver.id);
  }
  for (const PeerId id : leavers) {
    const MemberRecord& leaver = *roster.Find(id);
    released_[leaver.request.incarnation] = until;
    if (leaver.session.has_value()) {
      out.push_back(SendToMember{
          *leaver.session, JobOver{JobState::kFinished, "", saved_round}});
      out.push_back(EndSession{*leaver.session});
    }
    roster.Remove(id);
  }
}

void Departures::NoteReturn(const JoinRequest& request) {
  std::erase_if(silent_, [&](const Silent& silent) {
    return request.role == Role::kShard
               ? silent.id == PeerId::Shard(request.shard)
               : silent.id.role == request.role && silent.name == request.name;
  });
}

void Departures::Forget(absl::Time now) {
  std::erase_if(released_,
                [&](const auto& entry) { return now > entry.second; });
  std::erase_if(silent_, [&](const Silent& silent) {
    return now - silent.since > kSilentKept;
  });
}

void Departures::Delay(absl::Duration pause) {
  for (auto& [incarnation, until] : released_) until += pause;
}

}  // namespace nereus
