#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_requests.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/departures.h"
#include "server/coordinator/epochs.h"
#include "server/coordinator/job_description.h"
#include "server/coordinator/last_checkpoint.h"
#include "server/coordinator/member_list.h"
#include "server/coordinator/place_claims.h"
#include "server/coordinator/replica_check.h"
#include "server/coordinator/step_rate.h"

namespace nereus {

// Leads a job: collects its workers and shards, starts the job when all are
// there, leads it from epoch to epoch as workers come, leave and die (Epochs),
// and decides when the job is over.
//
//   gathering --all are there--> running --all workers left--> finished
//                                   '---cannot go on---> failed
//
// A job whose last checkpoint is being written is finished when that is
// complete.
//
// The first worker's model is the job's. A worker with another model is
// refused, with the difference.
//
// Pure: no threads, clocks or RPC. The driver passes the time.
class Coordinator {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit Coordinator(CoordinatorOptions options);

  // Goes on with a state that was saved. A member that does not come back
  // within a lease counts as dead. REQUIRES: state.epoch.job is not null.
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
  // kFailedPrecondition, the job does not run, or has no folder for it.
  absl::Status RequestCheckpoint(absl::Time now, CoordinatorOutbox& out);

  // Notes the outcome of CompleteCheckpoint.
  void OnCheckpoint(int64_t round, const absl::Status& written, absl::Time now,
                    CoordinatorOutbox& out);

  // Notes that all actions have been carried out which had to wait while no
  // state could be saved. Members have been asked for reports only since then.
  void OnSavedAgain(absl::Time now);

  // Ends the job with a reason, which all members are told.
  void Fail(const std::string& reason, CoordinatorOutbox& out);

  JobState state() const { return state_; }
  const std::string& reason() const { return reason_; }
  bool over() const { return IsOver(state_); }
  // Job as of the epoch; null before it runs.
  const JobPtr& job() const { return epochs_.job(); }
  const Epochs& epochs() const { return epochs_; }
  const CheckpointRequests& checkpoints() const { return checkpoints_; }

  // True if the job is finished, and its last step is not in the folder for
  // checkpoints.
  bool lacks_last_checkpoint() const { return lacks_last_checkpoint_; }
  // True if every member has heard that the job is over, and every process that
  // was silent for too long. Then the coordinator may go.
  bool everyone_knows() const {
    return !departures_.has_silent() && roster_.AllToldOver();
  }

  JobStatus Status(absl::Time now) const;

 private:
  void OnJoin(SessionId session, const JoinRequest& request, absl::Time now,
              CoordinatorOutbox& out);
  absl::Status CheckJoin(const JoinRequest& request) const;
  // Admits claims whose place is free by now, and refuses those whose place has
  // a live member: one that has said something since.
  void SettleClaims(absl::Time now, CoordinatorOutbox& out);
  void OnResume(SessionId session, const Resume& resume, absl::Time now,
                CoordinatorOutbox& out);
  // A member speaks in a new session. `epoch`: the last one it has heard of.
  void Attach(MemberRecord& member, SessionId session, uint64_t epoch,
              absl::Time now, CoordinatorOutbox& out);

  // Each returns an error if the member must go for what it has said.
  absl::Status OnMemberMessage(MemberRecord& member,
                               const MemberMessage& message, absl::Time now,
                               CoordinatorOutbox& out);
  absl::Status OnChecksums(const MemberRecord& member,
                           const ReplicaChecksums& checksums,
                           CoordinatorOutbox& out);
  absl::Status OnLeave(MemberRecord& member, const Leave& leave,
                       CoordinatorOutbox& out);

  // Does what there is to do after an event.
  void Advance(absl::Time now, CoordinatorOutbox& out);
  void BeginEpoch(absl::Time now, CoordinatorOutbox& out);
  void FinishIfSaved(absl::Time now, CoordinatorOutbox& out);

  void NoticePause(absl::Time now);
  void DropOverdueMembers(absl::Time now, CoordinatorOutbox& out);
  // Counts a member as dead.
  void Drop(PeerId id, const std::string& why, CoordinatorOutbox& out);
  void Save(CoordinatorOutbox& out) const;
  JobView View() const;

  const CoordinatorOptions options_;
  JobState state_ = JobState::kGathering;
  std::string reason_;
  MemberList roster_;
  PlaceClaims claims_;
  Departures departures_;
  CheckpointRequests checkpoints_;
  Epochs epochs_;
  LastCheckpoint last_;
  ReplicaCheck replicas_;
  StepRate rate_;
  bool lacks_last_checkpoint_ = false;
};

}  // namespace nereus
