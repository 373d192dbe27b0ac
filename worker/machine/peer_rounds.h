#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame_set.h"
#include "common/protocol/lineup.h"
#include "common/protocol/machine.h"
#include "worker/machine/exchange.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Memory and progress of the rounds that workers exchange with each other
// without servers. The exchanges of all schemes without servers share this
// class.
// Each worker collects the values of a round in its memory: the mean, or the
// factors of all workers and the dense gradients of those without factors. At
// the end of the round these values have equal bits on all workers.
//
// Why two rounds: another worker can be one round ahead of this worker. It is
// not further ahead, because it cannot finish a round without this worker's
// contribution to it. Round t uses memory t % 2. For the same reason no frame
// overwrites the memory of the last finished round before every worker has
// finished that round.
//
// Why recovery: when an epoch ends, some workers may have finished a round,
// while other workers still lack the contribution of a worker that is gone. The
// other workers get the whole memory of the round from a worker that has
// finished it, the source. If they did the round again without the lost
// contribution, the replicas would differ.
class PeerRounds {
 public:
  // Memory that a round needs; it depends on the round's line-up.
  struct Shape {
    std::vector<int64_t> elements;  // Length of each buffer, in values.
    int64_t frames = 0;             // Number of frames that fill the memory.
    // Frames [own_begin, own_begin + own_count) hold this worker's
    // contribution. They are in place from the beginning, because no peer sends
    // them.
    int64_t own_begin = 0;
    int64_t own_count = 0;
    // Number of frames with parts of a shared product. They are the last ones.
    int64_t parts = 0;
    // Length of Round::sums, and of Round::sum_memory in values.
    int64_t sums = 0;
    int64_t sum_elements = 0;
  };

  // Factors: gradient that a worker contributes in place of its factors. In a
  // round that comes from a source: the sum of all of them, with seat 0.
  struct DenseGradient {
    int seat = 0;       // Seat of the worker.
    Buffer values;      // Memory of the gradient, float32.
    int64_t begin = 0;  // Number of its first frame in the round.
  };

  // State of one round on this worker.
  struct Round {
    int64_t round = 0;           // Number of the round.
    Lineup lineup;               // Line-up of the round in this epoch.
    int host = -1;               // Number of this worker's host in `lineup`.
    int contributors = 0;        // Number of workers that contribute.
    std::vector<Buffer> memory;  // float32; the exchange says what it holds.
    FrameSet frames;             // Frames that are in place.
    bool sent = false;           // True if this worker has sent in this epoch.
    // Ring: true for each frame for which the sum of the hosts before this one
    // has arrived. Direct: true for each frame of each host's part that is in
    // sum_memory.
    std::vector<bool> sums;
    // Direct: the parts of all hosts, one after the other, float32. A worker
    // that recovers the round does not get them.
    Buffer sum_memory;
    // Factors: number of the missing frames that hold parts of the product
    // (ProductParts); the other missing frames hold contributions.
    int64_t missing_parts = 0;
    // Factors: dense gradients of the round, in the order of seats. Their
    // frames have numbers after those of the memory.
    std::vector<DenseGradient> dense;
    // Factors: sum of the dense gradients, once it is made (SumDense). Stays
    // until the next round in this memory is done. Empty: there are none.
    Buffer dense_sum;
    // Sparse: true for each frame of a block that travels; set when this worker
    // sends. If no block travels, true for the last frame, which has no values.
    // Workers wait for this frame, so that no worker is done before all have
    // contributed.
    std::vector<bool> chosen;
  };

  // A frame's place in the memory of its round.
  struct Place {
    // Number of the frame in the round. It is not below the number of
    // Round::frames if the frame is part of a dense gradient, or of a sum of
    // them, of which no frame has come yet.
    int64_t index = 0;
    Buffer values;  // Memory where its payload lands.
  };

  // `layer`, `ledger`: not owned; must outlive this. `shape_of`: returns the
  // shape of a round with the given line-up.
  PeerRounds(const WorkerLayer& layer, const RoundLedger& ledger,
             std::function<Shape(const Lineup&)> shape_of);

  // Returns the entry of rounds_ that `round` uses.
  Round& At(int64_t round) { return rounds_[round % 2]; }
  const Round& At(int64_t round) const { return rounds_[round % 2]; }

  // Returns the dense gradient of the worker with this seat, or null.
  static const DenseGradient* FindDense(const Round& round, int seat);
  // Adds a dense gradient to a round, with undefined values, and expects its
  // frames. REQUIRES: there is none for this seat.
  const DenseGradient& AddDense(Round& round, int seat) const;
  // Sets Round::dense_sum, and appends the additions that make this sum, in the
  // order of seats. REQUIRES: all frames of the dense gradients are in place.
  void SumDense(Round& round, Outbox& out) const;

  // Prepares the open round for the sending of this worker's contribution, and
  // returns the round. Returns nullptr if the round comes from a source: the
  // source has this contribution already.
  Round* PrepareToSend();

  // Checks the round of a frame that is no recovery frame. Errors:
  // kInvalidArgument, the round is not open, or comes whole from a source.
  absl::Status Check(const FrameHeader& header) const;
  // True if the round of the frame is done.
  bool IsPast(const FrameHeader& header) const {
    return header.round < ledger_.next_round();
  }
  // True if `round` is the open round and comes whole from a source.
  bool Recovers(int64_t round) const {
    return recovery_.has_value() && round == recovery_->round &&
           round == ledger_.next_round();
  }

  // True for the kinds of frames by which a worker recovers a round from
  // another one: the request, and parts of the memory.
  static bool IsRecovery(FrameKind kind) {
    return kind == FrameKind::kPullRound || kind == FrameKind::kFinished;
  }
  // Take recovery frames, which the exchange leaves to this class.
  absl::StatusOr<Landing> OnRecoveryHeader(const FrameHeader& header) const;
  void OnRecoveryFrame(const Frame& frame, Outbox& out);

  // True if the open round can end: all its frames are in place, this worker
  // has sent its contribution, and the verdict on the step is known.
  bool IsComplete() const;
  // True if the step of the open round is skipped. REQUIRES: IsComplete().
  bool IsSkipped() const { return *ledger_.Skipped(ledger_.next_round()); }
  // Ends the open round: updates the parameters with `mean` if this worker runs
  // the job's optimizer. `mean` is empty if the step is skipped.
  RoundResult Finish(Buffer mean, Outbox& out);

  // Enters the next epoch: opens both rounds anew. If the job names a source of
  // the first of them, asks the source for this round.
  void OnEpoch(Outbox& out);

  // Names the workers that the open round waits for: the source, or the workers
  // of the ranks that `missing` returns.
  std::string Missing(
      const std::function<std::vector<int32_t>(const Round&)>& missing) const;

 private:
  void OpenFirst();
  // Makes `round` the empty round `number`, with the line-up of this epoch.
  void Open(Round& round, int64_t number);
  // Notes that all `frames` frames of the round are missing.
  void ExpectAll(Round& round, int64_t frames);
  // Gives `round` memory of this shape, with undefined values.
  void Reserve(Round& round, const Shape& shape) const;
  // Sparse: counts the frames of blocks that do not travel as in place.
  void LeaveOut(Round& round);
  // Keeps the memory of the last finished round in finished_: later rounds then
  // use other memory.
  void KeepFinished();
  // Asks the source for the whole memory of the open round.
  void Recover(const FinishedRound& finished, Outbox& out);
  // True if the job names this worker as the source of `round`.
  bool IsSourceOf(int64_t round) const;
  // Returns, for each buffer of the memory, the frames in which the source
  // sends a round with this number of contributors. The frames do not depend on
  // the line-up, because the receiver does not know which line-up the round had
  // on the source.
  std::vector<FrameGrid> GridsOf(int contributors) const;
  absl::Status CheckRequest(const FrameHeader& header) const;
  absl::StatusOr<Place> FindInMemory(const FrameHeader& header) const;
  // True if a recovery frame is part of the sum of dense gradients.
  bool IsOfDenseSum(const FrameHeader& header) const;
  void SendFinished(PeerId to, Outbox& out) const;
  void Update(const Round& round, const Buffer& mean, Outbox& out) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // Its rounds; not owned.
  const std::function<Shape(const Lineup&)> shape_of_;  // See the constructor.
  std::array<Round, 2> rounds_;                         // Round t is in t % 2.

  // Recovery in this epoch.
  std::optional<FinishedRound> recovery_;  // Round that a source sends.
  // True if that round has dense gradients. Absent before its first frame.
  std::optional<bool> recovers_dense_;
  // True at the positions of workers to which this worker sent finished_.
  std::vector<bool> served_;
  // The last finished round as of the begin of this epoch, for workers that
  // lack it.
  Round finished_;
  bool has_finished_ = false;  // True once a round was finished in this memory.
};

}  // namespace nereus
