#ifndef NEREUS_SERVER_COORDINATOR_COORDINATOR_H_
#define NEREUS_SERVER_COORDINATOR_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/epoch_change.h"
#include "server/coordinator/fusion_tuning.h"
#include "server/coordinator/replanner.h"
#include "server/coordinator/replica_check.h"

namespace nereus {

// Names one open session; the driver gives it out.
using SessionId = int64_t;

struct SendToMember {
  SessionId session;
  CoordinatorMessage message;
};
// Nothing more will be said in it.
struct EndSession {
  SessionId session;
};
// For the log.
struct Announce {
  bool bad = false;
  std::string text;
};
// All that a coordinator must find again when it starts anew; between two of
// them nothing happens that its members would not say again.
struct CoordinatorState {
  struct Member {
    PeerId id;
    JoinRequest request;  // Without the layers, which are the job's.
    bool left = false;
    int64_t last_step = kInitialRound;  // If it has left.
  };
  JobState state = JobState::kGathering;
  std::string reason;
  JobPtr job;
  std::vector<RouteExplanation> explanations;
  std::vector<Member> members;  // Of the job's epoch.
  int next_rank = 0;
  // Of the epoch's start.
  std::vector<EpochMember> epoch_members;
  bool all_from_base = false;
  std::vector<int32_t> workers_from_base;
  std::vector<std::pair<PeerId, PeerId>> reset_links;
  CheckpointLedger::State checkpoints;
  bool checkpoint_wanted = false;  // By request, and still to come.
};
// To be on disk before the actions that follow.
struct SaveState {
  CoordinatorState state;
};
// All shards have written their parts: now the manifest, and remove what is too
// old; then OnCheckpoint.
struct CompleteCheckpoint {
  JobPtr job;
  CheckpointRecord record;
};
using CoordinatorAction = std::variant<SendToMember, EndSession, Announce,
                                       SaveState, CompleteCheckpoint>;
using CoordinatorOutbox = std::vector<CoordinatorAction>;

// Who is in the job: collects its workers and shards, makes the plan when all
// are there, leads the members from epoch to epoch as workers come, leave and
// die, and decides when the job is over.
//
//   gathering --all are there--> running --all workers left--> finished
//                                   '---cannot go on---> failed
//
// A job whose last checkpoint is being written is finished when that is whole.
//
// While it runs: steady --somebody comes, goes, dies, or two members lost each
// other--> changing, until all that live have reported --> steady, one epoch
// on.
//
// Workers get ranks in the order in which they join. The first worker's model
// is the job's; one with another model is refused, with the difference.
//
// Pure: no threads, clocks or RPC. The driver hands in the time.
class Coordinator {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit Coordinator(CoordinatorOptions options);

  // Goes on with what was saved. Whoever does not come back within a lease is
  // counted as dead. REQUIRES: state.job is not null.
  Coordinator(CoordinatorOptions options, CoordinatorState state,
              absl::Time now);

  // A member, or a process that wants to be one, says something in its session.
  void OnMessage(SessionId session, const MemberMessage& message,
                 absl::Time now, CoordinatorOutbox& out);

  // The session is over, on whosever account.
  void OnSessionEnd(SessionId session, absl::Time now, CoordinatorOutbox& out);

  // Time passes: notices for those who wait, leases that run out. Call it a few
  // times a second.
  void OnTick(absl::Time now, CoordinatorOutbox& out);

  // Asks for a checkpoint of the next round that nobody has begun. Errors:
  // kFailedPrecondition, the job does not run, or has nowhere to write it.
  absl::Status RequestCheckpoint(absl::Time now, CoordinatorOutbox& out);

  // What came of a CompleteCheckpoint.
  void OnCheckpoint(int64_t round, const absl::Status& written, absl::Time now,
                    CoordinatorOutbox& out);

  // Whether the checkpoint that was asked for is still to come, and why the
  // last one that failed did.
  bool checkpoint_wanted() const { return checkpoint_wanted_; }
  const std::string& checkpoint_failure() const { return checkpoint_failure_; }
  // True if `round` was to be saved and could not be: a write failed, or a
  // server was lost with its part.
  bool HasFailedToSave(int64_t round) const {
    return failed_checkpoints_.contains(round) || shard_lost_;
  }

  // Checkpoints of this job, complete and under way.
  const CheckpointLedger& checkpoints() const { return checkpoints_; }

  // What had to wait since no state could be saved has gone out now: members
  // are asked only since then.
  void OnSavedAgain(absl::Time now);

  // Ends the job with a reason, which all members hear.
  void Fail(const std::string& reason, CoordinatorOutbox& out);

  JobState state() const { return state_; }
  const std::string& reason() const { return reason_; }
  // Finished or failed.
  bool over() const {
    return state_ == JobState::kFinished || state_ == JobState::kFailed;
  }

  // Whether it is finished, but what its last step came to is not in its folder
  // for checkpoints.
  bool lacks_last_checkpoint() const { return lacks_last_checkpoint_; }

  // Whether every member has heard that the job is over, so that the
  // coordinator may go; and every process that stood still for too long.
  bool everyone_knows() const;

  JobStatus Status(absl::Time now) const;
  // The running job and its explanations; null before.
  const JobPtr& job() const { return job_; }
  const std::vector<RouteExplanation>& explanations() const {
    return explanations_;
  }

 private:
  struct Member {
    PeerId id;
    JoinRequest request;
    std::optional<SessionId> session;
    absl::Time last_message_at;
    absl::Time heard;         // The same; or its lease began anew.
    absl::Time missed_after;  // If there is none: then it is dead.
    absl::Time noticed;       // It was told for whom it waits.
    Heartbeat heartbeat;
    absl::Duration stall_told;    // How long its stall was when it was logged.
    bool admitted = false;        // To an epoch.
    bool told = false;            // That the job is over, or it is gone.
    std::optional<int64_t> left;  // Its last step.
    std::optional<EpochReport> said;    // For the change under way,
    absl::Time asked_at;                // which was asked for then.
    std::optional<SaveLast> told_last;  // In this session.
    bool drained = false;               // In this epoch.
  };
  // True if the member has lost its session: a process that asks for the same
  // place gets it.
  static bool IsAway(const Member& member) {
    return member.admitted && !member.session.has_value();
  }

  // An end of a connection between two members, reported by one of them.
  using Link = std::pair<PeerId, PeerId>;

  void OnJoin(SessionId session, const JoinRequest& request, absl::Time now,
              CoordinatorOutbox& out);
  // A process that asks for a place that a member has: the same shard, or the
  // same name of a worker. The session of that member is open, but the member
  // may be dead: its host is gone, or it was killed a moment ago.
  struct Claim {
    SessionId session = 0;
    JoinRequest request;
    absl::Time since;
  };
  // Lets those join whose place is free by now, and refuses those whose place
  // has one that lives: it has said something that is not from before it died.
  void SettleClaims(absl::Time now, CoordinatorOutbox& out);
  void OnResume(SessionId session, const Resume& resume, absl::Time now,
                CoordinatorOutbox& out);
  // A member is in an epoch that this coordinator does not know.
  void OnNewerMember(uint64_t epoch, CoordinatorOutbox& out);
  // A member speaks in a new session, and knows of its epochs up to this one.
  void Attach(Member& member, SessionId session, uint64_t epoch, absl::Time now,
              CoordinatorOutbox& out);
  void OnMemberMessage(Member& member, const MemberMessage& message,
                       absl::Time now, CoordinatorOutbox& out);
  void CheckpointFailed(int64_t round, const std::string& why,
                        CoordinatorOutbox& out);
  absl::Status CheckStall(const Heartbeat& heartbeat) const;
  void OnHeartbeat(Member& member, const Heartbeat& heartbeat,
                   CoordinatorOutbox& out);
  void OnMeasured(const Member& member, const Measured& measured,
                  absl::Time now, CoordinatorOutbox& out);
  // Not where a server that is lost, before copies have been sent what workers
  // have handed over, would take the job with it.
  bool IsSafeToChangePlan() const;
  // No worker has begun a later step, as far as is known; the epoch's first
  // one, if none has begun.
  int64_t BegunStep() const;
  // The same, with what members have reported for the change under way.
  int64_t LastBegunStep() const;
  // Whether there is a better one, and the job may change to it.
  bool WantsAnotherPlan();
  // From where the figures say that it is best, if that is elsewhere.
  void TuneFusionAnew(CoordinatorOutbox& out);
  void OnFusionTimed(const Member& member, const FusionTimed& timed,
                     CoordinatorOutbox& out);
  void TellWorkers(const SetFusion& set, CoordinatorOutbox& out) const;
  void OnChecksums(const Member& member, const ReplicaChecksums& checksums,
                   CoordinatorOutbox& out);
  void OnPart(const Member& member, const CheckpointPart& part,
              CoordinatorOutbox& out);
  void OnLostPeer(const Member& member, const LostPeer& lost, absl::Time now,
                  CoordinatorOutbox& out);
  absl::Status CheckJoin(const JoinRequest& request) const;
  absl::Status CheckPlace(const JoinRequest& request) const;

  // Looks whether there is something to do, and does it.
  void Advance(absl::Time now, CoordinatorOutbox& out);
  absl::Status StartJob();
  // Whether a worker takes part in a later step than this one.
  bool GoneBeyond(int64_t step) const;
  bool NeedsChange() const;
  bool EveryoneIsHere() const;
  void NoteWholeCopies(const Member& member, const Heartbeat& heartbeat);
  // Whether a shard's copy can take over, as far as is known.
  bool CopyIsWhole(int shard) const;
  // Whether somebody has all that workers have seen of each shard.
  bool EveryShardHasHolder() const;
  // Since this epoch began; the next one's job says so.
  bool ACopyBecameWhole() const;
  void StartChange(absl::Time now, CoordinatorOutbox& out);
  bool EveryoneReported() const;
  // Whether the plan's last round is done everywhere.
  bool EveryoneSettled() const;
  // Whether a worker has left that has not gone yet.
  bool SomeLeave() const;
  // What is known for the next epoch.
  EpochChange GatherReports() const;
  void FinishChange(absl::Time now, CoordinatorOutbox& out);
  void Admit(absl::Time now, CoordinatorOutbox& out);
  EpochStart StartFor(const Member& member) const;
  CoordinatorState StateToSave() const;
  void ReleaseLeavers(absl::Time now, CoordinatorOutbox& out);
  bool AllLeft() const;
  void FinishIfAllLeft(absl::Time now, CoordinatorOutbox& out);
  // The last step of the epoch's workers, which have all left; and its round,
  // as long as its checkpoint may become whole soon.
  int64_t LastStep() const;
  std::optional<int64_t> LastCheckpointToCome() const;
  // The worker that sends shards what they save of layers that workers own;
  // none: all workers are gone.
  std::optional<int32_t> LastSender(int64_t round) const;
  // Whether some of it may have been lost on its way, and comes never.
  bool LastCheckpointMayBeLost(int64_t round) const;
  // Asks all members to save the last step, unless they have been asked.
  void AskForLast(int64_t round, CoordinatorOutbox& out);
  int64_t saved_round() const {
    return checkpoints_.newest().has_value() ? checkpoints_.newest()->round
                                             : kInitialRound;
  }
  // Of two members that cannot keep a connection, the one that has to go.
  PeerId WorseOf(const Link& link, absl::Time now) const;
  // Says that the job goes on, and what the loss has cost.
  void TellRecovery(bool was_restarted, int64_t begun_step, absl::Time now,
                    CoordinatorOutbox& out);
  // What came while this process stood still has not been read yet: that time
  // is nobody's silence.
  void NoticePause(absl::Time now);
  // Remembers how far the job is, for its rate.
  void NoteRate(absl::Time now);
  void GiveUpOnTheSilent(absl::Time now);
  void Expire(absl::Time now, CoordinatorOutbox& out);
  void Drop(PeerId id, const std::string& why, CoordinatorOutbox& out);
  void Refuse(SessionId session, absl::Status why, CoordinatorOutbox& out);
  void TellAll(const CoordinatorMessage& message, CoordinatorOutbox& out);

  Member* Find(SessionId session);
  Member* Find(PeerId id);
  // Returns the member that has the place `request` asks for: that shard, or
  // the worker of that name, unless it has left. Null if there is none.
  Member* FindHolder(const JoinRequest& request);
  const Member* FindHolder(const JoinRequest& request) const {
    return const_cast<Coordinator*>(this)->FindHolder(request);
  }
  const Member* Find(PeerId id) const {
    return const_cast<Coordinator*>(this)->Find(id);
  }
  // Workers that take part in steps, or will.
  int WorkersHere() const;
  int FreeRank();
  int Count(Role role) const;
  std::string DescribeMissing() const;
  // "worker NAME", or "shard 2".
  std::string NameOf(const Member& member) const;
  // The same, and where the process is.
  std::string Describe(const Member& member) const;
  // Names of all workers, by rank.
  std::map<int32_t, std::string> WorkerNames() const;

  // Constant after construction.
  const CoordinatorOptions options_;

  JobState state_ = JobState::kGathering;
  std::string reason_;
  std::vector<Member> members_;  // In the order of joining.
  std::vector<Claim> claims_;    // The same.
  std::set<SessionId> spoken_;   // Sessions that have begun, and are not over.
  // Incarnations of workers that have left for good, and until when they may
  // ask whether they may go.
  std::map<uint64_t, absl::Time> released_;
  int next_rank_ = 0;
  JobPtr job_;
  std::vector<RouteExplanation> explanations_;

  // The change of epoch.
  std::optional<uint64_t> target_;  // Under way.
  uint64_t last_target_ = 0;
  bool members_lost_ = false;  // Since this epoch began.
  bool shard_lost_ = false;    // The same: with what it held.
  // Members that were lost since this epoch began, and when each was last heard
  // from; and those in whose place nobody has come.
  std::map<std::string, absl::Time> lost_;
  std::set<std::string> away_;
  std::map<Link, std::vector<absl::Time>> lost_links_;  // When, of late.
  std::vector<Link> new_broken_links_;  // Since this epoch began.
  // Who was there when this epoch began: members come and go before the next.
  std::vector<EpochMember> epoch_members_;
  std::vector<Link> reset_links_;           // Of this epoch's start.
  std::vector<int32_t> workers_from_base_;  // The same: ranks of workers.
  bool all_from_base_ = false;              // The same: shards too.
  // Shards whose servers, which may be lost by now, have said in this epoch
  // that their copies are whole.
  std::set<int32_t> current_backups_;

  // The job has been restored from what was saved: the next epoch makes sure
  // that all its members are there.
  bool restarted_ = false;

  // Members that were counted as dead for their silence in the last
  // kSilentKept, and when, and have not come again: they may live, and not know
  // that the job is over.
  std::vector<std::pair<Member, absl::Time>> silent_;
  bool lacks_last_checkpoint_ = false;

  absl::Time awake_ = absl::InfinitePast();  // When something happened last.
  absl::Time gives_up_at_ = absl::InfiniteFuture();  // The last checkpoint.

  // Steps begun, as of when, over the last kRateWindow.
  std::deque<std::pair<absl::Time, int64_t>> begun_steps_;

  FusionTuning fusion_;
  ReplicaCheck replicas_;
  Replanner replanner_;
  bool better_plan_ = false;  // There is one, since this epoch began.
  CheckpointLedger checkpoints_;
  // Whose manifests are being written, by round.
  std::map<int64_t, CheckpointRecord> completing_;
  bool checkpoint_wanted_ = false;
  // Another one, once the one that is wanted is there.
  bool checkpoint_wanted_again_ = false;
  bool checkpoint_planned_ = false;  // This epoch's job has a round for it.
  std::string checkpoint_failure_;
  std::set<int64_t> failed_checkpoints_;  // By round.
};

}  // namespace nereus

#endif  // NEREUS_SERVER_COORDINATOR_COORDINATOR_H_
