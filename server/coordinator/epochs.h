#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/coordinator/broken_links.h"
#include "server/coordinator/checkpoint_requests.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/epoch_change.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/plan_keeper.h"
#include "server/coordinator/recovery_log.h"

namespace nereus {

// What has happened in an epoch so that another one must follow. Other reasons
// are seen in the members: one comes, one leaves, two have lost each other.
enum class ChangeReason {
  kMemberLost,
  kShardLost,  // With the values that it held.
  kCoordinatorRestarted,
  kBetterPlan,
};

// Epochs of the job: who takes part, and how one epoch follows another.
//
//   steady --a reason for another epoch--> changing: all members are asked for
//   a report --all have reported, and nobody is missing--> steady, one epoch on
class Epochs {
 public:
  // All are borrowed and must outlive this.
  Epochs(const CoordinatorOptions* options, MemberList* roster,
         CheckpointRequests* checkpoints);
  // Goes on with an epoch that was saved; roster and checkpoints have their
  // saved state.
  Epochs(const CoordinatorOptions* options, MemberList* roster,
         CheckpointRequests* checkpoints, EpochInForce saved);
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;

  // The job as of the epoch; null before the first one.
  const JobPtr& job() const { return in_force_.job; }
  const EpochInForce& in_force() const { return in_force_; }
  // Number of the next epoch, while all members report for it.
  std::optional<uint64_t> target() const { return target_; }
  bool Has(ChangeReason reason) const { return reasons_.contains(reason); }
  const BrokenLinks& links() const { return links_; }
  // Last step that a member says it has begun.
  int64_t BegunStep() const { return roster_.BegunStep(job()->first_step); }

  // Makes the plan and the first epoch's job. Errors: kInvalidArgument, there
  // is no plan.
  absl::Status StartJob();

  // Starts another epoch if there is a reason, and ends the change to it if all
  // have reported. Returns true if an epoch begins; then the caller admits all
  // members, saves the state, and tells them. Errors: the job cannot go on.
  absl::StatusOr<bool> Advance(absl::Time now, CoordinatorOutbox& out);
  void AdmitAll(absl::Time now);
  void TellAll(CoordinatorOutbox& out);

  // Tells a member that speaks in a new session what it may have missed.
  // `epoch`: the last one that it has heard of.
  void Greet(MemberRecord& member, uint64_t epoch, absl::Time now,
             CoordinatorOutbox& out) const;

  // Messages of an admitted member while the job runs.
  void OnHeartbeat(const MemberRecord& member, const Heartbeat& heartbeat);
  void OnReport(MemberRecord& member, const EpochReport& report) const;
  void OnMeasured(const MemberRecord& member, const Measured& measured,
                  absl::Time now, CoordinatorOutbox& out);
  void OnFusionTimed(const MemberRecord& member, const FusionTimed& timed,
                     CoordinatorOutbox& out);
  // Returns the member that has to go, if two cannot keep a connection.
  std::optional<PeerId> OnLostPeer(const MemberRecord& member,
                                   const LostPeer& lost, absl::Time now,
                                   CoordinatorOutbox& out);

  // Notes that an admitted member counts as dead.
  void NoteLost(const MemberRecord& member) {
    reasons_.insert(ChangeReason::kMemberLost);
    recovery_.NoteLost(member);
  }
  void ForgetLinks(PeerId member) { links_.Forget(member); }
  // Notes that a shard is gone from the roster. Returns false if nothing is
  // left to go on with.
  bool OnShardLost(PeerId shard, CoordinatorOutbox& out);

 private:
  bool NeedsChange() const;
  bool WorkersWantChange() const;
  void StartChange(absl::Time now, CoordinatorOutbox& out);
  absl::StatusOr<bool> FinishChange(absl::Time now, CoordinatorOutbox& out);
  // Enters the epoch that was made. `better`: the plan that it may have.
  void Enter(NextEpoch next, bool restarts,
             const std::optional<Replanner::BetterPlan>& better, absl::Time now,
             CoordinatorOutbox& out);
  EpochChange GatherReports() const;
  // True if members are enough for the job to go on.
  bool IsComplete() const;

  // True if a server that dies now, before backups have been sent what workers
  // hand over, does not take the job with it.
  bool IsSafeToChangePlan() const;
  // True if there is a better plan, and the job may change to it.
  bool WantsAnotherPlan();

  // True if the backup of `shard` can take over, as far as is known.
  bool IsBackupCurrent(int shard) const;
  bool HasNewBackup() const;
  // True if a live server has all that workers have seen of each shard.
  bool HasEveryShard() const;

  const CoordinatorOptions& options_;
  MemberList& roster_;
  CheckpointRequests& checkpoints_;
  EpochInForce in_force_;
  std::set<ChangeReason> reasons_;  // Since the epoch began.
  std::optional<uint64_t> target_;
  uint64_t last_target_ = 0;
  BrokenLinks links_;
  RecoveryLog recovery_;
  PlanKeeper plan_;
  // Shards whose primaries, which may be dead by now, have said in this epoch
  // that the backup has all.
  std::set<int32_t> current_backups_;
};

}  // namespace nereus
