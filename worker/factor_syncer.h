#ifndef NEREUS_WORKER_FACTOR_SYNCER_H_
#define NEREUS_WORKER_FACTOR_SYNCER_H_

#include <array>
#include <cstdint>
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
// Memory: two times workers * K * (M + N) floats, and the optimizer's state.
class FactorSyncer final : public Syncer {
 public:
  FactorSyncer(JobPtr job, int layer, int rank, Buffer parameters);

  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  void OnFrame(const FrameHeader& header, Outbox& out) override;
  std::string Missing() const override;

 private:
  // The factors of all workers for one round: worker r's rows are [r * K, r * K
  // + K).
  struct Stack {
    std::array<Buffer, 2>
        matrices;               // By FrameHeader::chunk: P * K x M, P * K x N.
    std::vector<bool> arrived;  // By Position().
    int64_t missing = 0;        // Count of false in arrived.
    bool own = false;           // This worker's are in.
  };

  absl::Status DoPush(int64_t round, Buffer gradient, Outbox& out) override;
  void DoPushFactors(int64_t round, FactorBuffers factors,
                     Outbox& out) override;

  Stack& StackOf(int64_t round) { return stacks_[round % 2]; }
  const Stack& StackOf(int64_t round) const { return stacks_[round % 2]; }
  void Reset(Stack& stack) const;
  // One worker's matrix (kOutputGradientMatrix or kInputMatrix): its elements,
  // and its place in a stack.
  int64_t MatrixElements(uint32_t matrix) const;
  Buffer Place(const Stack& stack, int worker, uint32_t matrix) const;
  int64_t Position(int worker, uint32_t matrix, int64_t frame) const;
  void FinishIfComplete(Outbox& out);

  int64_t frames_per_worker_ = 0;
  std::array<Stack, 2> stacks_;
  int64_t round_ = 0;  // The next one to finish.
  Buffer gradient_;    // Where its mean gradient goes.
  Buffer product_;     // The same, where the caller gave no room for it.
  Buffer state_;       // Of the optimizer.
};

}  // namespace nereus

#endif  // NEREUS_WORKER_FACTOR_SYNCER_H_
