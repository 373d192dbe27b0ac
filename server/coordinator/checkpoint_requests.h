#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/protocol/job.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Checkpoints of the job: which were made, which is being made, and which was
// requested. A request is in one of three states:
//
//   none    --Request----------------------------------> wanted
//   wanted  --an epoch begins, which has a round for it--> planned
//   planned --the checkpoint is made, or it fails--------> none
//
// A request after the planned round has begun is for another checkpoint, which
// is wanted once the planned one is made: a caller that asks for a checkpoint
// must not get parameters from before its call.
//
// Plain bookkeeping. Bounded: remembers the last 16 rounds that failed.
class CheckpointRequests {
 public:
  CheckpointRequests() = default;
  CheckpointRequests(CheckpointLedger::State ledger, bool wanted)
      : ledger_(std::move(ledger)), wanted_(wanted) {}

  const CheckpointLedger& ledger() const { return ledger_; }
  // Newest checkpoint that is complete, if any, and its round.
  const std::optional<CheckpointRecord>& newest() const {
    return ledger_.newest();
  }
  int64_t saved_round() const {
    return newest().has_value() ? newest()->round : kInitialRound;
  }

  // True while a requested checkpoint is not made yet.
  bool wanted() const { return wanted_; }
  // True if the next epoch must have a round for it.
  bool needs_round() const { return wanted_ && !planned_; }
  // True while a manifest is being written: any manifest, or that of `round`.
  bool is_completing() const { return !completing_.empty(); }
  bool IsCompleting(int64_t round) const { return completing_.contains(round); }

  // Reason why the last checkpoint that failed did; "" if none has failed.
  const std::string& failure() const { return failure_; }
  // True if the checkpoint of `round` has failed.
  bool HasFailed(int64_t round) const { return failed_rounds_.contains(round); }

  // Requests a checkpoint of a round that no worker has begun. `has_begun`: a
  // worker has begun the round of the planned one. Returns true if the state to
  // save has changed.
  bool Request(bool has_begun);

  // Starts an epoch. `from_base`: all members go back to the base round.
  void OnEpoch(const Job& job, bool from_base);

  // Notes the part of a shard, on `member`'s disk. With the last part, asks the
  // driver to complete the checkpoint. Returns true if the state to save has
  // changed.
  bool OnPart(const JobPtr& job, const CheckpointPart& part,
              const std::string& member, CoordinatorOutbox& out);

  // Notes that a manifest was written, or why not. Returns true if the state to
  // save has changed.
  bool OnWritten(int64_t round, const absl::Status& written, const Job& job,
                 CoordinatorOutbox& out);

  // Notes that there will be no checkpoint of `round`. Returns true if the
  // state to save has changed.
  bool OnFailure(int64_t round, const std::string& why, const Job& job,
                 CoordinatorOutbox& out);

  // Notes the checkpoint that the job was restored from.
  void OnRestored(const CheckpointRecord& record) {
    ledger_.OnComplete(record);
  }

 private:
  // The planned checkpoint is made, or failed.
  void EndPlanned();

  CheckpointLedger ledger_;  // Checkpoints that were made.
  // Checkpoints that wait for their manifest, by round.
  std::map<int64_t, CheckpointRecord> completing_;
  bool wanted_ = false;        // A request is wanted or planned.
  bool wanted_again_ = false;  // Another one, after the planned one.
  bool planned_ = false;       // The epoch has a round for the one wanted.
  std::string failure_;        // Reason of the last failure.
  std::set<int64_t> failed_rounds_;  // Newest rounds that failed.
};

}  // namespace nereus
