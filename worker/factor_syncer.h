#ifndef NEREUS_WORKER_FACTOR_SYNCER_H_
#define NEREUS_WORKER_FACTOR_SYNCER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/syncer.h"

namespace nereus {

// Scheme kFactor, Poseidon's sufficient-factor broadcasting: each worker sends
// its K x M and K x N factors to every other one, and each makes the mean
// gradient with one product over the stacked factors of all, in rank order, so
// that all hold the same bits. The update runs here, on every worker alike
// (OptimizerPlace::kServer), or is the caller's (kWorker).
//
// A peer may be one round ahead, no more: it needs this worker's factors of a
// round to finish it. So there are two stacks, and round t uses stack t % 2.
// For the same reason the stack of the last finished round stays as it was
// until every worker has finished that round; where a new epoch finds one that
// has not, and maybe lacks the factors of a worker that is gone, it gets the
// whole stack from one that has.
//
// Memory: two times workers * K * (M + N) floats, and the optimizer's state.
class FactorSyncer final : public Syncer {
 public:
  FactorSyncer(JobPtr job, int layer, int rank, LayerMemory memory);

  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  void OnFrame(const FrameHeader& header, Outbox& out) override;
  std::string Missing() const override;

 private:
  // The factors of all contributors to one round: those of the worker at
  // position p are rows [p * K, p * K + K).
  struct Stack {
    int64_t round = 0;
    int contributors = 0;
    // By part: at least contributors * K rows of M, and of N, values.
    std::array<Buffer, 2> matrices;
    std::vector<bool> arrived;  // By Index().
    int64_t missing = 0;        // Count of false in arrived.
  };

  absl::Status Keep(Buffer gradient) override;
  void KeepFactors(FactorBuffers factors, Outbox& out) override;
  void Contribute(Outbox& out) override;
  void Release() override { own_.reset(); }
  void EnterEpoch(Outbox& out) override;
  void Settle(Outbox& out) override {
    if (!fetching()) FinishIfComplete(out);
  }
  Buffer state() const override;

  Stack& StackOf(int64_t round) { return stacks_[round % 2]; }
  const Stack& StackOf(int64_t round) const { return stacks_[round % 2]; }
  // Empties a stack for `round`, whose contributors are the epoch's.
  void Open(Stack& stack, int64_t round) const;
  // Makes room for `rows` workers' factors; what it holds is lost.
  void Reserve(Stack& stack, int workers) const;
  void CopyOwn(Outbox& out);
  // Takes the stack of done_round() out of the way of later rounds.
  void KeepFinished();
  void Recover(const FinishedRound& finished, Outbox& out);

  absl::StatusOr<Landing> OnFactorsHeader(const FrameHeader& header) const;
  absl::StatusOr<Landing> OnPullFactorsHeader(const FrameHeader& header) const;
  absl::Status CheckContributor(const FrameHeader& header,
                                const Stack& stack) const;
  void SendStack(PeerId to, Outbox& out) const;
  // One worker's matrix: its elements, and its place in a stack.
  int64_t MatrixElements(uint8_t matrix) const;
  Buffer Place(const Stack& stack, int position, uint8_t matrix) const;
  int64_t Index(int position, uint8_t matrix, int64_t frame) const;
  bool Holds(int64_t round) const;
  void FinishIfComplete(Outbox& out);
  void Update(const Stack& stack, Outbox& out);

  int64_t frames_per_worker_ = 0;
  std::array<Stack, 2> stacks_;
  std::optional<FactorBuffers> own_;  // Pushed for next_round().
  Buffer product_;  // The mean gradient, where the caller gave no room for it.
  Buffer state_;    // Of the optimizer, if it runs here.

  // Of this epoch.
  std::optional<PeerId> holder_;  // Sends the stack of next_round().
  std::vector<bool> served_;      // By position: was sent finished_.

  // Of done_round() when this epoch began, for those who lack it.
  Stack finished_;
};

}  // namespace nereus

#endif  // NEREUS_WORKER_FACTOR_SYNCER_H_
