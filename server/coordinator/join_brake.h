#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Brake on processes that join a running job. Each of them stops the steps of
// the other workers: for the change of epoch that admits it, and, if it ends
// soon, until the next epoch goes on without it. A process that is started
// again and again and crashes each time would leave the others hardly a step.
//
// The brake knows what each process has cost: the time from its join to its
// first epoch, and from its last message to the epoch without it; also the time
// from its admission to its first step, in which the others wait for it. The
// next newcomer is admitted only when `share` times that cost has passed. So
// with a share of 20, newcomers stop the steps for at most 1/20 of the time:
//
//   newcomer --no cost is open--------------> joins at once
//   newcomer --a cost is open---------------> waits
//   newcomer --its place is vacant----------> joins at once
//   waiting  --the cost has been worked off-> joins, with all that wait
//
// The time that a member lives counts for its own cost. An old member has lived
// for `share` times of its cost and for kOldAfter, or the job began with it.
// Its end costs nothing, and it leaves a vacancy: the process that is started
// in its place (of the same name, of the same number of its launcher, or of the
// same shard) joins at once, whatever other newcomers have cost.
//
// Ranks: each end that counts costs at least kEndCostMin, so with a share of 20
// newcomers use up at most one rank in 20 s, however many of them crash. The
// 65,536 ranks of a job (kRanksMax) then last for 15 days of a crash loop.
//
// Plain bookkeeping. A restarted coordinator begins without open costs, and
// takes its members for old. Memory: the waiting processes, at most as many as
// there are sessions; the members whose end has no epoch yet; at most
// kVacanciesMax vacancies.
class JoinBrake {
 public:
  // Least cost that counts for the change of epoch by which newcomers join. It
  // stands for what the coordinator cannot measure: connections are made.
  static constexpr absl::Duration kJoinCostMin = absl::Milliseconds(100);
  // Least cost that counts for a member that ends soon; see the class comment.
  static constexpr absl::Duration kEndCostMin = absl::Seconds(1);
  // Least time that a newcomer must live to leave a vacancy. Otherwise many
  // processes, each of which just pays for itself, would cost too much
  // together.
  static constexpr absl::Duration kOldAfter = absl::Minutes(5);
  static constexpr size_t kVacanciesMax = 4096;
  static constexpr int kRanksAtOnce = 60;

  // Process that waits.
  struct Newcomer {
    SessionId session = 0;
    JoinRequest request;
    absl::Time heard_at;     // Its last message.
    absl::Time notified_at;  // Its last Waiting.
  };

  // `share`: number of times that a cost must pass before the next newcomer is
  // admitted; 0: the brake holds no process up.
  explicit JoinBrake(int share) : share_(share) {}

  // Returns the time for which a process must wait before it may join; zero: it
  // may join now. Infinite: a member has just ended, and the next epoch will
  // tell what that has cost. `job_waits`: the job makes no steps before such a
  // process joins. Then it joins at once, unless the brake must protect the
  // ranks: of workers that were admitted and have ended, only kRanksAtOnce may
  // come faster than one in `share` times kEndCostMin.
  absl::Duration WaitOf(const JoinRequest& request, bool job_waits,
                        absl::Time now) const;
  // Returns why newcomers wait, and for how long: "waits 12 s, because ...".
  std::string WhyWait(absl::Duration wait) const;

  // Keeps a process waiting. An earlier session of the same process ends.
  void Hold(Newcomer newcomer, CoordinatorOutbox& out);
  // Removes the waiting process of a session. Returns true if there was one.
  bool EndWait(SessionId session);
  // Notes a message of a waiting process: it lives.
  void NoteMessage(SessionId session, absl::Time now);
  // Removes the waiting processes that nothing was heard of for `lease`, and
  // ends their sessions: they may be dead, and would stop the job as members.
  void DropSilent(absl::Duration lease, absl::Time now, CoordinatorOutbox& out);
  // Removes all waiting processes and returns them, in the order of joining.
  std::vector<Newcomer> TakeWaiting() { return std::exchange(waiting_, {}); }
  std::vector<Newcomer>& waiting() { return waiting_; }
  const std::vector<Newcomer>& waiting() const { return waiting_; }

  // Notes that a process joins the running job now: the next change of epoch is
  // for it.
  void OnJoin(const JoinRequest& request, absl::Time now);
  // Notes that a member of the running job ends: it counts as dead, leaves
  // early, or is released as a server. `since`: time from which the others may
  // have waited for it.
  void OnEnd(const MemberRecord& member, absl::Time since, absl::Time now);
  // Notes that the job makes no steps for another reason than newcomers: what
  // has passed until now is not their cost.
  void Excuse(absl::Time now);
  // Notes that an epoch begins, before its newcomers are admitted. They take
  // their vacancies. Sets the cost of their join (MemberRecord::join_cost).
  void OnEpoch(MemberList& roster, absl::Time now);

  // Moves the beginnings of all costs later by a pause in which the coordinator
  // stood still.
  void Delay(absl::Duration pause);

 private:
  // Member that has ended, and was not old.
  struct End {
    absl::Time paid_from;   // Time from which its costs must pass.
    absl::Duration before;  // Cost from its admission to its first step.
    absl::Time since;       // Start of the cost of its end.
  };
  // Place of an old member that has ended.
  struct Vacancy {
    Role role = Role::kWorker;
    int shard = 0;
    std::string name;
    std::optional<int32_t> launch_rank;

    // True if the process is started in this place.
    bool IsOf(const JoinRequest& request) const;
  };

  // Returns vacancies_.end() if there is none for the process.
  std::deque<Vacancy>::const_iterator FindVacancy(
      const JoinRequest& request) const;

  const int share_;
  std::vector<Newcomer> waiting_;
  std::deque<Vacancy> vacancies_;  // The newest last.
  // Time when the first process joined that the next epoch admits.
  std::optional<absl::Time> join_since_;
  bool join_counts_ = false;  // True if one of them has no vacancy.
  std::vector<End> ends_;     // Ends without an epoch yet.
  // Time from which on newcomers may join.
  absl::Time free_at_ = absl::InfinitePast();
  // Time until which the ranks of ended workers have to last.
  absl::Time ranks_last_until_ = absl::InfinitePast();
  absl::Duration last_cost_;   // Costs that the last epoch with any has added.
  bool last_was_end_ = false;  // True if a member's end was among them.
};

}  // namespace nereus
