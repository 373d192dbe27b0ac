#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/protocol/job.h"
#include "worker/machine/round_ledger.h"

namespace nereus {

// Decides what a worker sends next: which of the layers that the caller has
// pushed go out now, and which are deferred. (It is no part of the job's Plan.)
// The WorkerMachine tells the SendPlan each event, and the SendPlan reads in
// the layers' ledgers how far each layer is. Then the machine takes layers to
// send and a vote from the SendPlan.
//
// A pushed layer is deferred for one of these reasons:
//
//   - The machine is frozen: an epoch ends, and what is sent now would be sent
//     again in the next one.
//   - The job is sparse, and the servers have not said yet which blocks travel.
//   - The caller has not pushed all layers of the step, and fusion waits for
//     more bytes. With Overlap::kNone, nothing at all is sent before the last
//     push. This reason ends when the caller waits for a deferred layer:
//     otherwise a caller that waits in the middle of backward would wait for
//     ever.
//
// Pure.
class SendPlan {
 public:
  // A worker's vote on its step, with NanPolicy::kSkip.
  struct Vote {
    int64_t step = 0;
    bool fit = true;  // True if all gradients of the step may be used.

    bool operator==(const Vote&) const = default;
  };

  // `ledgers`: those of all layers, the block layer included; not owned, must
  // outlive this.
  SendPlan(JobPtr job, const std::vector<RoundLedger>& ledgers);

  // ---- Events.

  // Ends the step, before the first push of the next one: its deferred layers
  // are sent.
  void EndStep();
  // Notes that the caller has pushed `layer` in `step`. `fit`: true if the
  // gradient may be used.
  void OnPush(int layer, int64_t step, bool fit);
  // Notes that the caller waits for `layer`.
  void OnHurry(int layer);
  // Notes that the epoch is about to end: nothing is sent until OnEpoch.
  void Freeze() { is_frozen_ = true; }
  // Enters the job's next epoch.
  void OnEpoch(JobPtr job);
  // Sets the fusion threshold, in bytes (see WorkerMachine::SetFusion).
  void SetFusion(int64_t bytes) { fusion_bytes_ = bytes; }

  // ---- What follows from them.

  // Takes the layers to send, in the order in which they were pushed.
  std::vector<int> TakeSends();
  // Takes the vote, if it is due. A vote is due once in each step and epoch,
  // when all layers are pushed. In a sparse job it also waits for the choice.
  std::optional<Vote> TakeVote();

  // The last step of which a layer was pushed.
  int64_t step() const { return step_; }
  // True if all layers of that step are pushed.
  bool has_pushed_all() const { return pushed_count_ == layer_count(); }
  bool is_frozen() const { return is_frozen_; }
  // True if, in a sparse job, the servers have not said yet which blocks of the
  // step travel.
  bool awaits_choice() const;

 private:
  size_t layer_count() const { return job_->model().size(); }
  // True if nothing may be sent.
  bool IsGated() const { return is_frozen_ || awaits_choice(); }
  // True if the deferred layers must be sent, unless IsGated.
  bool IsUrgent() const;

  JobPtr job_;  // The job in the current epoch.
  // Ledgers of all layers; not owned.
  const std::vector<RoundLedger>& ledgers_;
  int64_t fusion_bytes_;          // See SetFusion.
  bool is_frozen_ = false;        // See Freeze.
  int64_t step_ = kInitialRound;  // See step().
  size_t pushed_count_ = 0;       // Number of layers pushed in the step.
  bool is_fit_ = true;            // True if all gradients may be used.
  bool is_vote_due_ = false;      // True if the vote has to be sent.
  std::vector<int> deferred_;     // Layers that are pushed, and not sent.
  int64_t deferred_bytes_ = 0;    // Bytes that those layers send.
  bool is_hurried_ = false;       // True if the caller waits for one of them.
};

}  // namespace nereus
