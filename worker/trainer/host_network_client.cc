#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "worker/trainer/network_client.h"

namespace nereus {
namespace {

// Network on the CPU: a thin layer over Client, with the CPU's optimizer.
class HostNetworkClient final : public NetworkClient {
 public:
  HostNetworkClient(Network* network, OptimizerState* state, Client* client)
      : network_(network), state_(state), client_(client) {}

  Network& network() override { return *network_; }
  const Client& client() const override { return *client_; }
  absl::StatusOr<StepInfo> BeginStep() override { return client_->BeginStep(); }
  absl::Status WaitForward(int layer) override {
    return client_->WaitForward(layer);
  }
  absl::Status Abort(absl::string_view reason) override {
    return client_->Abort(reason);
  }
  absl::Status Leave() override { return client_->Leave(); }
  absl::Status LeaveEarly() override { return client_->LeaveEarly(); }

  absl::Status Push(int layer, int64_t step) override {
    const absl::Span<float> gradient = network_->gradient(layer);
    if (!network_->has_factors(layer)) {
      return client_->Push(layer, step, gradient);
    }
    return client_->PushFactors(
        layer, step, network_->factors(layer),
        // The client needs memory for the mean only if Update will read the
        // mean.
        client_->traits().updates_parameters ? gradient : absl::Span<float>());
  }

  absl::Status Update(int layer, int64_t step) override {
    const absl::Span<float> parameters = network_->parameters(layer);
    const int64_t bad = ApplyOptimizer(
        client_->traits().optimizer, step, std::ssize(parameters), 1.0f,
        client_->Mean(layer).data(), parameters.data(), (*state_)[layer].data(),
        parameters.data());
    if (bad < 0) return absl::OkStatus();
    // Ends the whole job: all workers have the same update.
    return client_->Abort(absl::StrCat(
        "layer ", network_->specs()[layer].name, ", step ", step,
        ": the update by the mean gradient of all workers has a NaN or an "
        "infinity at element ",
        bad, " of ", std::ssize(parameters)));
  }

 private:
  Network* const network_;
  OptimizerState* const state_;
  Client* const client_;
};

}  // namespace

std::vector<LayerBinding> BindLayers(Network* network, OptimizerState* state) {
  std::vector<LayerBinding> layers;
  state->clear();
  for (const LayerSpec& spec : network->specs()) {
    const int layer = static_cast<int>(layers.size());
    // Has room for any optimizer, because Connect tells later which it is.
    state->emplace_back(kOptimizerStatesMax * spec.parameters);
    layers.push_back(
        {spec, network->parameters(layer), absl::MakeSpan(state->back())});
  }
  return layers;
}

std::unique_ptr<NetworkClient> MakeHostNetworkClient(Network* network,
                                                     OptimizerState* state,
                                                     Client* client) {
  return std::make_unique<HostNetworkClient>(network, state, client);
}

}  // namespace nereus
