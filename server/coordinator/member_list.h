#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// When a member did something last.
struct MemberTimes {
  absl::Time last_message_at;
  // Silence counts from here: its last message, or the start of an epoch.
  absl::Time heard_at;
  absl::Time dead_after;   // Without a session, the member is dead by then.
  absl::Time notified_at;  // When it was last told which members are missing.
  absl::Time asked_at;     // When it was asked for a report.
};

// One process that has joined the job.
struct MemberRecord {
  PeerId id;
  JoinRequest request;
  std::optional<SessionId> session;  // None while its session is broken.

  MemberTimes times;
  Heartbeat heartbeat;          // The last one.
  absl::Duration stall_logged;  // Length of its stall when that was logged.
  bool admitted = false;        // True once an epoch has it.
  // True if it has heard that the job is over for it.
  bool told_over = false;
  std::optional<int64_t> last_step;  // Set once it has left.

  // Its report for the change of epoch under way.
  std::optional<EpochReport> report;
  std::optional<SaveLast> save_told;  // In this session.
  bool drained = false;               // In this epoch.

  bool is_worker() const { return id.role == Role::kWorker; }
  bool has_left() const { return last_step.has_value(); }
  // True if it has lost its session: a process that asks for its place gets it.
  bool is_away() const { return admitted && !session.has_value(); }
  // "worker NAME", or "shard 2".
  std::string Name() const;
  // The same, and its address.
  std::string Describe() const;

  // Keeps its last heartbeat. Returns a line for the log if the member waits
  // for a round: as that begins, and again when it has lasted twice as long;
  // otherwise "".
  std::string NoteHeartbeat(const Heartbeat& last, const Job* job);
};

// The processes that have joined the job, in the order of joining. Plain
// bookkeeping.
//
// Workers get ranks in this order. Before the job runs, ranks are without gaps;
// afterwards no rank is given twice.
class MemberList {
 public:
  MemberList() = default;
  // Members as they were saved. A member that does not resume its session
  // within `lease` counts as dead.
  MemberList(const CoordinatorState& saved, absl::Time now,
             absl::Duration lease);

  std::vector<MemberRecord>& members() { return members_; }
  const std::vector<MemberRecord>& members() const { return members_; }
  // Members that have been admitted, for the disk.
  std::vector<CoordinatorState::Member> Saved() const;
  int next_rank() const { return next_rank_; }

  // Each returns null if there is no such member.
  MemberRecord* Find(SessionId session);
  MemberRecord* Find(PeerId id);
  const MemberRecord* Find(PeerId id) const;
  MemberRecord* FindIncarnation(uint64_t incarnation);
  // Member that has the place which `request` asks for: that shard, or the
  // worker of that name, unless it has left.
  MemberRecord* FindHolder(const JoinRequest& request);
  const MemberRecord* FindHolder(const JoinRequest& request) const;

  // Adds a process. `running`: the job has ranks that must not be given twice.
  void Add(const JoinRequest& request, SessionId session, bool running,
           absl::Time now);
  void Remove(PeerId id);
  // Gives all workers ranks without gaps, in the order of joining.
  void NumberWorkers();

  // Notes a message in a session, or its end. Returns true for the session's
  // first message.
  bool NoteMessage(SessionId session) { return open_.insert(session).second; }
  void NoteEnd(SessionId session) { open_.erase(session); }

  // Notes that this process runs. If it has stood still, returns for how long:
  // messages of that time have not been read yet, so that it is no member's
  // silence. Returns zero otherwise.
  absl::Duration NoticePause(absl::Time now);

  int Count(Role role) const;
  // Workers that take part in steps, or will.
  int WorkersHere() const;
  // True if there are workers, and all of them have left.
  bool AllLeft() const;
  bool SomeLeave() const;
  // Last step that a member says it has begun; at least `from`.
  int64_t BegunStep(int64_t from) const;
  // Names of all workers, by rank.
  std::map<int32_t, std::string> WorkerNames() const;
  // Members that count as dead by `now`, and why. `reports_due`: all are asked
  // for a report.
  struct Overdue {
    PeerId id;
    std::string why;
    bool is_silent = false;  // True if nothing was heard from it.
  };
  std::vector<Overdue> FindOverdue(absl::Duration lease, bool reports_due,
                                   absl::Time now) const;
  // True if every admitted member has reported for the change of epoch.
  bool AllReported() const;
  // True if every member has done the plan's last round, or has left.
  bool AllDrained() const;
  // True if every member has heard that the job is over, or is gone.
  bool AllToldOver() const;

  // Sends a message to each worker whose session is open.
  void TellWorkers(const CoordinatorMessage& message,
                   CoordinatorOutbox& out) const;
  // Tells all members that the job is over, and ends their sessions.
  void TellOver(const JobOver& over, CoordinatorOutbox& out);

 private:
  std::vector<MemberRecord> members_;
  int next_rank_ = 0;
  std::set<SessionId> open_;  // Sessions in which something was said.
  absl::Time awake_at_ = absl::InfinitePast();  // When something happened last.
};

}  // namespace nereus
