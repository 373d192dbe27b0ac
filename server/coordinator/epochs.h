#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job.h"
#include "server/coordinator/broken_links.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/epoch_change.h"
#include "server/coordinator/factor_reports.h"
#include "server/coordinator/fusion_tuning.h"
#include "server/coordinator/host_table.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/recovery_log.h"
#include "server/coordinator/replanner.h"

namespace nereus {

// Returns the job with which the first epoch begins, except for its routes. Its
// model is that of the first worker in the roster: CheckJoin has compared the
// models of all others with it. The job begins at its first step, or behind
// CoordinatorOptions::start_checkpoint. REQUIRES: all workers and servers have
// joined, and their hosts have numbers.
Job MakeFirstJob(const CoordinatorOptions& options, const MemberList& roster);

// Reasons for another epoch that Epochs keeps until the next epoch begins.
// Epochs::NeedsChange finds all other reasons in the state of the job: a
// process joins, the other workers go on without a leaver, two live members
// have lost their connection, a backup has become current, a requested
// checkpoint needs a round, or all members are ready to switch.
enum class ChangeReason {
  kMemberLost,  // A member counts as dead.
  kShardLost,   // No live server has the values of a shard.
  // The coordinator was restarted. Members may have missed messages that it
  // sent before.
  kCoordinatorRestarted,
  // Another plan is worth a change (Replanner). Epochs removes this reason if
  // later measurements show no such plan.
  kBetterPlan,
  // Workers have said the rows of layers, or that layers have no factors any
  // more (FactorReports): the plan is made anew.
  kFactors,
};

// Epochs of the job: the members that take part, and the change from one epoch
// to the next.
//
//   steady   --NeedsChange: PrepareEpoch to every member--> changing
//   changing --all have reported, enough are here: EpochStart--> steady, in the
//              next epoch
//   changing --values are lost, and there is no checkpoint--> the job fails
//
// A member that dies during a change need not report. A process that joins
// during a change is part of the next epoch.
//
// If values are lost, the next epoch goes back to the newest checkpoint. If the
// manifest of a checkpoint is being written at that time, the change first
// waits until it is written, for a lease at most if there is an older one.
class Epochs {
 public:
  // Pointers are borrowed and must outlive this. Goes on with the epoch `saved`
  // if it has a job. REQUIRES: in this case `roster`, `checkpoints` and `hosts`
  // have the state that was saved with it.
  Epochs(const CoordinatorOptions* options, MemberList* roster,
         CheckpointLedger* checkpoints, EpochInForce saved,
         HostTable::State hosts, FactorReports::Lost lost_factors);
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;

  // Job as of the epoch; null before the first epoch.
  const JobPtr& job() const { return in_force_.job; }
  const EpochInForce& in_force() const { return in_force_; }
  // Hosts of the members of this epoch and of earlier ones.
  const HostTable& hosts() const { return hosts_; }
  // Reports of the workers about the factors of layers.
  const FactorReports& factors() const { return factors_; }
  // Number of the next epoch during a change; empty in a steady epoch.
  std::optional<uint64_t> target() const { return target_; }
  // True while this reason holds.
  bool Has(ChangeReason reason) const { return reasons_.contains(reason); }
  // Links whose connection has ended since the epoch began.
  const BrokenLinks& links() const { return links_; }
  // Largest step that a member says it has begun, or the epoch's first step if
  // that is larger.
  int64_t BegunStep() const {
    return roster_.BegunStep(job()->history.first_step);
  }

  // Numbers hosts and workers, and makes the plan and the first epoch's job.
  // Errors: kInvalidArgument, there is no plan or no valid job.
  absl::Status StartJob(CoordinatorOutbox& out);

  // Starts a change if there is a reason for another epoch. Ends the change
  // once all members have reported and enough members are present (IsComplete).
  // Returns true if an epoch begins. The caller must then call AdmitAll, save
  // the state, and call TellAll. Errors: kAborted, the job cannot go on.
  absl::StatusOr<bool> Advance(absl::Time now, CoordinatorOutbox& out);
  // Admits every process in the roster to the epoch in force.
  void AdmitAll(absl::Time now);
  // Sends EpochStart to all members that have a session, and SetFusion to the
  // workers if FusionTuning has one for the epoch.
  void TellAll(CoordinatorOutbox& out);

  // Sends to the member's new session what it may have missed. `epoch`: the
  // last epoch that the member knows.
  void Greet(MemberRecord& member, uint64_t epoch, absl::Time now,
             CoordinatorOutbox& out) const;

  // Each of these handles one message of a member. REQUIRES, for OnMeasured,
  // OnFactorRows and OnLostPeer: the job runs, and the member is admitted.
  void OnHeartbeat(const MemberRecord& member, const Heartbeat& heartbeat);
  void OnReport(MemberRecord& member, const EpochReport& report) const;
  // OnMeasured returns true if the rule of turns has changed: the caller must
  // save the state.
  bool OnMeasured(const MemberRecord& member, const Measured& measured,
                  absl::Time now, CoordinatorOutbox& out);
  void OnFusionTimed(const MemberRecord& member, const FusionTimed& timed,
                     CoordinatorOutbox& out);
  // Returns true if a layer has lost its factors by this message: the caller
  // must save the state. REQUIRES: CheckFactorRows accepts the message.
  bool OnFactorRows(const MemberRecord& member, const FactorRows& rows,
                    CoordinatorOutbox& out);
  // Returns the member that the caller must drop, if `member` and lost.peer
  // cannot keep a connection; otherwise nothing.
  std::optional<PeerId> OnLostPeer(const MemberRecord& member,
                                   const LostPeer& lost, absl::Time now,
                                   CoordinatorOutbox& out);

  // Notes that an admitted member counts as dead.
  void NoteLost(const MemberRecord& member) {
    reasons_.insert(ChangeReason::kMemberLost);
    recovery_.NoteLost(member);
  }
  // True if, for each shard, a live server other than `without` has every
  // result that a worker has received.
  bool HasEveryShard(std::optional<PeerId> without = std::nullopt) const;
  // Notes that a server has no values, because the checkpoint from which the
  // epoch goes on is damaged.
  void NoteDamaged() { reasons_.insert(ChangeReason::kShardLost); }
  // Moves the end of the wait for a manifest later by a pause in which the
  // coordinator stood still.
  void Delay(absl::Duration pause) { awaits_manifest_until_ += pause; }
  // Forgets which connections a member has lost that is gone from the roster.
  void ForgetLinks(PeerId member) { links_.Forget(member); }
  // Notes that a server is gone from the roster. Returns true if the job can go
  // on: live servers have every shard (HasEveryShard), or there is a checkpoint
  // (one that lacks only its manifest counts). Also returns true if all workers
  // have left: the job then is finished without its last checkpoint.
  bool OnServerLost(PeerId server, CoordinatorOutbox& out);

 private:
  // Makes two hosts of one, from the next epoch on, because two workers of the
  // host were never connected: `member`, which reports it, and `peer`. Returns
  // false, and does nothing, if they are not workers of one host, if `peer` may
  // be dead, or if the table of hosts can split no more processes.
  bool SplitMates(const MemberRecord& member, const MemberRecord& peer,
                  absl::string_view reason, CoordinatorOutbox& out);
  // True if there is a reason for another epoch.
  bool NeedsChange() const;
  // True if a process waits to join, or if a worker has left and the remaining
  // workers need an epoch without it.
  bool MembersWantChange() const;
  // Asks all members for their reports.
  void StartChange(absl::Time now, CoordinatorOutbox& out);
  // True if a job that goes back must wait for its checkpoint: until the driver
  // has written the manifest of a newer one, or has found an older one in place
  // of a damaged one. Gives up manifests that take longer than a lease.
  bool AwaitsCheckpoint(absl::Time now, CoordinatorOutbox& out);
  // Makes the next epoch from the reports. Returns false if the change must
  // wait (AwaitsCheckpoint).
  absl::StatusOr<bool> FinishChange(absl::Time now, CoordinatorOutbox& out);
  // Plan that the job changes to, if members are ready to switch.
  struct AnotherPlan {
    Plan plan;
    std::vector<LayerSpec> layers;  // The model, with the rows of the plan.
    std::string why;                // Reason for the change, for the log.
  };
  // Returns the plan that the next epoch should have; nothing: the present one.
  std::optional<AnotherPlan> FindPlan();
  // Makes `next` the epoch in force. `restarts`: `next` goes back to a
  // checkpoint. `another`: the plan that FindPlan has found; `next` may have
  // it.
  void Enter(NextEpoch next, bool restarts,
             const std::optional<AnotherPlan>& another, absl::Time now,
             CoordinatorOutbox& out);
  // Returns the reports, with what the coordinator knows of the members, as the
  // input for the next epoch.
  EpochChange GatherReports() const;
  // True if enough members are present for the job to go on.
  bool IsComplete() const;

  // True if a change of plan adds no moment in which the loss of one server
  // ends the job. False for a job with backups and without checkpoints, if
  // workers exchange a layer without the servers: workers hand over the values
  // of this layer to the primary alone, and its backup has them only when the
  // primary has sent them on. The first switch of a job that learns rows does
  // not ask this (WantsPlanForFactors).
  bool IsSafeToChangePlan() const;
  // True if there is a better plan, and the job may change to it.
  bool WantsAnotherPlan();
  // True if what workers say about factors can change the plan: the rules allow
  // factors, and the job may have several workers.
  bool MayLearn(const Job& job) const;
  // True if layers may go by factors once the workers have said their rows. The
  // first epoch of such a job gets a switch round, its first step.
  bool LearnsRows(const Job& job) const;
  // Returns the model of the job, with all that the workers have said.
  std::vector<LayerSpec> LearntLayers() const;
  // True if the workers have said something about factors that the job does not
  // have yet, and the job may change its plan for it.
  bool WantsPlanForFactors() const;
  // Notes the measured time of a turn in the rule of turns. Keys go on from the
  // next step: only later ones grow by the new time. Returns true if the rule
  // has changed.
  bool UpdateTurns(CoordinatorOutbox& out);
  // Starts the trials of thresholds of fusion again, if a threshold other than
  // the chosen one should be faster by the newest measurements of links.
  void TuneFusionAnew(CoordinatorOutbox& out);

  // True if the coordinator knows that the backup of `shard` can take over.
  bool IsBackupCurrent(int shard) const;
  // True if a backup has become current in this epoch.
  bool HasNewBackup() const;
  const CoordinatorOptions& options_;
  MemberList& roster_;
  CheckpointLedger& checkpoints_;
  HostTable hosts_;                 // Gives the members' hosts their numbers.
  EpochInForce in_force_;           // Current epoch.
  std::set<ChangeReason> reasons_;  // Reasons that hold now.
  std::optional<uint64_t> target_;  // Number of the next epoch; see target().
  uint64_t last_target_ = 0;        // Largest value of target_ so far.
  // End of the wait for manifests in this change; see AwaitsCheckpoint.
  absl::Time awaits_manifest_until_ = absl::InfiniteFuture();
  BrokenLinks links_;
  RecoveryLog recovery_;
  Replanner replanner_;    // Search for better plans.
  FusionTuning fusion_;    // Trials of fusion.
  FactorReports factors_;  // Reports of workers about factors.
  // Shards with a backup that has become current in this epoch. Their primaries
  // have said so, and may be dead by now.
  std::set<int32_t> current_backups_;
};

// True if the server of a shard is gone, and no epoch without it has begun.
bool LacksServer(const Job& job, const MemberList& roster);

}  // namespace nereus
