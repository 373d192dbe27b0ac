#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Processes that are no members any more, and may still ask about the job:
// workers that were released, and members that count as dead because they were
// silent.
//
//   left --no other worker needs it--> released --a lease later--> forgotten
//   dead by silence --it joins again, or a minute later--> forgotten
//
// Without them, a worker that has done all its work and asks again would be
// told that it counts as dead.
class Departures {
 public:
  // Releases workers that have left, and that no other worker needs any more.
  // Until `until` they may ask again. `saved_round`: round of the newest
  // checkpoint.
  void ReleaseLeavers(const Job& job, int64_t saved_round, absl::Time until,
                      MemberList& roster, CoordinatorOutbox& out);
  // True if the process was a worker that was released.
  bool IsReleased(uint64_t incarnation) const {
    return released_.contains(incarnation);
  }

  // Notes that a member counts as dead because it was silent. The process may
  // live, and not know that the job is over.
  void NoteSilent(PeerId id, const std::string& name, absl::Time now) {
    silent_.push_back({id, name, now});
  }
  // Forgets the silent member that had the place of `request`: it is back.
  void NoteReturn(const JoinRequest& request);
  // True while a silent member may still ask.
  bool has_silent() const { return !silent_.empty(); }

  // Forgets processes that were kept long enough by `now`.
  void Forget(absl::Time now);
  // Adds a time in which this process stood still.
  void Delay(absl::Duration pause);

 private:
  // Member that counts as dead because it was silent.
  struct Silent {
    PeerId id;
    std::string name;  // Name of the worker.
    absl::Time since;  // Time at which it counted as dead.
  };
  // Time until which a released worker may ask, by its incarnation.
  std::map<uint64_t, absl::Time> released_;
  std::vector<Silent> silent_;
};

}  // namespace nereus
