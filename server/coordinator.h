#ifndef NEREUS_SERVER_COORDINATOR_H_
#define NEREUS_SERVER_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

struct CoordinatorOptions {
  std::string job = "default";
  uint64_t job_id = 0;  // Unlike any other run's; drawn by the driver.
  int workers = 1;
  int shards = 1;
  std::optional<Scheme> forced_scheme;
  CostKind cost = CostKind::kBytes;
  JobOptions job_options;

  // How long a member may be silent before the job counts it as dead.
  absl::Duration lease = absl::Seconds(10);

  // How often those who wait for the job to start hear who is missing.
  absl::Duration waiting_notice_interval = absl::Seconds(3);

  absl::Status Validate() const;
};

// Names one pending join; the driver gives it out, and maps it to the open
// call.
using JoinId = int64_t;

struct RefuseJoin {
  JoinId join;
  absl::Status why;
};
struct NotifyWaiting {
  JoinId join;
  std::string text;  // "waiting for 2 of 4 workers and shard 1 of 2; here: ..."
};
struct AdmitMember {
  JoinId join;
  Welcome welcome;
};
using CoordinatorAction = std::variant<RefuseJoin, NotifyWaiting, AdmitMember>;
using CoordinatorOutbox = std::vector<CoordinatorAction>;

// Who is in the job: collects its workers and shards, makes the plan when all
// are there, and decides when the job is over.
//
//   gathering --last member joins--> running --all workers left--> finished
//                                       '----a member is lost----> failed
//
// Workers get ranks in the order in which they join. The first worker's model
// is the job's; one with another model is refused, with the difference.
//
// Pure: no threads, clocks or RPC. The driver hands in the time.
class Coordinator {
 public:
  // REQUIRES: options.Validate() is OK.
  explicit Coordinator(CoordinatorOptions options);

  // A process asks to join. What becomes of it is an action, now or later:
  // exactly one RefuseJoin or AdmitMember, and NotifyWaiting before it.
  void OnJoin(JoinId join, const JoinRequest& request, absl::Time now,
              CoordinatorOutbox& out);

  // The process went away while it was waiting: its place is free again.
  void OnJoinCancelled(JoinId join);

  // A member's report; the reply is the job's state.
  // Errors: kFailedPrecondition, another job or epoch (with both values);
  // kInvalidArgument, no such member.
  absl::StatusOr<JobVerdict> OnHeartbeat(const Heartbeat& heartbeat,
                                         absl::Time now);

  // A member leaves politely, its work done. Errors as for OnHeartbeat.
  absl::Status OnLeave(uint64_t job, uint64_t epoch, PeerId member);

  // Time passes: notices for those who wait, leases that run out. Call it about
  // once a second.
  void OnTick(absl::Time now, CoordinatorOutbox& out);

  // Ends the job with a reason, which all members hear; those who wait to join,
  // at the next tick.
  void Fail(const std::string& reason);

  JobState state() const { return state_; }
  const std::string& reason() const { return reason_; }

  // Whether every member has heard that the job is over, so that the
  // coordinator may go. Those who have left wait for that too.
  bool everyone_knows() const;

  JobStatus Status(absl::Time now) const;
  // The running job and its explanations; null before.
  const JobPtr& job() const { return job_; }
  const std::vector<RouteExplanation>& explanations() const {
    return explanations_;
  }

 private:
  struct Member {
    JoinId join;
    JoinRequest request;
    PeerId id;
    absl::Time last_heartbeat;
    absl::Time last_notice;
    Heartbeat report;
    bool left = false;
    bool knows = false;  // Has heard that the job is over.
  };

  void RefuseWaiting(const absl::Status& why, CoordinatorOutbox& out);
  absl::Status CheckJoin(const JoinRequest& request) const;
  absl::Status CheckModel(const JoinRequest& request) const;
  absl::Status CheckPlace(const JoinRequest& request) const;
  absl::Status Start(absl::Time now, CoordinatorOutbox& out);
  absl::StatusOr<Member*> FindMember(uint64_t job, uint64_t epoch, PeerId id);
  void RankWorkers();
  int Count(Role role) const;
  std::string DescribeMissing() const;
  std::string Describe(const Member& member) const;
  // " in round 7", of a worker.
  std::string DescribeRound(const Member& member) const;

  // Constant after construction.
  const CoordinatorOptions options_;

  JobState state_ = JobState::kGathering;
  std::string reason_;
  std::vector<Member> members_;  // In the order of joining.
  JobPtr job_;
  std::vector<RouteExplanation> explanations_;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_COORDINATOR_H_
