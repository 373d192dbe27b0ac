#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "server/coordinator/checkpoint_ledger.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/epochs.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Checkpoint of the last round of the job.
//
//   all workers have left --Ask--> members save --complete--> the job is over
//   members save --too late, or failed--> the job is over
//   members save --a server is lost: backups take over--> members save
//   members save --a shard is lost--> the job goes back to its last checkpoint
//     once another server has come; without one it is over
//
// The wait is bounded: a lease if a part may be lost, 30 minutes otherwise.
// Without the wait, a job would end with the parameters of its last steps
// unsaved.
class LastCheckpoint {
 public:
  // All are borrowed and must outlive this.
  LastCheckpoint(const CoordinatorOptions* options, MemberList* roster,
                 const Epochs* epochs, const CheckpointLedger* checkpoints)
      : options_(*options),
        roster_(*roster),
        epochs_(*epochs),
        checkpoints_(*checkpoints) {}

  // Last step that all workers of the epoch have done. With partial rounds:
  // last step that one of them has done. REQUIRES: all workers have left.
  int64_t LastStep() const;
  // True if the job has a folder for checkpoints, and no checkpoint has the
  // last step. REQUIRES: all workers have left.
  bool Lacks() const;

  // Round of the last checkpoint while the job has to wait for it. Empty if the
  // checkpoint is made or can no longer be made, or if the job has no folder
  // for checkpoints.
  std::optional<int64_t> AwaitedRound() const;

  // Asks all members to save `round`, unless they have been asked. Returns
  // false once the wait for the checkpoint has taken too long.
  bool Ask(int64_t round, absl::Time now, CoordinatorOutbox& out);

  // Moves the end of the wait later by a pause in which the coordinator stood
  // still.
  void Delay(absl::Duration pause) { gives_up_at_ += pause; }

 private:
  // Rank of the worker that sends the worker-owned layers to the shards; empty
  // if all workers are gone.
  std::optional<int32_t> Sender(int64_t round) const;
  // True if a part may have been lost on its way, so that it never comes.
  bool MayBeLost(int64_t round) const;

  const CoordinatorOptions& options_;
  MemberList& roster_;
  const Epochs& epochs_;
  const CheckpointLedger& checkpoints_;
  uint64_t asked_in_ = 0;    // Epoch of the last Ask.
  absl::Time gives_up_at_ =  // Time at which the wait of this epoch ends.
      absl::InfiniteFuture();
};

}  // namespace nereus
