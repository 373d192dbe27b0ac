#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/copy_check.h"
#include "server/coordinator/epochs.h"
#include "server/coordinator/gatherings.h"
#include "server/coordinator/join_brake.h"
#include "server/coordinator/join_rules.h"
#include "server/coordinator/lobby_gatherings.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/outsiders.h"
#include "server/coordinator/replica_check.h"
#include "server/coordinator/tally.h"

namespace nereus {

// Leads a job: collects its workers and servers, starts the job when all have
// joined, changes its epoch when members join, leave or die (Epochs), and
// decides when the job is over.
//
//   kWaiting --all have joined--> kRunning --all workers left--> kFinished
//                                    |------all left early-----> kStopped
//                                    |------values are lost----> kLost
//                                    '------cannot go on-------> kFailed
//
// A job for which there is no plan fails when all have joined. When all workers
// have left, a job with a folder for checkpoints first waits for its last
// checkpoint (AwaitedRound), and then is finished. MemberRecord has the state
// diagram of a member, and Epochs that of an epoch.
//
// The job has the model of the first worker that joins. The coordinator refuses
// a worker with another model, and names the difference.
//
// Pure: no threads, clocks or RPC. The driver calls the coordinator from one
// thread at a time, tells it the time (`now`), and carries out the actions in
// `out` in order. The driver must have saved the state of a SaveState before it
// sends the messages after that action (SaveFirst). Otherwise a restarted
// coordinator could find the state of an epoch older than the one that its
// members are in, and would have to end the job.
class Coordinator {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit Coordinator(CoordinatorOptions options);

  // Goes on with the job in `state`, which was saved. Begins a new job if
  // `state` has none. A member of the saved job that does not resume within a
  // lease counts as dead.
  Coordinator(CoordinatorOptions options, CoordinatorState state,
              absl::Time now);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Handles a message of a member, or of a process that asks to become one.
  void OnMessage(SessionId session, const MemberMessage& message,
                 absl::Time now, CoordinatorOutbox& out);

  // Handles the end of a session, whichever side ended it.
  void OnSessionEnd(SessionId session, absl::Time now, CoordinatorOutbox& out);

  // Drops members that count as dead by now, and tells members that wait what
  // they wait for. The driver calls this a few times a second.
  void OnTick(absl::Time now, CoordinatorOutbox& out);

  // Requests a checkpoint of the next round that no worker has begun. The
  // worker that asks, if one does, has begun `begun_step`. Errors:
  // kFailedPrecondition, the job does not run, all its workers have left, or
  // the job has no folder for checkpoints.
  absl::Status RequestCheckpoint(absl::Time now, CoordinatorOutbox& out,
                                 int64_t begun_step = kInitialRound);

  // Notes that the driver has carried out CompleteCheckpoint for `round`, and
  // whether it could.
  void OnCheckpoint(int64_t round, const absl::Status& written, absl::Time now,
                    CoordinatorOutbox& out);

  // Notes the outcome of SetCheckpointAside for `round`. After an error, the
  // coordinator asks for it again.
  void OnSetAside(int64_t round,
                  const absl::StatusOr<CheckpointSetAside>& outcome,
                  absl::Time now, CoordinatorOutbox& out);

  // Notes that the driver holds back messages to members until a state is saved
  // (SaveFirst), or has just sent them. One of these may ask members for
  // reports. Therefore the time in which members must report starts now at the
  // earliest. The driver calls this before each OnTick while it holds messages
  // back, and when it sends them.
  void OnHeldBack(absl::Time now) { roster_.AskAgain(now); }

  // Ends the job as failed or, by `state`, as lost, unless it is over already.
  // Members with a session hear the reason now, other members when they resume.
  void Fail(const std::string& reason, CoordinatorOutbox& out,
            JobState state = JobState::kFailed);

  JobState state() const { return state_; }
  // Reason why the job has failed or was stopped; "" otherwise.
  const std::string& reason() const { return reason_; }
  bool over() const { return IsOver(state_); }
  // Job as of the current epoch; null before the job runs.
  const JobPtr& job() const { return epochs_.job(); }
  const Epochs& epochs() const { return epochs_; }
  const MemberList& roster() const { return roster_; }
  const CheckpointLedger& checkpoints() const { return checkpoints_; }

  // Asks the member `name` to leave, for an operator: the name of a worker, or
  // "shard 2". Errors: kNotFound, the job has no such member;
  // kFailedPrecondition, the job does not run, or the member cannot leave;
  // kUnavailable, it has no session now.
  absl::Status Drain(absl::string_view name, CoordinatorOutbox& out) const;
  // True if `name`, as in Drain, names a member that has not left.
  bool HasMember(absl::string_view name) const;

  // True if the job is finished or was stopped and has a folder for
  // checkpoints, but no checkpoint of its last step.
  bool lacks_last_checkpoint() const { return lacks_last_checkpoint_; }
  // True if no process needs this coordinator any more, so that its process may
  // end: no member has a session, each member has heard that the job is over or
  // has died, and no silent process may still ask (Outsiders). Before the job
  // is over, true only if there are no members.
  bool everyone_knows() const {
    return !outsiders_.has_silent() && brake_.waiting().empty() &&
           roster_.AllToldOver();
  }

  // Returns the status of the job for operators.
  JobStatus Status(absl::Time now) const;

 private:
  // Returns the facts that CheckJoin and its like need.
  JobToJoin Facts() const;
  // Handles a message of a session that is in the lobby, or that begins with
  // this message and asks to be.
  void OnLobby(SessionId session, const MemberMessage& message, absl::Time now,
               CoordinatorOutbox& out);
  void OnJoin(SessionId session, const JoinRequest& request, absl::Time now,
              CoordinatorOutbox& out);
  // Returns an error if the process may not join now.
  absl::Status CheckJoin(const JoinRequest& request) const;
  // Decides each claim (Outsiders::Claim). If the place is free by now, the
  // process joins. If the member in the place has sent a message more than a
  // heartbeat interval after the claim, the coordinator refuses the process.
  // Otherwise the claim keeps waiting.
  void SettleClaims(absl::Time now, CoordinatorOutbox& out);
  // Returns the time for which a process must wait before it may join
  // (JoinBrake::WaitOf).
  absl::Duration WaitOf(const JoinRequest& request, absl::Time now) const;
  // Lets the processes join that the brake has held up, unless they must go on
  // waiting. If the job is over, they are told so.
  void AdmitWaiting(absl::Time now, CoordinatorOutbox& out);
  // Tells waiting processes from time to time why they wait.
  void TellHeld(absl::Time now, CoordinatorOutbox& out);
  void OnResume(SessionId session, const Resume& resume, absl::Time now,
                CoordinatorOutbox& out);
  // Sets the session over which a member sends its messages from now on, and
  // tells the member what it may have missed. `epoch`: the last epoch that the
  // member knows.
  void Attach(MemberRecord& member, SessionId session, uint64_t epoch,
              absl::Time now, CoordinatorOutbox& out);

  // Handle messages of members. If one of them returns an error, the caller
  // drops the sender for this reason (Drop).
  absl::Status OnMemberMessage(MemberRecord& member,
                               const MemberMessage& message, absl::Time now,
                               CoordinatorOutbox& out);
  absl::Status OnLeave(MemberRecord& member, const Leave& leave, absl::Time now,
                       CoordinatorOutbox& out);
  absl::Status OnChecksums(const MemberRecord& member,
                           const ReplicaChecksums& checksums, absl::Time now,
                           CoordinatorOutbox& out);
  absl::Status OnFactorRows(const MemberRecord& member, const FactorRows& rows,
                            CoordinatorOutbox& out);
  void OnPart(const MemberRecord& member, const CheckpointPart& part,
              absl::Time now, CoordinatorOutbox& out);

  void OnDamaged(const MemberRecord& member, const CheckpointDamaged& damaged);

  // Ends the job as failed if the replicas differ. Returns true if it did.
  bool FailIf(const std::optional<Announce>& reason, CoordinatorOutbox& out);

  // Does all that an event has made possible: decides claims, starts the job,
  // releases leavers, changes the epoch, answers gatherings, finishes the job.
  void Advance(absl::Time now, CoordinatorOutbox& out);
  // Admits every process in the roster to the new epoch, saves the state, and
  // tells the members of the epoch.
  void BeginEpoch(absl::Time now, CoordinatorOutbox& out);
  // Returns a server that has asked to leave and that the job can spare: other
  // servers have the values of all shards. Null if there is none, or if all
  // workers have left, because their last checkpoint needs every server.
  MemberRecord* FindSpareServer();

  // The last checkpoint: that of the last round of the job, all of whose
  // workers have left.
  //
  //   all workers have left --AskToSave--> members save --complete--> over
  //   members save --too late, or failed--> the job is over
  //   members save --a server is lost: backups take over--> members save
  //   members save --a shard is lost--> the job goes back to its last
  //     checkpoint once another server has come; without one it is over
  //
  // The wait is bounded: a lease if a part may be lost, 30 minutes otherwise.
  // Without the wait, a job would end with the parameters of its last steps
  // unsaved.

  // Returns the last step that all workers of the epoch have done. With partial
  // rounds: the last step that one of them has done.
  int64_t LastStep() const;
  // True if the job has a folder for checkpoints, and no checkpoint has the
  // last step.
  bool LacksLastStep() const;
  // Returns the round of the last checkpoint while the job has to wait for it.
  // Empty if the checkpoint is made or can no longer be made, or if the job has
  // no folder for checkpoints.
  std::optional<int64_t> AwaitedRound() const;
  // Asks all members to save `round`, unless they have been asked. Returns
  // false once the wait for the checkpoint has taken too long.
  bool AskToSave(int64_t round, absl::Time now, CoordinatorOutbox& out);
  // Returns the rank of the worker that sends the worker-owned layers to the
  // shards; empty if all workers are gone.
  std::optional<int32_t> LastSender(int64_t round) const;
  // True if a part of the last checkpoint may have been lost on its way, so
  // that it never comes.
  bool MayBeLost(int64_t round) const;

  // Finishes the job, unless it still has to wait for its last checkpoint.
  // REQUIRES: all workers have left.
  void FinishIfSaved(absl::Time now, CoordinatorOutbox& out);

  // True if the running job makes no steps, whatever newcomers do.
  bool Stands() const;
  // If the coordinator's process stood still, moves all deadlines of members,
  // of outsiders and of the last checkpoint later by the length of that pause.
  void NoticePause(absl::Time now);
  // Drops the members that count as dead (MemberRecord::WhyDead).
  void DropOverdueMembers(absl::Time now, CoordinatorOutbox& out);
  // Counts a member as dead for the reason `why`, tells its process, and
  // removes the member from the roster. A leaver stays in the roster if all
  // workers have left.
  void Drop(PeerId id, const std::string& why, absl::Time now,
            CoordinatorOutbox& out);
  // Removes a member from the roster. If the job cannot go on without it,
  // returns why; otherwise returns "".
  std::string Remove(MemberRecord& member, absl::Time now,
                     CoordinatorOutbox& out);
  // Return what the job waits for. DescribeMissing adds the members that are
  // here, and returns "" if the job does not wait.
  std::vector<std::string> Missing() const;
  std::string DescribeMissing() const;
  // Tells each member that waits what the job waits for, unless it has been
  // told within CoordinatorOptions::waiting_notice_interval.
  void TellWaiting(absl::Time now, CoordinatorOutbox& out);
  // Returns the line for the log at the end of a job that is finished or was
  // stopped.
  std::string DescribeEnd() const;

  // Asks the driver to save the state.
  void Save(CoordinatorOutbox& out) const;
  // Logs and counts news of a checkpoint, and saves the state if news.saves.
  void Note(int64_t round, CheckpointNews news, absl::Time now,
            CoordinatorOutbox& out);

  const CoordinatorOptions options_;
  JobState state_ = JobState::kWaiting;
  std::string reason_;            // Reason why the job failed.
  MemberList roster_;             // Processes that have joined.
  Outsiders outsiders_;           // Processes that are not members.
  JoinBrake brake_;               // Processes that must wait before they join.
  CheckpointLedger checkpoints_;  // Checkpoints made and requested.
  Epochs epochs_;                 // Current epoch, and the next one.
  ReplicaCheck replicas_;         // Comparison of the workers' replicas.
  CopyCheck copies_;              // Comparison of the servers' copies.
  Gatherings gatherings_;         // Values that the workers' callers gather.
  LobbyGatherings lobby_;         // Values of processes before they join.
  Tally tally_;                   // Counts and times, for the status.
  // Time at which to look for an older checkpoint again, after an error.
  absl::Time looks_again_at_ = absl::InfiniteFuture();
  uint64_t asked_to_save_in_ = 0;  // Epoch of the last AskToSave.
  // Time at which the wait for the last checkpoint ends, in that epoch.
  absl::Time gives_up_at_ = absl::InfiniteFuture();
  bool lacks_last_checkpoint_;  // See lacks_last_checkpoint().
};

// Returns how many layers travel by each scheme: "3 by server, 1 by ring".
std::string DescribePlan(const Job& job);

}  // namespace nereus
