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
// workers that have left for good, and members that were counted as dead for
// their silence. Each is forgotten after some time.
class Departures {
 public:
  // Lets workers go that have left, and that no other worker needs any more.
  // Until `until` they may ask again. `saved_round`: of the newest checkpoint.
  void ReleaseLeavers(const Job& job, int64_t saved_round, absl::Time until,
                      MemberList& roster, CoordinatorOutbox& out);
  bool IsReleased(uint64_t incarnation) const {
    return released_.contains(incarnation);
  }

  // Notes that a member counts as dead because nothing was heard from it. It
  // may live, and not know that the job is over.
  void NoteSilent(PeerId id, const std::string& name, absl::Time now) {
    silent_.push_back({id, name, now});
  }
  // Forgets the silent member whose place `request` asks for: it is back.
  void NoteReturn(const JoinRequest& request);
  bool has_silent() const { return !silent_.empty(); }

  // Forgets what is too old by `now`.
  void Forget(absl::Time now);
  // Adds a time in which this process stood still.
  void Delay(absl::Duration pause);

 private:
  struct Silent {
    PeerId id;
    std::string name;
    absl::Time since;
  };
  // Time until which a released worker may ask, by its incarnation.
  std::map<uint64_t, absl::Time> released_;
  std::vector<Silent> silent_;
};

}  // namespace nereus
