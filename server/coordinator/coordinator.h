#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/epochs.h"
#include "server/coordinator/gatherings.h"
#include "server/coordinator/job_description.h"
#include "server/coordinator/last_checkpoint.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/outsiders.h"
#include "server/coordinator/replica_check.h"
#include "server/coordinator/step_rate.h"

namespace nereus {

// Leads a job: collects its workers and servers, starts the job when all are
// there, leads it from epoch to epoch as members come, leave and die (Epochs),
// and decides when the job is over.
//
//   kWaiting --all have joined--> kRunning --all workers left--> kFinished
//                                    '------cannot go on-------> kFailed
//
// A job for which there is no plan fails when all have joined. When all workers
// have left, a job with a folder for checkpoints first waits for its last
// checkpoint (LastCheckpoint), and then is finished. The life of a member is
// drawn at MemberRecord, the change of epochs at Epochs.
//
// The model of the first worker is the job's. A worker with another model is
// refused, with the difference.
//
// Pure: no threads, clocks or RPC. The driver calls it from one thread at a
// time, passes the time, and carries out the actions in order. The driver must
// save a state before it sends the messages that follow (SaveFirst). Otherwise
// a coordinator that is started again could find the state of an older epoch
// than its members are in. It would then have to end the job.
class Coordinator {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit Coordinator(CoordinatorOptions options);

  // Goes on with a state that was saved, if it has a job. A member that does
  // not come back within a lease counts as dead.
  Coordinator(CoordinatorOptions options, CoordinatorState state,
              absl::Time now);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Notes a message of a member, or of a process that asks to be one.
  void OnMessage(SessionId session, const MemberMessage& message,
                 absl::Time now, CoordinatorOutbox& out);

  // Notes that the session is over, whichever side ended it.
  void OnSessionEnd(SessionId session, absl::Time now, CoordinatorOutbox& out);

  // Sends notices to members that wait, and ends leases. Call it a few times a
  // second.
  void OnTick(absl::Time now, CoordinatorOutbox& out);

  // Requests a checkpoint of the next round that no worker has begun. Errors:
  // kFailedPrecondition, the job does not run, all its workers have left, or it
  // has no folder for checkpoints.
  absl::Status RequestCheckpoint(absl::Time now, CoordinatorOutbox& out);

  // Notes the outcome of CompleteCheckpoint.
  void OnCheckpoint(int64_t round, const absl::Status& written, absl::Time now,
                    CoordinatorOutbox& out);

  // Notes that states can be saved again, and that all actions which were held
  // back are carried out. One of them may be a request for reports, so the
  // members' time to report starts now.
  void OnSavedAgain(absl::Time now) { roster_.AskAgain(now); }

  // Ends the job as failed, unless it is over already. Members with a session
  // hear the reason now, other members when they resume.
  void Fail(const std::string& reason, CoordinatorOutbox& out);

  JobState state() const { return state_; }
  // Reason why the job has failed; "" otherwise.
  const std::string& reason() const { return reason_; }
  bool over() const { return IsOver(state_); }
  // Job as of the current epoch; null before the job runs.
  const JobPtr& job() const { return epochs_.job(); }
  const Epochs& epochs() const { return epochs_; }
  const CheckpointLedger& checkpoints() const { return checkpoints_; }

  // True if the job is finished and has a folder for checkpoints, but no
  // checkpoint of its last step.
  bool lacks_last_checkpoint() const { return lacks_last_checkpoint_; }
  // True if every member has heard that the job is over or is gone, no member
  // has a session, and no silent process may still ask (Outsiders). Then the
  // coordinator may end. REQUIRES: over().
  bool everyone_knows() const {
    return !outsiders_.has_silent() && roster_.AllToldOver();
  }

  // Returns the status of the job for `nereusctl status`.
  JobStatus Status(absl::Time now) const;

 private:
  void OnJoin(SessionId session, const JoinRequest& request, absl::Time now,
              CoordinatorOutbox& out);
  // Returns an error if the process may not join now.
  absl::Status CheckJoin(const JoinRequest& request) const;
  // Decides the claims to places that other members have. A process joins if
  // the place is free by now. The process is refused if the member in the place
  // has sent a message later than a heartbeat interval after the claim. All
  // other claims wait on.
  void SettleClaims(absl::Time now, CoordinatorOutbox& out);
  void OnResume(SessionId session, const Resume& resume, absl::Time now,
                CoordinatorOutbox& out);
  // Sets the session over which a member sends its messages from now on, and
  // tells the member what it may have missed. `epoch`: the last epoch that the
  // member knows.
  void Attach(MemberRecord& member, SessionId session, uint64_t epoch,
              absl::Time now, CoordinatorOutbox& out);

  // Handle messages of members. An error is the reason why the coordinator
  // counts the sender as dead.
  absl::Status OnMemberMessage(MemberRecord& member,
                               const MemberMessage& message, absl::Time now,
                               CoordinatorOutbox& out);
  void OnPart(const MemberRecord& member, const CheckpointPart& part,
              CoordinatorOutbox& out);
  absl::Status OnChecksums(const MemberRecord& member,
                           const ReplicaChecksums& checksums,
                           CoordinatorOutbox& out);
  absl::Status OnLeave(MemberRecord& member, const Leave& leave,
                       CoordinatorOutbox& out);

  // Does all that has become possible by an event: decides claims, starts the
  // job, releases leavers, changes the epoch, finishes the job.
  void Advance(absl::Time now, CoordinatorOutbox& out);
  // Admits every process in the roster to the new epoch, saves the epoch, and
  // tells the members.
  void BeginEpoch(absl::Time now, CoordinatorOutbox& out);
  // Finishes the job, unless it still has to wait for its last checkpoint.
  // REQUIRES: all workers have left.
  void FinishIfSaved(absl::Time now, CoordinatorOutbox& out);

  // If this process has stood still, moves all deadlines of members, of
  // outsiders and of the last checkpoint by that time.
  void NoticePause(absl::Time now);
  // Drops the members that count as dead (MemberRecord::WhyDead).
  void DropOverdueMembers(absl::Time now, CoordinatorOutbox& out);
  // Counts a member as dead, tells its process, and removes it from the roster.
  // A leaver stays in the roster if all workers have left.
  void Drop(PeerId id, const std::string& why, CoordinatorOutbox& out);
  // Asks the driver to save the state.
  void Save(CoordinatorOutbox& out) const;
  // Logs news of a checkpoint, and saves the state if the news say so.
  void Note(CheckpointNews news, CoordinatorOutbox& out) const;

  const CoordinatorOptions options_;
  JobState state_ = JobState::kWaiting;
  std::string reason_;            // Reason why the job failed.
  MemberList roster_;             // Processes that have joined.
  Outsiders outsiders_;           // Processes that are no members.
  CheckpointLedger checkpoints_;  // Checkpoints made and requested.
  Epochs epochs_;                 // Current epoch, and the next one.
  LastCheckpoint last_;           // Checkpoint at the end of the job.
  ReplicaCheck replicas_;         // Comparison of the workers' replicas.
  Gatherings gatherings_;         // Values that the workers' callers gather.
  StepRate rate_;                 // Steps per second, for the status.
  bool lacks_last_checkpoint_ = false;
};

}  // namespace nereus
