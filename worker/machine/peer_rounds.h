#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/lineup.h"
#include "common/protocol/machine.h"
#include "worker/machine/exchange.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Memory and progress of the rounds that workers exchange with each other
// without servers. The ring exchange and the factor exchange share this class.
// Each worker gathers the outcome of a round in its memory, with equal bits on
// all workers.
//
// Why two rounds: a peer may be one round ahead, and no more, since it needs
// this worker's contribution to a round to finish it. Round t uses memory
// t % 2. For the same reason the memory of the last finished round stays as it
// was until every worker has finished that round.
//
// Why recovery: when an epoch ends, a round may be finished on some workers and
// lack the contribution of a worker that is gone on others. Those others get
// the whole memory from a worker that has finished (the source). If they did
// the round again without the lost contribution, the replicas would differ.
class PeerRounds {
 public:
  // Memory that a round needs, by its line-up.
  struct Shape {
    std::vector<int64_t> elements;  // Length of each buffer, in values.
    int64_t frames = 0;             // Number of frames that fill the memory.
    // Range of the frames that hold this worker's own contribution: the worker
    // puts them there itself.
    int64_t own_begin = 0;
    int64_t own_count = 0;
    int64_t parts = 0;  // Number of the last frames, which hold products.
  };

  // State of one round on this worker.
  struct Round {
    int64_t round = 0;           // Number of the round.
    Lineup lineup;               // Line-up of the round in this epoch.
    int host = -1;               // Number of this worker's host in it.
    int contributors = 0;        // Number of workers that contribute.
    std::vector<Buffer> memory;  // float32; the exchange gives it its meaning.
    std::vector<bool> arrived;   // True for each frame that is in place.
    int64_t missing = 0;         // Count of false in `arrived`.
    bool sent = false;           // The own contribution went out in this epoch.
    // Ring: true for each frame in which the sum of the workers before has
    // come.
    std::vector<bool> sums;
    // Factors: number of the missing frames that hold parts of the product
    // (ProductParts); the other missing frames hold factors.
    int64_t missing_parts = 0;
    // Sparse: true for each frame of a block that travels; set when this worker
    // sends. If no block travels, the last frame does, which has no values, so
    // that no worker is done before all have contributed.
    std::vector<bool> chosen;

    // Notes that frame `index` is in place. REQUIRES: it was not.
    void Mark(int64_t index) {
      arrived[index] = true;
      --missing;
    }
  };

  // A frame's place in the memory of its round.
  struct Place {
    int64_t index = 0;  // Number of the frame among those of the memory.
    Buffer values;      // Memory where its payload lands.
  };

  // `layer`, `ledger`: not owned; must outlive this. `shape_of`: returns the
  // shape of a round with that line-up.
  PeerRounds(const WorkerLayer& layer, const RoundLedger& ledger,
             std::function<Shape(const Lineup&)> shape_of);

  Round& At(int64_t round) { return rounds_[round % 2]; }
  const Round& At(int64_t round) const { return rounds_[round % 2]; }

  // Prepares the open round for this worker's contribution; nullptr if the
  // round comes from a source, which has that contribution.
  Round* PrepareToSend();

  // Checks the round of a frame that is no recovery frame. Errors:
  // kInvalidArgument, the round is not open, or comes whole from a source.
  absl::Status Check(const FrameHeader& header) const;
  // True if the round of the frame is done.
  bool IsPast(const FrameHeader& header) const {
    return header.round < ledger_.next_round();
  }
  // True if `round`, the open round, comes whole from a source.
  bool Recovers(int64_t round) const {
    return recovery_.has_value() && round == recovery_->round &&
           round == ledger_.next_round();
  }

  // True for the kinds of frames by which a worker recovers a round from
  // another one: the request, and parts of the memory.
  static bool IsRecovery(FrameKind kind) {
    return kind == FrameKind::kPullRound || kind == FrameKind::kFinished;
  }
  // Take recovery frames, in the place of the exchange.
  absl::StatusOr<Landing> OnRecoveryHeader(const FrameHeader& header) const;
  void OnRecoveryFrame(const FrameHeader& header, Outbox& out);

  // True if the open round is whole, and its result may be used.
  bool IsComplete() const;
  // True if the step of the open round is skipped. REQUIRES: IsComplete().
  bool IsSkipped() const { return *ledger_.Skipped(ledger_.next_round()); }
  // Ends the open round: updates the parameters with `mean` if this worker runs
  // the job's optimizer. `mean` is empty if the step is skipped.
  RoundResult Finish(Buffer mean, Outbox& out);

  // Enters the next epoch: opens both rounds anew, or recovers the first of
  // them from a source.
  void OnEpoch(Outbox& out);

  // Names the workers that the open round waits for: the source, or the workers
  // of the ranks that `missing` returns.
  std::string Missing(
      const std::function<std::vector<int32_t>(const Round&)>& missing) const;

 private:
  void OpenFirst();
  // Empties `round` for round `number` of this epoch's contributors.
  void Open(Round& round, int64_t number);
  // Expects every frame of the round's memory.
  void ExpectAll(Round& round, int64_t frames);
  // Allocates the memory of `round`; what it holds is lost.
  void Reserve(Round& round, const Shape& shape) const;
  // Sparse: counts the frames of blocks that do not travel as in place.
  void LeaveOut(Round& round);
  // Moves the memory of the last finished round out of the way of later rounds.
  void KeepFinished();
  void Recover(const FinishedRound& finished, Outbox& out);
  // True if the job names this worker as the source of `round`.
  bool IsSourceOf(int64_t round) const;
  // Frames in which a round with so many contributors is recovered, by buffer.
  // They are cut by the memory alone, because the receiver does not know the
  // line-up that the round had on the source.
  std::vector<FrameGrid> GridsOf(int contributors) const;
  absl::Status CheckRequest(const FrameHeader& header) const;
  absl::StatusOr<Place> FindInMemory(const FrameHeader& header) const;
  void SendFinished(PeerId to, Outbox& out) const;
  void Update(const Round& round, const Buffer& mean, Outbox& out) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // Its rounds; not owned.
  const std::function<Shape(const Lineup&)> shape_of_;  // See the constructor.
  std::array<Round, 2> rounds_;                         // Round t is in t % 2.

  // Recovery in this epoch.
  std::optional<FinishedRound> recovery_;  // Round that a source sends whole.
  std::vector<bool> served_;  // True at positions that were sent finished_.
  // The last finished round as of the begin of this epoch, for workers that
  // lack it.
  Round finished_;
};

}  // namespace nereus
