#include "worker/replay/host_replay.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

// Largest error that a sleep is taken to have. If Compute is called later after
// device_free_at_ than this, the device was idle.
constexpr absl::Duration kSleepErrorMax = absl::Microseconds(500);

// Replay on the CPU: calls a Client, and sleeps in place of computing.
class HostReplay final : public ReplayDevice {
 public:
  explicit HostReplay(const std::vector<LayerSpec>& specs) : specs_(specs) {
    for (size_t i = 0; i < specs.size(); ++i) {
      layers_.push_back(MakeReplayLayer(specs[i], static_cast<int>(i)));
    }
  }

  // Connects the client. Called once, first.
  absl::Status Join(const ClientOptions& options);

  const Client& client() const override { return *client_; }
  absl::StatusOr<StepInfo> BeginStep() override { return client_->BeginStep(); }
  absl::Status Push(int layer, int64_t step) override;
  absl::Status WaitForward(int layer) override {
    return client_->WaitForward(layer);
  }
  absl::Status WaitAll(int64_t step) override { return client_->WaitAll(step); }
  absl::Status Leave(bool early) override {
    return early ? client_->LeaveEarly() : client_->Leave();
  }
  // Sleeps until the time at which a device would have done this work. The
  // device begins it when its previous work is done.
  absl::Status Compute(absl::Duration time) override;
  absl::Status MarkBackward() override;
  absl::StatusOr<absl::Duration> BetweenMarks() override {
    return mark_ - mark_before_;
  }
  absl::StatusOr<std::optional<GpuUse>> gpu_use() const override {
    return std::nullopt;
  }

 private:
  const std::vector<LayerSpec> specs_;  // Layers of the model.
  std::vector<ReplayLayer> layers_;     // Memory of the model.
  // Time at which the device is free.
  absl::Time device_free_at_ = absl::InfinitePast();
  // Times of the last two calls of MarkBackward.
  absl::Time mark_before_;
  absl::Time mark_;
  // Last member, so destroyed first: the client uses the memory above.
  std::unique_ptr<Client> client_;
};

absl::Status HostReplay::Join(const ClientOptions& options) {
  std::vector<LayerBinding> bindings;
  for (size_t i = 0; i < specs_.size(); ++i) {
    bindings.push_back({specs_[i], absl::MakeSpan(layers_[i].parameters)});
  }
  client_ = NEREUS_TRY(Client::Connect(options, std::move(bindings)));
  return absl::OkStatus();
}

absl::Status HostReplay::Push(int layer, int64_t step) {
  ReplayLayer& values = layers_[layer];
  const absl::Span<float> gradient = absl::MakeSpan(values.gradient);
  if (!specs_[layer].has_factors) return client_->Push(layer, step, gradient);
  return client_->PushFactors(
      layer, step, {values.output_gradient, values.input},
      // Only a caller that runs the optimizer needs memory for the mean
      // gradient.
      client_->traits().updates_parameters ? gradient : absl::Span<float>());
}

absl::Status HostReplay::Compute(absl::Duration time) {
  if (time == absl::ZeroDuration()) return absl::OkStatus();
  // A sleep takes longer than asked, and the errors of hundreds of short sleeps
  // add up. So the next sleep is shorter by the error of the last one.
  const absl::Time now = SteadyNow();
  if (now - device_free_at_ > kSleepErrorMax) device_free_at_ = now;
  device_free_at_ += time;
  absl::SleepFor(device_free_at_ - now);
  return absl::OkStatus();
}

absl::Status HostReplay::MarkBackward() {
  mark_before_ = std::exchange(mark_, SteadyNow());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplayDevice>> JoinReplay(
    const ClientOptions& options, const std::vector<LayerSpec>& layers) {
  auto replay = std::make_unique<HostReplay>(layers);
  NEREUS_TRY(replay->Join(options));
  return replay;
}

}  // namespace nereus
