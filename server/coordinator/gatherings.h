#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Collects one value of each worker, and gives all values to all of them
// (Gather).
//
//   first Gather of an id --all needed workers have sent theirs--> answered
//             '--one of them has pushed a later step--> answered with an error
//
// A gathering needs the values of all workers that take part in the step of its
// id. Before the first step (the step of the id is kInitialRound), workers
// gather with those that begin at the same step: a gathering needs all workers
// with the first step of a worker that has sent its value. After a return to a
// checkpoint (went_back_in of the id is an epoch), it needs all workers that
// went back in this epoch, or have not entered it yet. A gathering no longer
// needs workers that leave or die. A worker that joins later gets what the
// first workers gathered before their first step, so that it begins as they
// did. All these answers are kept, so a worker may gather at most 64 times
// before its first step. A gathering also fails if its values together exceed 2
// MiB.
//
// A worker sends its value again with each heartbeat until it has the answer.
// Only the newest answer is kept of those after a first step or a return to a
// checkpoint: when a later gathering is complete, each of its workers has the
// answer before. Pure.
class Gatherings {
 public:
  // `job`: null before the first epoch.
  explicit Gatherings(GatheringAnswers state = {}, const JobPtr& job = nullptr)
      : state_(std::move(state)),
        cleared_in_(job == nullptr ? 0 : job->epoch) {}

  // Returns kInvalidArgument if the value is too long.
  static absl::Status Check(const Gather& gather);

  // Notes the value of a worker, or sends the answer if there is one already.
  // Drops the value of a worker that has not yet gone back to a checkpoint, as
  // the job has: the worker then sends a new value, or this one again.
  void OnGather(const MemberRecord& worker, const Gather& gather,
                absl::Time now, CoordinatorOutbox& out);

  // Makes the answers of all gatherings that have the needed values or have
  // failed. Returns true if the state must be saved before Send is called.
  bool Complete(const Job& job, const MemberList& roster);
  // Sends the answers of the gatherings that Complete has completed.
  void Send(const MemberList& roster, CoordinatorOutbox& out);

  // Tells workers that have waited for some seconds which workers are missing.
  void SendNotices(const Job& job, const MemberList& roster, absl::Time now,
                   CoordinatorOutbox& out);

  // Forgets all values and the newest answer, because the job goes back to a
  // checkpoint in `epoch`, and the workers gather again. Keeps the answers
  // before the first step.
  void Clear(uint64_t epoch);

  const GatheringAnswers& state() const { return state_; }

 private:
  // Workers of the job's epoch, by rank.
  using Workers = std::map<int, const MemberRecord*>;

  // Value without an answer.
  struct Open {
    Gather gather;
    // Time when the value came, or when the worker last got a notice that it
    // waits.
    absl::Time noticed_at;
  };
  // Workers that a gathering needs.
  struct Needs {
    std::vector<int> here;  // Ranks of the workers that have sent values.
    std::vector<const MemberRecord*> missing;  // Other needed workers.
    // Worker in `missing` that can no longer gather, because it has pushed a
    // later step; null: there is none.
    const MemberRecord* gone_on = nullptr;
  };

  // Returns the workers of `job` that are members.
  static Workers WorkersOf(const Job& job, const MemberList& roster);
  Needs NeedsOf(const GatheringId& id, const Workers& workers) const;
  // Returns the answer of a gathering: its values, or why it failed. Returns
  // nothing while it waits for a value.
  std::optional<Gathered> Answer(const GatheringId& id,
                                 const Workers& workers) const;
  // Keeps an answer, if a worker may still ask for it.
  void Keep(const Gathered& answer);
  // True if the worker waits for the answer of `id`.
  bool IsOpen(int rank, const GatheringId& id) const {
    const auto found = open_.find(rank);
    return found != open_.end() && found->second.gather.id == id;
  }

  GatheringAnswers state_;  // Answers for which workers may still ask.
  // Epoch of the last Clear; before the first Clear, epoch of the constructor's
  // `job`. OnGather drops values of workers that have not entered this epoch
  // yet.
  uint64_t cleared_in_;
  std::map<int, Open> open_;  // Values without an answer, by rank.
  // Answers to send, each with the ranks of the workers that wait for it.
  std::vector<std::pair<Gathered, std::vector<int>>> ready_;
};

}  // namespace nereus
