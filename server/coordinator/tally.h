#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/route.h"
#include "common/protocol/job.h"
#include "common/protocol/job_status.h"
#include "common/protocol/peer.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/paces.h"

namespace nereus {

// Steps per second that the job begins, over the last kRateWindow. Bounded: one
// entry for each call in that time.
class StepRate {
 public:
  // Notes the last step that any worker has begun. If that step is earlier than
  // before, because the job has gone back to a checkpoint, forgets all earlier
  // notes.
  void Note(absl::Time now, int64_t begun_step) {
    if (!begun_.empty() && begun_.back().second > begun_step) begun_.clear();
    begun_.emplace_back(now, begun_step);
    while (now - begun_.front().first > kRateWindow) begun_.pop_front();
  }

  // Returns the steps per second; 0 before there are two notes.
  double PerSecond() const {
    if (begun_.size() < 2) return 0;
    const auto& [from, first] = begun_.front();
    const auto& [to, last] = begun_.back();
    if (to == from) return 0;
    return static_cast<double>(last - first) / absl::ToDoubleSeconds(to - from);
  }

 private:
  std::deque<std::pair<absl::Time, int64_t>> begun_;  // Times and last steps.
};

// Counts and times what happens in the job, for operators (JobStatus). The
// coordinator decides nothing by it, and a restarted coordinator counts anew.
class Tally {
 public:
  // `job`: that of the epoch with which a restarted coordinator goes on; null:
  // there is none.
  explicit Tally(const Job* job);

  // Handle events of the coordinator.
  void OnHeartbeat(const MemberRecord& member, const Heartbeat& heartbeat,
                   absl::Time now) {
    paces_.Note(member.id, member.request.incarnation, heartbeat.activity, now);
  }
  void OnEpoch(const Job& job, absl::Time now);
  // A member counts as dead.
  void OnDead(const MemberRecord& member);
  // A member has measured. REQUIRES: `sync_times` is empty, or has a time for
  // each layer of the model.
  void OnMeasured(PeerId member, std::vector<absl::Duration> sync_times) {
    if (member.role == Role::kWorker) {
      sync_times_[member] = std::move(sync_times);
    }
  }
  // A member is gone from the roster, for whatever reason.
  void OnGone(PeerId member) {
    paces_.Forget(member);
    sync_times_.erase(member);
  }
  // A checkpoint is complete, or has failed.
  void OnCheckpoint(bool is_complete, absl::Time now);
  // `begun_step`: last step that any worker has begun. Called a few times a
  // second while the job runs.
  void OnTick(int64_t begun_step, absl::Time now);

  // Sets the fields of `status` that are counted or timed here. The members of
  // `status` must be there already.
  void Fill(JobStatus& status, absl::Time now) const;

 private:
  // Largest number of losses of a role that wait for a replacement.
  static constexpr size_t kLostMax = 1024;

  // Notes what later epochs are compared with.
  void Follow(const Job& job);
  // Returns the reason for the epoch `job` (JobCounts::epochs_by_reason).
  // `members`: those of the epoch.
  std::string ReasonFor(const Job& job, const std::set<PeerId>& members) const;
  // Returns the median over the workers of the time from a layer's push to its
  // result; nothing if it is not known.
  std::optional<absl::Duration> SyncTimeOf(size_t layer) const;

  StepRate rate_;
  Paces paces_;
  absl::Time paces_at_ = absl::InfinitePast();  // Last Paces::Update.
  JobCounts counts_;
  // Routes of the last epoch, its members without those that have since counted
  // as dead, and its checkpoint_round.
  std::vector<Route> routes_;
  std::set<PeerId> members_;
  int64_t checkpoint_round_ = kInitialRound;
  bool has_lost_ = false;  // True if a member counted as dead since then.
  // Times of the last messages of lost members that are not replaced, by role.
  // At most kLostMax of each role.
  std::map<Role, std::deque<absl::Time>> lost_;
  // Last times that each worker has reported (Measured::sync_times).
  std::map<PeerId, std::vector<absl::Duration>> sync_times_;
  std::optional<int64_t> step_;  // Last step that any worker has begun.
  absl::Time step_at_ = absl::InfinitePast();        // Time when it grew.
  absl::Time checkpoint_at_ = absl::InfinitePast();  // Last complete one.
};

}  // namespace nereus
