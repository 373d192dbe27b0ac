#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Processes that are not members, and wait for an answer or may still ask for
// one. There are three kinds:
//
// A claim asks for a place which a member has: the same shard, or the same name
// of a worker. That member's session is open, but the member may be dead: its
// host is gone, or it was killed a moment ago. If the coordinator refused the
// new process at once, a killed worker could not be started again before the
// lease of the dead process has ended.
//
//   claims --the member sends a message over a second later--> refused
//   claims --the member is away, has left or is dead--> joins in its place
//
// A released member has left, and no other member needs it. If the coordinator
// forgot it at once and the process resumed, the answer would be that it counts
// as dead. A silent process counts as dead because the coordinator has heard
// nothing from it, but it may live. If the coordinator forgot it at once, the
// coordinator could end before the process hears that the job is over.
//
//   silent --a process asks for its place, or a minute later--> forgotten
class Outsiders {
 public:
  struct Claim {
    SessionId session = 0;  // Session of the process.
    JoinRequest request;
    absl::Time since;  // Time of the request.
  };

  // Adds a claim, and tells the process that it waits. `taken`: the error that
  // says which member has the place.
  void AddClaim(Claim claim, const absl::Status& taken, CoordinatorOutbox& out);
  // Puts a claim back that TakeClaims has returned, so that it keeps waiting.
  void KeepClaim(Claim claim) { claims_.push_back(std::move(claim)); }
  // Removes the claim of a session. Returns true if there was one.
  bool EndClaim(SessionId session);
  // Removes all claims and returns them, in the order of their requests.
  std::vector<Claim> TakeClaims() { return std::exchange(claims_, {}); }

  // Releases the leavers that no other worker needs any more, and removes them
  // from `roster`. Returns their ids. `saved_round`: round of the newest
  // checkpoint.
  std::vector<PeerId> ReleaseLeavers(const Job& job, int64_t saved_round,
                                     MemberList& roster,
                                     CoordinatorOutbox& out);
  // Notes that a member is released, and tells its process that its job is
  // over. The caller must remove the member.
  void Release(const MemberRecord& member, int64_t saved_round,
               CoordinatorOutbox& out);
  // True if the process is a released member.
  bool IsReleased(uint64_t incarnation) const {
    return released_.contains(incarnation);
  }

  // Notes that a member counts as dead because it was silent. The process may
  // live, and not know that the job is over.
  void NoteSilent(PeerId id, const std::string& name, absl::Time now) {
    silent_.push_back({id, name, now});
  }
  // Forgets the silent member whose place `request` asks for. A process that
  // asks for it has its answer.
  void NoteReturn(const JoinRequest& request);
  // True while a silent member may still ask.
  bool has_silent() const { return !silent_.empty(); }

  // Forgets silent processes that may no longer ask at `now`.
  void Forget(absl::Time now);
  // Moves all times later by a pause in which the coordinator stood still:
  // messages that it reads now may be older than the claims.
  void Delay(absl::Duration pause);

 private:
  // Member that counts as dead because it was silent.
  struct Silent {
    PeerId id;
    std::string name;  // Name of the worker.
    absl::Time since;  // Time at which it counted as dead.
  };

  std::vector<Claim> claims_;  // In the order of their requests.
  // Incarnations of released members. At most kRanksMax workers join a job.
  std::set<uint64_t> released_;
  std::vector<Silent> silent_;
};

}  // namespace nereus
