#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/protocol/job.h"

namespace nereus {

// Plan of what a worker sends next: which of the layers that the caller has
// pushed go out now, which are deferred, and which results the worker asks for.
// The WorkerMachine tells the plan each event, and then takes layers to send, a
// vote and layers to gather from it, until there are none.
//
// A pushed layer is deferred for one of these reasons:
//
//   - The machine is frozen: an epoch ends, and what is sent now would be sent
//     again in the next one.
//   - The job is sparse, and it is not known yet which blocks travel.
//   - The step is not complete. Fusion waits for more bytes. With
//     Overlap::kNone, nothing is sent before the last push. When the caller
//     waits for a deferred layer, this reason ends: otherwise a caller that
//     waits in the middle of backward would wait for ever.
//
// With Overlap::kDecoupled results are gathered in forward order once all
// layers are pushed, a window ahead of the layers that are done; a layer that
// the caller waits for is gathered before them. Pure; a value.
class SendPlan {
 public:
  // A worker's vote on its step, with NanPolicy::kSkip.
  struct Vote {
    int64_t step = 0;
    bool fit = true;  // True if all gradients of the step may be used.

    bool operator==(const Vote&) const = default;
  };

  explicit SendPlan(JobPtr job);

  // ---- Events.

  // Ends the step: its open layers are sent and gathered before layers of the
  // next step are. Without effect if all layers are done.
  void EndStep();
  // The caller has pushed `layer` in `step`. `fit`: its gradient may be used.
  void OnPush(int layer, int64_t step, bool fit);
  // The caller waits for `layer`.
  void OnWait(int layer);
  // The layer is done up to `round`. If `round` is lower than before, the layer
  // is fetched again, and no round of it is open.
  void OnDone(int layer, int64_t round);
  // The epoch is about to end. Nothing is sent until OnEpoch.
  void Freeze() { is_frozen_ = true; }
  // Enters the job's next epoch.
  void OnEpoch(JobPtr job);
  // Changes JobOptions::fusion_bytes, until an epoch's job changes it.
  void SetFusion(int64_t bytes) { fusion_bytes_ = bytes; }

  // ---- What follows from them.

  // Takes the layers to send, in the order in which they were pushed.
  std::vector<int> TakeSends();
  // Takes the vote, if it is due. It is due once in each step and epoch, when
  // all layers are pushed; in a sparse job it then waits for the choice.
  std::optional<Vote> TakeVote();
  // Takes the next layer to ask the result of. The machine reports the layer's
  // progress (OnDone) before it takes the next layer: asking for a result may
  // end a round.
  std::optional<int> TakeGather();

  // The last step of which a layer was pushed.
  int64_t step() const { return step_; }
  // True if all layers of that step are pushed.
  bool has_pushed_all() const { return pushed_count_ == layer_count(); }
  bool is_frozen() const { return is_frozen_; }
  // True if, in a sparse job, it is not known which blocks of the step travel.
  bool awaits_choice() const;

 private:
  // A layer's rounds.
  struct Progress {
    int64_t pushed = kInitialRound - 1;  // The last round that was pushed.
    int64_t done = kInitialRound - 1;    // The last round that is done.
  };

  size_t layer_count() const { return job_->model().size(); }
  // True if nothing may be sent.
  bool IsGated() const { return is_frozen_ || awaits_choice(); }
  // True if the deferred layers must be sent, unless IsGated.
  bool IsUrgent() const;
  // True if the layer is pushed, and the round not done.
  bool IsOpen(size_t layer) const {
    return layers_[layer].pushed > layers_[layer].done;
  }

  JobPtr job_;                    // The job in the current epoch.
  std::vector<Progress> layers_;  // Each layer, the block layer included.
  int64_t fusion_bytes_;          // See SetFusion.
  bool is_frozen_ = false;        // See Freeze.
  int64_t step_ = kInitialRound;  // See step().
  size_t pushed_count_ = 0;       // Number of layers pushed in the step.
  bool is_fit_ = true;            // All gradients of the step may be used.
  bool is_vote_due_ = false;      // The vote on the step has to be sent.
  std::vector<int> deferred_;     // Layers that are pushed, and not sent.
  int64_t deferred_bytes_ = 0;    // Bytes that those layers send.
  std::vector<int> waited_;       // Layers to gather before the window.
  // Window of gathering, in forward order: the layers before done_before_ are
  // done, and the layers before gathered_before_ are gathered.
  size_t done_before_ = 0;
  size_t gathered_before_ = 0;
};

}  // namespace nereus
