#ifndef NEREUS_SERVER_COORDINATOR_H_
#define NEREUS_SERVER_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/epoch_change.h"

namespace nereus {

struct CoordinatorOptions {
  std::string job = "default";
  uint64_t job_id = 0;  // Unlike any other run's; drawn by the driver.
  int workers = 1;      // The job starts when so many are there.
  int shards = 1;

  // The job goes on with so many workers, and waits with fewer.
  int min_workers = 1;
  // So many may be there at a time; 0: `workers`.
  int max_workers = 0;

  std::optional<Scheme> forced_scheme;
  CostKind cost = CostKind::kBytes;
  JobOptions job_options;

  // How long a member may be silent before the job counts it as dead.
  absl::Duration lease = absl::Seconds(10);

  // The same for one whose session has ended: a process that is gone is noticed
  // at once, one that only lost its connection is back by then.
  absl::Duration reconnect_grace = absl::Seconds(1);

  // How often those who wait hear for whom.
  absl::Duration waiting_notice_interval = absl::Seconds(3);

  int workers_max() const { return max_workers > 0 ? max_workers : workers; }

  absl::Status Validate() const;
};

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
using CoordinatorAction = std::variant<SendToMember, EndSession, Announce>;
using CoordinatorOutbox = std::vector<CoordinatorAction>;

// Who is in the job: collects its workers and shards, makes the plan when all
// are there, leads the members from epoch to epoch as workers come, leave and
// die, and decides when the job is over.
//
//   gathering --all are there--> running --all workers left--> finished
//                                   '-----a shard is lost----> failed
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

  // A member, or a process that wants to be one, says something in its session.
  void OnMessage(SessionId session, const MemberMessage& message,
                 absl::Time now, CoordinatorOutbox& out);

  // The session is over, on whosever account.
  void OnSessionEnd(SessionId session, absl::Time now, CoordinatorOutbox& out);

  // Time passes: notices for those who wait, leases that run out. Call it a few
  // times a second.
  void OnTick(absl::Time now, CoordinatorOutbox& out);

  // Ends the job with a reason, which all members hear.
  void Fail(const std::string& reason, CoordinatorOutbox& out);

  JobState state() const { return state_; }
  const std::string& reason() const { return reason_; }

  // Whether every member has heard that the job is over, so that the
  // coordinator may go.
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
    absl::Time heard;         // From it, whatever it was.
    absl::Time session_lost;  // If there is none.
    absl::Time noticed;       // It was told for whom it waits.
    Heartbeat heartbeat;
    bool admitted = false;            // To an epoch.
    std::optional<int64_t> left;      // Its last step.
    std::optional<EpochReport> said;  // For the change under way.
  };

  // An end of a connection between two members, reported by one of them.
  using Link = std::pair<PeerId, PeerId>;

  void OnJoin(SessionId session, const JoinRequest& request, absl::Time now,
              CoordinatorOutbox& out);
  void OnResume(SessionId session, const Resume& resume, absl::Time now,
                CoordinatorOutbox& out);
  // A member speaks in a new session, and knows of its epochs up to this one.
  void Attach(Member& member, SessionId session, uint64_t epoch,
              absl::Time now, CoordinatorOutbox& out);
  void OnMemberMessage(Member& member, const MemberMessage& message,
                       absl::Time now, CoordinatorOutbox& out);
  void OnLostPeer(const Member& member, const LostPeer& lost, absl::Time now,
                  CoordinatorOutbox& out);
  absl::Status CheckJoin(const JoinRequest& request) const;
  absl::Status CheckModel(const JoinRequest& request) const;
  absl::Status CheckPlace(const JoinRequest& request) const;

  // Looks whether there is something to do, and does it.
  void Advance(absl::Time now, CoordinatorOutbox& out);
  absl::Status StartJob();
  // Whether a worker takes part in a later step than this one.
  bool GoneBeyond(int64_t step) const;
  bool NeedsChange() const;
  void StartChange(absl::Time now, CoordinatorOutbox& out);
  bool EveryoneReported() const;
  void FinishChange(absl::Time now, CoordinatorOutbox& out);
  void Admit(absl::Time now, CoordinatorOutbox& out);
  EpochStart StartFor(const Member& member) const;
  void ReleaseLeavers(CoordinatorOutbox& out);
  void FinishIfAllLeft(CoordinatorOutbox& out);
  void Expire(absl::Time now, CoordinatorOutbox& out);
  void Drop(PeerId id, const std::string& why, CoordinatorOutbox& out);
  void Refuse(SessionId session, absl::Status why, CoordinatorOutbox& out);
  void TellAll(const CoordinatorMessage& message, CoordinatorOutbox& out);

  Member* Find(SessionId session);
  Member* Find(PeerId id);
  // Workers that take part in steps, or will.
  int WorkersHere() const;
  int Count(Role role) const;
  std::string DescribeMissing() const;
  std::string Describe(const Member& member) const;

  // Constant after construction.
  const CoordinatorOptions options_;

  JobState state_ = JobState::kGathering;
  std::string reason_;
  std::vector<Member> members_;  // In the order of joining.
  int next_rank_ = 0;
  JobPtr job_;
  std::vector<RouteExplanation> explanations_;

  // The change of epoch.
  std::optional<uint64_t> target_;  // Under way.
  uint64_t last_target_ = 0;
  bool workers_lost_ = false;  // Since this epoch began.
  std::map<Link, std::vector<absl::Time>> lost_links_;  // When, of late.
  std::vector<Link> new_lost_links_;  // Since this epoch began.
  std::vector<Link> reset_links_;     // Of this epoch's start.
  std::vector<int32_t> afresh_;       // The same: ranks of workers.
};

}  // namespace nereus

#endif  // NEREUS_SERVER_COORDINATOR_H_
