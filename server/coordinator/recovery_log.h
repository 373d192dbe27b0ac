#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// What was lost since the epoch began, for one line of the log: which members,
// for how long, and what that has cost.
class RecoveryLog {
 public:
  // Notes that an admitted member was counted as dead.
  void NoteLost(const MemberRecord& member);

  // Starts an epoch, before its new members are admitted. Returns the line, or
  // "" if nothing was lost. `was_restarted`: the coordinator itself was lost.
  // `begun_step`: last step that a worker had begun. `workers`, `shards`: how
  // many the job was started with.
  std::string OnEpoch(const EpochInForce& epoch, const MemberList& roster,
                      bool was_restarted, int64_t begun_step, int workers,
                      int shards, absl::Time now);

 private:
  // Members that were lost in this epoch, and when each was last heard from.
  std::map<std::string, absl::Time> lost_;
  // Members whose place is empty since then.
  std::set<std::string> away_;
};

}  // namespace nereus
