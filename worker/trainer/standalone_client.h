#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "worker/public/client.h"

namespace nereus {

// Job of one worker without servers or network: the baseline to which jobs of
// several workers are compared. Push runs the optimizer, with the servers'
// code, before it returns; so a Wait has nothing to wait for.
//
// The trainer uses the client as documented, so misuse is not checked, with one
// exception: a push for another step than the layer's next one ends the
// program. Not thread-safe. Uses memory for the optimizer's state, and for one
// gradient of the largest layer that is pushed by its factors.
class StandaloneClient final : public Client {
 public:
  // Errors: kInvalidArgument, bad options or layers.
  static absl::StatusOr<std::unique_ptr<Client>> Create(
      const OptimizerOptions& optimizer, std::vector<LayerBinding> layers,
      const RateSchedule& schedule = {});

  const JobTraits& traits() const override { return traits_; }
  absl::Status AwaitJoined(absl::Duration, Stream) override {
    return absl::OkStatus();
  }
  using Client::BeginStep;
  absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout, Stream) override;
  absl::Status Push(int layer, int64_t step, absl::Span<float> gradient,
                    Stream) override;
  absl::Status PushFactors(int layer, int64_t step, const Factors& factors,
                           absl::Span<float> gradient, Stream) override;
  // Ignores the report: no plan sends factors.
  absl::Status SetFactorRows(absl::Span<const int64_t>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> factor_rows(int) const override { return 0; }
  absl::Status Wait(int, int64_t, absl::Duration, Stream) override {
    return absl::OkStatus();
  }
  absl::Status WaitForward(int, absl::Duration, Stream) override {
    return absl::OkStatus();
  }
  absl::Status WaitAll(int64_t, absl::Duration, Stream) override {
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Span<const float>> Mean(int) const override;
  bool Skipped(int64_t) const override { return false; }
  // Returns kFailedPrecondition: there are no servers.
  absl::Status Checkpoint() override;
  // Returns `value` alone: there is no other worker.
  absl::StatusOr<std::vector<std::string>> Gather(
      absl::string_view value, absl::Duration /*timeout*/) const override {
    return std::vector<std::string>{std::string(value)};
  }
  // Reports the rounds of each layer. Bytes and latencies are 0.
  ClientReport Report() const override;
  absl::Status Abort(absl::string_view reason) override;

 private:
  absl::Status LeaveJob(bool, absl::Duration, Stream) override {
    return absl::OkStatus();
  }

  // State of one layer.
  struct LayerState {
    LayerBinding binding;
    // Arrays of the optimizer, one after the other.
    std::vector<float> optimizer_state;
    int64_t rounds = 0;  // Number of steps that were pushed.
  };

  StandaloneClient(const OptimizerOptions& optimizer,
                   const RateSchedule& schedule,
                   std::vector<LayerBinding> layers);

  const JobTraits traits_;
  std::vector<LayerState> layers_;
  std::vector<float> product_;  // Product of the factors pushed last.
  int64_t next_step_ = 0;       // Step that BeginStep returns next.
};

}  // namespace nereus
