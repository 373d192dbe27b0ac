#include "server/coordinator/outsiders.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Time after which a silent process is forgotten.
const absl::Duration kSilentKept = absl::Minutes(1);

}  // namespace

void Outsiders::AddClaim(Claim claim, const absl::Status& taken,
                         CoordinatorOutbox& out) {
  out.push_back(SendToMember{
      claim.session,
      Waiting{absl::StrCat(taken.message(),
                           ": waiting to see if that process is dead")}});
  // Drops an older claim of this process, from a session that broke.
  std::erase_if(claims_, [&](const Claim& each) {
    if (each.request.incarnation != claim.request.incarnation) return false;
    out.push_back(EndSession{each.session});
    return true;
  });
  claims_.push_back(std::move(claim));
}

bool Outsiders::EndClaim(SessionId session) {
  return std::erase_if(claims_, [&](const Claim& claim) {
           return claim.session == session;
         }) > 0;
}

// A worker that is behind may still need a round from the leaver. With partial
// rounds no worker does, because the servers have all values.
std::vector<PeerId> Outsiders::ReleaseLeavers(const Job& job,
                                              int64_t saved_round,
                                              MemberList& roster,
                                              CoordinatorOutbox& out) {
  const auto& members = roster.members();
  std::vector<PeerId> leavers;
  for (const MemberRecord& leaver : members) {
    // A leaver that is still in the epoch stays: the other workers have not
    // entered an epoch without it.
    if (!leaver.has_left() || job.PositionOf(leaver.id.rank) >= 0) continue;
    const bool is_needed =
        absl::c_any_of(members, [&](const MemberRecord& other) {
          return other.is_worker() && !other.has_left() && !job.partial() &&
                 other.heartbeat.round < *leaver.last_step;
        });
    if (!is_needed) leavers.push_back(leaver.id);
  }
  for (const PeerId id : leavers) {
    Release(*roster.Find(id), saved_round, out);
    roster.Remove(id);
  }
  return leavers;
}

void Outsiders::Release(const MemberRecord& member, int64_t saved_round,
                        CoordinatorOutbox& out) {
  released_.insert(member.request.incarnation);
  if (!member.session.has_value()) return;
  TellOver(*member.session, {JobState::kFinished, "", saved_round}, out);
}

void Outsiders::NoteReturn(const JoinRequest& request) {
  std::erase_if(silent_, [&](const Silent& silent) {
    return request.role == Role::kShard
               ? silent.id == PeerId::Shard(request.shard)
               : silent.id.role == request.role && silent.name == request.name;
  });
}

void Outsiders::Forget(absl::Time now) {
  std::erase_if(silent_, [&](const Silent& silent) {
    return now - silent.since > kSilentKept;
  });
}

void Outsiders::Delay(absl::Duration pause) {
  for (Claim& claim : claims_) claim.since += pause;
  for (Silent& silent : silent_) silent.since += pause;
}

}  // namespace nereus
