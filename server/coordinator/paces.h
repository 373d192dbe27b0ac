#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/activity.h"
#include "common/protocol/job_status.h"
#include "common/protocol/peer.h"

namespace nereus {

// Speed of each member, and which of them the others wait for, and why, by what
// heartbeats report (Activity).
//
// In a step, all workers wait for the slowest. It is late because its program
// computes longer than the median of the workers, or because its links are
// busier than those of others.
//
// Memory: for each member, its activities in the last kRateWindow.
class Paces {
 public:
  // Notes the activity of a member. `process`: incarnation of its process.
  void Note(PeerId member, uint64_t process, const Activity& activity,
            absl::Time now);
  // Forgets a member that is gone.
  void Forget(PeerId member) { members_.erase(member); }

  // Computes the pace of each member, and adds up how late they are. Called
  // about once a second.
  void Update(absl::Time now);

  // Returns the pace of a member as of the last Update; nothing if it is not
  // known.
  std::optional<Pace> PaceOf(PeerId member) const;
  // Sum of Pace::late over the steps since the member joined.
  absl::Duration LateTotal(PeerId member) const;

 private:
  struct Record {
    uint64_t process = 0;  // Incarnation of the member's process.
    std::deque<std::pair<absl::Time, Activity>> activities;
    std::optional<Pace> pace;
    absl::Duration late_total;  // See LateTotal.
  };

  // Sets the fields of Pace that depend on the member alone.
  static std::optional<Pace> OwnPace(const Record& record);
  // Median of a field over the members of a role that have a pace; the lower
  // one of two.
  template <typename Field>
  auto Median(Role role, Field field) const;
  // Returns the members with slow links, each with the share of the time by
  // which its links are busier than normal ones.
  std::map<PeerId, double> FindSlowLinks() const;
  // Sets `late` and `cause` of each member. `step`: time of a step, not 0.
  void FindLate(absl::Duration step);

  std::map<PeerId, Record> members_;
  absl::Time updated_at_ = absl::InfinitePast();  // Time of the last Update.
};

}  // namespace nereus
