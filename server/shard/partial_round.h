#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame_set.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Contributions to one chunk in a job with partial rounds, which close without
// all contributions (RoundOptions::quorum). There is one open sum: of all
// frames that have arrived since the last update, whichever steps they belong
// to. The contribution of a worker to its next step, counted + 1:
//
//   no frame --first frame--> some frames --last frame--> counted
//
// Each frame counts once, in the round that is open when it arrives. Counted
// frames stay counted when an epoch ends: in the next epoch workers send
// contributions without an answer again, and frames that are counted already
// are not added again.
//
// Plain bookkeeping: the driver carries out the additions. Memory: the sum.
class PartialRound {
 public:
  // `elements`: number of float32 values of the chunk, >= 1.
  explicit PartialRound(int64_t elements) : elements_(elements) {}

  // Starts an epoch with these workers, and forgets all others.
  void SetWorkers(const std::vector<EpochWorker>& workers);

  // Last step for which all frames of worker `rank` are counted. REQUIRES, here
  // and below: `rank` is a worker of the epoch.
  int64_t counted(int rank) const { return progress_.at(rank).counted; }

  // Checks the header of a contribution from the worker at `position`.
  // `repeated`: last step for whose contribution this worker has got an answer
  // in this epoch, or waits for one. A repeated contribution to a later step is
  // answered again.
  absl::StatusOr<Landing> OnHeader(const Job& job, const FrameHeader& header,
                                   int position, int64_t repeated) const;

  // Positions of the workers that `round` waits for; none if it may close
  // (RoundOptions::quorum, staleness and resync_every).
  std::vector<int> Awaited(const Job& job, int64_t round) const;

  // True if a frame is counted. REQUIRES: step <= counted(rank) + 1.
  bool Has(int rank, int64_t step, int64_t frame) const;

  // Counts a frame. `addend` must live until the actions have been carried out.
  // Returns true if this frame was the last one of its contribution.
  // REQUIRES: step == counted(rank) + 1, !Has(rank, step, frame).
  bool Add(int rank, int64_t step, int64_t frame, Addend addend, Outbox& out);

  // Sum of all frames since the last Clear. Frames that no worker has sent have
  // arbitrary values until Settle sets them to 0.
  const Buffer& sum() const { return sum_; }
  // True if a worker's contribution has become complete since the last Clear.
  bool whole() const { return whole_; }
  // Sets the values of all frames that no worker has sent to 0.
  void Settle(Outbox& out);
  // True if a value of `frame` has arrived; for tests.
  bool begun(int64_t frame) const {
    return frame < std::ssize(begun_) && begun_[frame];
  }

  // Starts the next sum. If the old sum still has another reader, the next sum
  // gets new memory.
  void Clear() {
    begun_.assign(begun_.size(), false);
    whole_ = false;
  }

  int64_t held_bytes() const { return sum_.bytes(); }

 private:
  // Contributions of one worker.
  struct Progress {
    int64_t first_step = kInitialRound;  // First step that it takes part in.
    int64_t counted = kInitialRound;     // Last step counted in full.
    FrameSet arrived;                    // Frames of step counted + 1.
  };

  // Returns the part of the sum that a frame is added to.
  Buffer FrameOf(int64_t frame) const;

  int64_t elements_;
  Buffer sum_;
  std::vector<bool> begun_;  // True for each frame with a value in the sum.
  bool whole_ = false;
  std::map<int, Progress> progress_;  // Indexed by rank.
};

}  // namespace nereus
