#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"

namespace nereus {

// One chunk's contributions where rounds close without all of them
// (Quorum::kSolo and so on): whatever has come since the last round closed is
// in the open sum, of whichever step it is. A worker's contributions come step
// by step, each in frames; a frame is counted once, in whatever round is open
// then.
//
// What is counted stays so when an epoch ends: workers send again what they
// have not been answered, and what was counted of that is known.
//
// Plain bookkeeping: the sums are actions for the driver. Memory: the sum.
class PartialRound {
 public:
  // `elements`: float32 values, >= 1.
  explicit PartialRound(int64_t elements) : elements_(elements) {}

  // An epoch's workers: of others nothing more will come.
  void SetWorkers(const std::vector<EpochWorker>& workers);

  // The last step of which all of a worker's contribution is counted.
  // REQUIRES: one of the epoch's workers, here and below.
  int64_t counted(int rank) const { return progress_.at(rank).counted; }

  // Checks a contribution from the worker at `position`. `repeated`: the last
  // round whose answer that worker has asked for again.
  absl::StatusOr<Landing> OnHeader(const Job& job, const FrameHeader& header,
                                   int position, int64_t repeated) const;

  // Positions of the workers whose contributions `round` waits for; none if it
  // may close (JobOptions::quorum, staleness and resync_every).
  std::vector<int> Awaited(const Job& job, int64_t round) const;

  // Whether a frame is counted. REQUIRES: step <= counted(rank) + 1.
  bool Has(int rank, int64_t step, int64_t frame) const;

  // Counts a frame; the addend need only live until the actions have been
  // carried out. True if it was the contribution's last one. REQUIRES: step ==
  // counted(rank) + 1, !Has(rank, step, frame).
  bool Add(int rank, int64_t step, int64_t frame, Addend addend, Outbox& out);

  // What has come since the last Clear, and whether that completed a
  // contribution. Frames that nothing has come of have any values, until Settle
  // makes them 0.
  const Buffer& sum() const { return sum_; }
  bool whole() const { return whole_; }
  void Settle(Outbox& out);
  // Whether a frame of the sum has anything: for tests.
  bool begun(int64_t frame) const {
    return frame < static_cast<int64_t>(begun_.size()) && begun_[frame];
  }

  // The sum has been used. Whoever still reads it keeps it.
  void Clear() {
    begun_.assign(begun_.size(), false);
    whole_ = false;
  }

  int64_t held_bytes() const { return sum_.bytes(); }

 private:
  struct Progress {
    int64_t first_step = kInitialRound;  // First step that it takes part in.
    int64_t counted = kInitialRound;
    std::vector<bool> arrived;  // By frame, of step counted + 1.
    int64_t missing = 0;        // Count of false in arrived.
  };

  // Returns the part of the sum that a frame is added to.
  Buffer FrameOf(int64_t frame) const;

  int64_t elements_;
  Buffer sum_;
  std::vector<bool> begun_;  // By frame: it has been added to.
  bool whole_ = false;
  std::map<int, Progress> progress_;
};

}  // namespace nereus
