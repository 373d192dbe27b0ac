#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"

namespace nereus {

// In which order a round adds what its contributors send.
enum class SumOrder {
  kArrival,  // Two runs may differ in the last bits.
  kRank,     // Always the same bits; holds what comes before its turn.
};

// One chunk's contributions to one round: collecting --last frame--> complete.
//
// Each contributor's chunk comes in frames; a frame is counted once, however
// often it is added, which makes contributing safe to retry. In a sparse round
// each sends the same few of them, or none, and says how many with each. Plain
// bookkeeping: the sums are actions for the driver.
//
// Memory: the sum; with SumOrder::kRank, in addition, the frames that are held.
class FullRound {
 public:
  // `contributors` >= 1: ranks [0, contributors). `grid`: of the chunk, which
  // has a value.
  FullRound(int contributors, FrameGrid grid, SumOrder order);

  // The frame that a header means, or kNoFrame: that its sender has none in
  // this round. Errors: kInvalidArgument, no such frame.
  static constexpr int64_t kNoFrame = -1;
  absl::StatusOr<int64_t> Find(const FrameHeader& header) const;

  // Whether a frame that was found may be this contributor's. Errors:
  // kInvalidArgument: in a sparse round, it is not one that others send, or not
  // of as many as they do.
  absl::Status Check(int contributor, int64_t frame,
                     const FrameHeader& header) const;

  // Whether `frame` of this contributor, or that it has none, is in already.
  bool Has(int contributor, int64_t frame) const;

  // Adds the frame that a header means; the addend need only live until the
  // actions have been carried out. REQUIRES: Find and Check are OK, and not
  // Has.
  void Add(int contributor, const FrameHeader& header, Addend addend,
           Outbox& out);

  bool complete() const { return incomplete_ == 0; }

  // Contributors not heard from in full, ascending: for messages.
  std::vector<int> MissingContributors() const;

  // The sum of all contributions once complete; the first one, until then
  // partial. Of a sparse round: where has(frame).
  const Buffer& sum() const { return sum_; }

  // How many frames the round has; below 0: that is not known yet.
  int64_t frames() const { return frames_; }
  bool sparse() const { return sparse_; }
  // Whether a frame is in the round, by what has come, and whether its values
  // have their momentum in them (kResumedPart).
  bool has(int64_t frame) const { return !sparse_ || chosen_[frame]; }
  bool resumed(int64_t frame) const { return sparse_ && resumed_[frame]; }

  // Frames that a sparse round has; empty for another round.
  const std::vector<bool>& chosen_frames() const { return chosen_; }

  // Multiplies the sum by `factor`.
  void Scale(float factor, Outbox& out) const;

  // Memory of the sum and of the frames that are held, in bytes.
  int64_t held_bytes() const;

  // The sum, for as long as the caller likes; the next round is summed up in
  // `memory`, of the same size or empty.
  Buffer ExchangeSum(Buffer memory);

  // Starts over, for the next round or for the same one with others, in the
  // same memory, unless somebody still reads the old sum when the first frame
  // comes: then that reader keeps it. `contributors` as in the constructor.
  void Reopen(int contributors, bool sparse);

 private:
  // Frames that a contributor is yet to send; in a sparse round, until its
  // first one, not known.
  static constexpr int64_t kUnknown = -1;

  absl::Status CheckChosen(int contributor, int64_t frame,
                           const FrameHeader& header) const;
  void Fold(int64_t frame, Addend addend, Outbox& out);

  int contributors_ = 0;
  FrameGrid grid_;
  SumOrder order_;
  bool sparse_ = false;
  Buffer sum_;
  bool started_ = false;       // A frame of the open round is in.
  std::vector<bool> arrived_;  // By frame * contributors_ + contributor.
  std::vector<int> folded_;  // By frame: how many contributions the sum holds.
  std::map<std::pair<int64_t, int>, Buffer> held_;  // By frame and contributor.
  std::vector<int64_t> left_;                       // By contributor.
  int incomplete_ = 0;         // Contributors with some left.
  int64_t frames_ = kUnknown;  // Of each contributor.

  // In a sparse round, by frame: whether anybody has sent it, and its flag.
  std::vector<bool> chosen_;
  std::vector<bool> resumed_;
  int64_t chosen_count_ = 0;
};

}  // namespace nereus
