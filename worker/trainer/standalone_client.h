#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/compute/optimizer.h"
#include "worker/public/client.h"

namespace nereus {

// A job of one worker without servers or network: the baseline that a job of
// several is compared with. Push updates the parameters before it returns, with
// the same optimizer code as a server; Wait has nothing to wait for. Keeps all
// promises of Client, and refuses the same misuse. Thread-safe.
//
// Memory: the optimizer's state, and one gradient as large as the largest layer
// that is pushed by its factors.
class StandaloneClient : public Client {
 public:
  // Errors: kInvalidArgument, bad options or layers, or parameters of another
  // length than their layer has.
  static absl::StatusOr<std::unique_ptr<Client>> Create(
      const OptimizerOptions& optimizer, std::vector<LayerBinding> layers);

  const JobTraits& traits() const override { return traits_; }
  absl::StatusOr<StepInfo> BeginStep() ABSL_LOCKS_EXCLUDED(mu_) override;

  absl::Status Push(int layer, int64_t step, absl::Span<float> gradient)
      ABSL_LOCKS_EXCLUDED(mu_) override;
  absl::Status PushFactors(int layer, int64_t step, const Factors& factors,
                           absl::Span<float> gradient)
      ABSL_LOCKS_EXCLUDED(mu_) override;
  absl::Span<const float> Mean(int) const override { return {}; }
  absl::Status Wait(int layer, int64_t step) ABSL_LOCKS_EXCLUDED(mu_) override;
  absl::Status WaitForward(int layer) ABSL_LOCKS_EXCLUDED(mu_) override;
  absl::Status WaitAll(int64_t step) ABSL_LOCKS_EXCLUDED(mu_) override;
  bool Skipped(int64_t /*step*/) const override { return false; }
  // Returns kFailedPrecondition: there are no servers, so no checkpoints.
  absl::Status Checkpoint() override;
  // Reports the layers' rounds. There are no bytes and no latencies.
  ClientReport Report() const ABSL_LOCKS_EXCLUDED(mu_) override;
  absl::Status Abort(absl::string_view reason) override;
  absl::Status Leave() ABSL_LOCKS_EXCLUDED(mu_) override;

 private:
  struct LayerState {
    LayerBinding binding;
    std::vector<float> optimizer_state;
    int64_t pushed = 0;  // Steps.
    int64_t waited = 0;  // Steps; pushed or one less.
  };

  StandaloneClient(const OptimizerOptions& optimizer,
                   std::vector<LayerBinding> layers);

  // The layer, if `step` is the one it may push now.
  absl::StatusOr<LayerState*> StartPush(int layer, int64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishPush(const float* gradient, LayerState* state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WaitLocked(int layer, int64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const JobTraits traits_;

  mutable Mutex mu_;
  std::vector<LayerState> layers_ ABSL_GUARDED_BY(mu_);
  std::vector<float> gradient_ ABSL_GUARDED_BY(mu_);  // Made of factors.
  int64_t next_step_ ABSL_GUARDED_BY(mu_) = 0;        // To begin.
  bool left_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace nereus
