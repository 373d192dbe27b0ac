#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "common/base/log_repeats.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/host_table.h"

namespace nereus {

// Times of a member's last events.
struct MemberTimes {
  absl::Time last_message_at;  // Time of its last message.
  // Time from which its silence counts: its last message, or the start of its
  // first epoch if that was later. A pause of the coordinator moves this time
  // later by the length of the pause.
  absl::Time heard_at;
  absl::Time dead_after;   // A member without a session is dead after this.
  absl::Time notified_at;  // Start of the interval to its next Waiting.
  absl::Time asked_at;     // Time when its report was requested.
  // Time at which its long work (Heartbeat::work) began, or last got further.
  absl::Time moved_at = {};
  // Time when it was admitted to a job that ran already. A member with which
  // the job began, or which a restarted coordinator found in the saved state,
  // has been there for ever.
  absl::Time admitted_at = absl::InfinitePast();
  // Workers: time of the first heartbeat that says that the worker has done a
  // round since it was admitted.
  absl::Time took_part_at = absl::InfiniteFuture();
};

// Process that has joined the job. Its states:
//
//   joined --an epoch begins--> member (admitted)
//   joined --its session ends--> removed
//   member --its session ends--> away --Resume in a new session--> member
//   member --Leave of a worker--> left --no other worker needs it--> released:
//     removed (Outsiders)
//   member --Leave of a server, and backups have its values--> removed
//     (Coordinator::FindSpareServer)
//   member, away, left --silent for a lease, or without a session for
//     reconnect_grace, or its report is late--> dead: removed
//
// A process that was counted as dead may live. It must join again, as another
// member. If it went on as the old member, its contributions could count twice.
struct MemberRecord {
  PeerId id;
  JoinRequest request;               // Request with which it has joined.
  std::optional<SessionId> session;  // Its open session; empty: it has none.

  // Number of its host; -1: a host of its own, or not in an epoch yet.
  int32_t host = -1;

  MemberTimes times;
  Heartbeat heartbeat;    // Last heartbeat.
  LogPace stall_pace;     // Pace of the log lines about its stall.
  bool admitted = false;  // True once it is a member of an epoch.
  // Time for which its join has stopped the steps of a running job (JoinBrake).
  absl::Duration join_cost;
  // True if the coordinator need not tell it (any more) that the job is over:
  // it has been told, or it has not resumed its session in time.
  bool told_over = false;
  WorkerLife life;
  std::optional<int64_t> last_step;  // Last step; empty until it leaves.
  // Workers: true if they left before the job was done. Servers: true if they
  // have asked to leave.
  bool leaves_early = false;

  // Report for the change of epoch under way.
  std::optional<EpochReport> report;
  // Last SaveLast that it was sent in this session.
  std::optional<SaveLast> save_told;
  bool ready_to_switch = false;  // True if it is ready to switch in this epoch.

  bool is_worker() const { return id.role == Role::kWorker; }
  bool has_left() const { return last_step.has_value(); }
  // True if it is a member without a session. Then a process that asks to join
  // in its place gets the place.
  bool is_away() const { return admitted && !session.has_value(); }
  // Returns "worker NAME" or "shard 2".
  std::string Name() const;
  // Returns its name and its address.
  std::string Describe() const;

  // True if nothing was heard from it for `lease`.
  bool IsSilent(absl::Duration lease, absl::Time now) const {
    return now - times.heard_at > lease;
  }
  // Returns the reason why it counts as dead by `now`, for the log and for the
  // process itself. Returns "" if it does not count as dead, or knows that the
  // job is over. `report_due`: a change of epoch is under way, for which a
  // member must report.
  std::string WhyDead(absl::Duration lease, bool report_due,
                      absl::Time now) const;

  // Sends it a message if its session is open.
  void Send(const CoordinatorMessage& message, CoordinatorOutbox& out) const {
    if (session.has_value()) out.push_back(SendToMember{*session, message});
  }

  // Keeps its last heartbeat. Returns a line for the log if a round of the
  // member stalls and a line is due by LogPace. `job`: null only if `last`
  // reports no stall.
  std::optional<Announce> NoteHeartbeat(const Heartbeat& last, const Job* job,
                                        absl::Time now);
};

// Processes that have joined the job: until it begins, in the order of joining;
// in a running job, workers in the order of their ranks. Plain bookkeeping.
//
// NumberWorkers gives ranks without gaps at the start of the job. Afterwards no
// rank of an admitted worker is given twice, so that a late frame of a dead
// worker is never taken for a frame of a new one. A worker that goes before it
// is admitted gives its rank back: no process has heard of that rank. Bounded:
// CheckJoin refuses more workers and servers than the job may have.
class MemberList {
 public:
  MemberList() = default;
  // Makes the list of the members in `saved`. A member that does not resume
  // within `lease` counts as dead.
  MemberList(const CoordinatorState& saved, absl::Time now,
             absl::Duration lease);

  std::vector<MemberRecord>& members() { return members_; }
  const std::vector<MemberRecord>& members() const { return members_; }
  // Returns the members that have been admitted, in the form of
  // CoordinatorState.
  std::vector<CoordinatorState::Member> Saved() const;
  // Lowest rank that no worker has had in an epoch: ranks of workers that join
  // the job while it runs begin here.
  int next_rank() const { return next_rank_; }
  // Notes that the workers in the list are in an epoch: their ranks are used.
  void UseRanks();

  // Each returns null if there is no such member.
  MemberRecord* Find(SessionId session);
  MemberRecord* Find(PeerId id);
  const MemberRecord* Find(PeerId id) const;
  MemberRecord* FindIncarnation(uint64_t incarnation);
  // Returns the member that has the place which `request` asks for: the server
  // of the same shard, or the worker of the same name that has not left. Null:
  // the place is free.
  const MemberRecord* FindHolder(const JoinRequest& request) const;

  // Adds a process. `running`: the job runs, so a worker gets the lowest free
  // rank from next_rank() on. Before the job runs, a worker gets the lowest
  // free rank.
  void Add(const JoinRequest& request, SessionId session, bool running,
           absl::Time now);
  void Remove(PeerId id);
  // Sets MemberRecord::host of all members from `hosts`, which forgets the
  // split processes that are gone. Appends the table's log lines
  // (HostTable::Numbered::news) to `out`.
  void NumberHosts(HostTable& hosts, CoordinatorOutbox& out);
  // Gives all workers ranks without gaps, in the order of the numbers that the
  // launcher gave them (JoinRequest::launch_rank). If a worker has no number,
  // or two workers have the same, the ranks go host by host: hosts in the order
  // in which their first workers joined, workers of a host in the order of
  // joining. Puts the list into this order. Pointers to members become invalid.
  //
  // Any order of ranks is correct, because a line-up puts the workers of a host
  // together, whatever their ranks are. Host by host is the order in which a
  // launcher would number them.
  void NumberWorkers();

  // Gives all members that were asked for a report the full time for it, from
  // now on.
  void AskAgain(absl::Time now);
  // Sets told_over of members that have not resumed in time (dead_after): they
  // need not hear that the job is over.
  void NoteGone(absl::Time now);

  // Notes a message in a session, or the end of a session. NoteMessage returns
  // true for the session's first message.
  bool NoteMessage(SessionId session) { return open_.insert(session).second; }
  void NoteEnd(SessionId session) { open_.erase(session); }

  // The coordinator calls this at each message, end of a session, outcome of a
  // manifest and tick. If the last call was a second or more ago, the process
  // of the coordinator stood still meanwhile. In this case NoticePause moves
  // the deadlines of all members later by the length of the pause, and returns
  // the length. Otherwise it returns zero. The coordinator has not read yet
  // what members sent in the pause, so the pause does not count as their
  // silence.
  absl::Duration NoticePause(absl::Time now);

  // Number of processes with this role.
  int Count(Role role) const {
    return CountIf([=](const auto& m) { return m.id.role == role; });
  }
  // Number of workers that have not left.
  int WorkersHere() const {
    return CountIf(
        [](const auto& m) { return m.is_worker() && !m.has_left(); });
  }
  // Number of hosts of the workers that have not left; 0 if each of them has a
  // host of its own.
  int WorkerHostsHere() const;
  // True if there are workers, and all of them have left.
  bool AllLeft() const {
    return Count(Role::kWorker) > 0 && WorkersHere() == 0;
  }
  // True if a worker has left, and has not been released yet.
  bool SomeLeave() const {
    return CountIf([](const auto& m) { return m.has_left(); }) > 0;
  }
  // Largest step that a member says it has begun, or `from` if that is larger.
  int64_t BegunStep(int64_t from) const;
  // Names of all workers, by rank.
  std::map<int32_t, std::string> WorkerNames() const;
  // Numbers of the hosts of all workers, by rank.
  std::map<int32_t, int32_t> WorkerHosts() const;
  // True if every admitted member has reported for the change of epoch.
  bool AllReported() const {
    return CountIf([](const auto& m) {
             return m.admitted && !m.report.has_value();
           }) == 0;
  }
  // True if every admitted member is ready to switch or has left.
  bool AllReadyToSwitch() const {
    return CountIf([](const auto& m) {
             return m.admitted && !m.has_left() && !m.ready_to_switch;
           }) == 0;
  }
  // True if no member has a session, and every admitted member is told_over.
  bool AllToldOver() const {
    return CountIf([](const auto& m) {
             return m.session.has_value() || (m.admitted && !m.told_over);
           }) == 0;
  }

  // Returns the first rule of turns: the job begins behind all jobs that share
  // a device with one of its workers. Returns nothing if no worker shares its
  // device.
  std::optional<TurnRule> FirstTurns() const;

  // Sends a message to each worker with an open session.
  void TellWorkers(const CoordinatorMessage& message,
                   CoordinatorOutbox& out) const;
  // Tells all members with a session that the job is over, and ends their
  // sessions.
  void EndForAll(const JobOver& over, CoordinatorOutbox& out);

 private:
  template <typename Predicate>
  MemberRecord* FindIf(Predicate predicate) {
    const auto at = absl::c_find_if(members_, predicate);
    return at == members_.end() ? nullptr : &*at;
  }
  template <typename Predicate>
  int CountIf(Predicate predicate) const {
    return static_cast<int>(absl::c_count_if(members_, predicate));
  }

  // True if all workers have numbers of their launcher, each another one.
  bool HaveLaunchRanks() const;
  // Puts the workers of each host one behind the other (NumberWorkers).
  void GroupByHost();

  std::vector<MemberRecord> members_;  // In the order that the class says.
  int next_rank_ = 0;                  // See next_rank().
  std::set<SessionId> open_;  // Open sessions that have sent a message.
  // Time of the last NoticePause.
  absl::Time awake_at_ = absl::InfinitePast();
};

// Returns the settings of the workers (JoinRequest::settings), which all of
// them share; empty if there is no worker.
std::vector<Setting> WorkerSettings(const MemberList& roster);

// Removes the leavers that are gone (MemberRecord::told_over). Returns false,
// and does nothing, if no other worker is in the roster.
bool DropGone(MemberList& roster);

}  // namespace nereus
