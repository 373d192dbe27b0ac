#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/frame_sums.h"
#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Contributions to one round of one chunk, where the round waits for all of its
// contributors: collecting --last frame--> complete.
//
// A contribution arrives in frames. Each frame counts once, however often it is
// sent, so that a worker may send its contribution again after a failure. If
// values counted twice, the mean would be wrong, and no later check would find
// it. In a sparse round all contributors send the same few frames of the chunk,
// or none, and each header says how many these are.
//
// Plain bookkeeping: the driver carries out the additions. Memory: the sum;
// with SumOrder::kRank also the frames that are held until their turn.
class FullRound {
 public:
  // `contributors`: number of contributors, at least 1. Methods number them
  // from 0. `grid`: frames of the chunk, which has at least one value.
  FullRound(int contributors, FrameGrid grid, SumOrder order);

  // Index that stands for "this contributor has no frame in this round".
  static constexpr int64_t kNoFrame = -1;
  // Returns the index of the frame that a header announces, or kNoFrame.
  // Errors: kInvalidArgument, the chunk has no such frame.
  absl::StatusOr<int64_t> Find(const FrameHeader& header) const;

  // Checks that `frame`, which Find returned, fits the round. Errors:
  // kInvalidArgument, the part or the number of frames is wrong, or a sparse
  // round has other frames.
  absl::Status Check(int contributor, int64_t frame,
                     const FrameHeader& header) const;

  // True if `frame` of this contributor has arrived. With kNoFrame: true if all
  // frames of this contributor have arrived.
  bool Has(int contributor, int64_t frame) const;

  // Adds the frame that a header announces. `addend` must live until the
  // actions have been carried out. REQUIRES: Find and Check are OK, and Has is
  // false.
  void Add(int contributor, const FrameHeader& header, Addend addend,
           Outbox& out);

  // True if all frames of all contributors have arrived.
  bool complete() const { return incomplete_ == 0; }

  // Contributors with frames that have not arrived, ascending.
  std::vector<int> MissingContributors() const;

  // Sum of all contributions once complete, and a partial sum before. A sparse
  // round has values only in frames of which has() is true.
  const Buffer& sum() const { return sum_; }

  // Number of frames of each contributor; below 0: not known yet.
  int64_t frames() const { return frames_; }
  bool sparse() const { return sparse_; }
  // True if `frame` is in the round: in a sparse round, if a contributor has
  // sent it; in a dense round, always.
  bool has(int64_t frame) const { return !sparse_ || chosen_[frame]; }
  // True if the values of `frame` already contain their momentum
  // (kResumedPart).
  bool resumed(int64_t frame) const { return sparse_ && resumed_[frame]; }

  // True for each frame that a sparse round has; empty for a dense round.
  const std::vector<bool>& chosen_frames() const { return chosen_; }

  // Multiplies the sum by `factor`.
  void Scale(float factor, Outbox& out) const;

  // Bytes of the sum and of the frames that are held.
  int64_t held_bytes() const;

  // Returns the sum, which the caller may keep. `memory` becomes the memory for
  // the sum of the next round; it has the same size or is empty.
  Buffer ExchangeSum(Buffer memory);

  // Starts the next round, or the same round with other contributors. Reuses
  // the memory of the sum, unless the old sum has another reader when the first
  // frame arrives. `contributors`: as in the constructor.
  void Reopen(int contributors, bool sparse);

 private:
  // Number of frames of a sparse round before its first frame has told it.
  static constexpr int64_t kUnknown = -1;

  int contributors_ = 0;
  FrameGrid grid_;
  bool sparse_ = false;
  Buffer sum_;
  FrameSums sums_;        // Frames that have arrived, and their sums in sum_.
  bool started_ = false;  // True once a frame of this round has arrived.
  std::vector<int64_t> left_;  // Frames yet to arrive, by contributor.
  int incomplete_ = 0;         // Number of contributors with frames left.
  int64_t frames_ = kUnknown;  // Number of frames of each contributor.

  // Sparse rounds, by frame: some contributor has sent it.
  std::vector<bool> chosen_;
  // Its values include momentum (kResumedPart).
  std::vector<bool> resumed_;
  int64_t chosen_count_ = 0;  // Count of true in chosen_.
};

}  // namespace nereus
