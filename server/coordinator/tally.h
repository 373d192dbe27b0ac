#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/route.h"
#include "common/protocol/job.h"
#include "common/protocol/job_status.h"
#include "common/protocol/peer.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/paces.h"
#include "server/coordinator/step_rate.h"

namespace nereus {

// Counts and times what happens in the job, for operators (JobStatus). The
// coordinator decides nothing by it, and a restarted coordinator counts anew.
class Tally {
 public:
  // Handle events of the coordinator.
  void OnHeartbeat(const MemberRecord& member, const Heartbeat& heartbeat,
                   absl::Time now) {
    paces_.Note(member.id, member.request.incarnation, heartbeat.activity, now);
  }
  void OnEpoch(const Job& job);
  // A member counts as dead.
  void OnDead(PeerId member) {
    ++(member.role == Role::kWorker ? counts_.workers_lost
                                    : counts_.servers_lost);
  }
  // A member is gone from the roster, for whatever reason.
  void OnGone(PeerId member) { paces_.Forget(member); }
  // A checkpoint is complete, or has failed.
  void OnCheckpoint(bool is_complete, absl::Time now);
  // `begun_step`: last step that any worker has begun. Called a few times a
  // second while the job runs.
  void OnTick(int64_t begun_step, absl::Time now);

  // Sets the fields of `status` that are counted or timed here. The members of
  // `status` must be there already.
  void Fill(JobStatus& status, absl::Time now) const;

 private:
  StepRate rate_;
  Paces paces_;
  absl::Time paces_at_ = absl::InfinitePast();  // Last Paces::Update.
  JobCounts counts_;
  std::vector<Route> routes_;    // Routes of the last epoch.
  std::optional<int64_t> step_;  // Last step that any worker has begun.
  absl::Time step_at_ = absl::InfinitePast();        // Time when it grew.
  absl::Time checkpoint_at_ = absl::InfinitePast();  // Last complete one.
};

}  // namespace nereus
