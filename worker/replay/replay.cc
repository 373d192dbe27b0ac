#include "worker/replay/replay.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

// Value of all gradients. The values do not change how they travel, except in a
// sparse job (see Vary).
constexpr float kValue = 1e-3f;

// Lateness up to which a sleep is taken to have been inexact. After a longer
// time, the device was idle.
constexpr absl::Duration kSleepErrorMax = absl::Microseconds(500);

constexpr int64_t kReplayStepsMax = int64_t{1} << 30;

Json LayerJson(const LayerReport& layer) {
  const auto rounds = static_cast<double>(std::max<int64_t>(layer.rounds, 1));
  return {
      {"name", layer.name},
      {"scheme", layer.scheme},
      {"wire", layer.wire},
      {"rounds", layer.rounds},
      {"bytes_sent", layer.bytes_sent},
      {"bytes_received", layer.bytes_received},
      {"latency_seconds_mean",
       absl::ToDoubleSeconds(layer.latency_total) / rounds},
  };
}

// Makes the blocks of a gradient differ. In a sparse job only the largest
// blocks travel; equal blocks would travel one after the other.
void Vary(Random& random, std::vector<float>& gradient) {
  constexpr size_t kStretch = 1024;
  for (size_t i = 0; i < gradient.size(); i += kStretch) {
    const float factor = 0.5f + static_cast<float>(random.Uniform());
    const size_t end = std::min(gradient.size(), i + kStretch);
    for (size_t j = i; j < end; ++j) gradient[j] *= factor;
  }
}

}  // namespace

absl::Status ReplayOptions::Validate() const {
  NEREUS_TRY(ValidateLayers(layers));
  if (times.size() != layers.size()) {
    return InvalidArgumentError("times has ", times.size(),
                                " layers, the model ", layers.size());
  }
  if (steps < 1 || steps > kReplayStepsMax) {
    return InvalidArgumentError("steps is ", steps, ", must be from 1 to ",
                                kReplayStepsMax);
  }
  for (const absl::Duration each : {delay, delay_in_turn}) {
    if (each >= absl::ZeroDuration() && each <= kComputeTimeMax) continue;
    return InvalidArgumentError("a delay is ", absl::FormatDuration(each),
                                ", must be from 0 to ",
                                absl::FormatDuration(kComputeTimeMax));
  }
  return absl::OkStatus();
}

Replay::Replay(ReplayOptions options) : options_(std::move(options)) {
  Random random(/*seed=*/1);
  for (const LayerSpec& layer : options_.layers) {
    const bool factors = layer.has_factors;
    parameters_.emplace_back(layer.parameters, 0.0f);
    gradients_.emplace_back(layer.parameters, kValue);
    Vary(random, gradients_.back());
    output_gradients_.emplace_back(factors ? layer.rows * layer.m : 0, kValue);
    inputs_.emplace_back(factors ? layer.rows * layer.n : 0, kValue);
  }
}

std::vector<LayerBinding> Replay::Bindings() {
  std::vector<LayerBinding> bindings;
  for (size_t i = 0; i < options_.layers.size(); ++i) {
    bindings.push_back({options_.layers[i], absl::MakeSpan(parameters_[i])});
  }
  return bindings;
}

void Replay::Compute(absl::Duration time) {
  if (time == absl::ZeroDuration()) return;
  // A sleep takes longer than asked, and hundreds of short sleeps take much
  // longer. So the next sleep is shorter by that time.
  const absl::Time now = SteadyNow();
  if (now - device_free_at_ > kSleepErrorMax) device_free_at_ = now;
  device_free_at_ += time;
  absl::SleepFor(device_free_at_ - now);
}

absl::Status Replay::Forward(Client* client, const StepInfo& step) {
  Compute(options_.delay);
  if (step.step % step.workers == step.position) {
    Compute(options_.delay_in_turn);
  }
  for (size_t i = 0; i < options_.layers.size(); ++i) {
    NEREUS_TRY(client->WaitForward(static_cast<int>(i)));
    Compute(options_.times[i].forward);
  }
  return absl::OkStatus();
}

absl::Status Replay::Backward(Client* client, int64_t step) {
  // The last layer first, as in a real backward pass.
  for (size_t i = options_.layers.size(); i > 0; --i) {
    Compute(options_.times[i - 1].backward);
    NEREUS_TRY(Push(client, static_cast<int>(i - 1), step));
  }
  return absl::OkStatus();
}

absl::Status Replay::Push(Client* client, int layer, int64_t step) {
  const absl::Span<float> gradient = absl::MakeSpan(gradients_[layer]);
  if (!options_.layers[layer].has_factors) {
    return client->Push(layer, step, gradient);
  }
  return client->PushFactors(
      layer, step, {output_gradients_[layer], inputs_[layer]},
      client->traits().updates_parameters ? gradient : absl::Span<float>());
}

absl::StatusOr<ReplayResult> Replay::Run(Client* client) {
  ReplayResult result;
  absl::Time backward_end;
  int64_t step = -1;
  while (step + 1 < options_.steps) {
    const StepInfo begun = NEREUS_TRY(client->BeginStep());
    // A step after the job has gone back does not follow the one before.
    const bool measured = step >= 0 && begun.step == step + 1;
    step = begun.step;
    absl::Status status = Forward(client, begun);
    if (status.ok()) status = Backward(client, step);
    const absl::Time end = SteadyNow();
    if (status.ok() && !client->traits().decoupled)
      status = client->WaitAll(step);
    if (status.ok() && step + 1 == options_.steps) status = client->Leave();
    if (absl::IsOutOfRange(status)) {  // The job has gone back.
      step = -1;
      continue;
    }
    NEREUS_TRY(status);
    if (measured) result.steps.push_back(end - backward_end);
    backward_end = end;
  }
  return result;
}

std::string ReplayJson(int rank, const ReplayResult& result,
                       const std::vector<LayerReport>& layers,
                       const std::vector<PeerTraffic>& traffic) {
  Json json = {
      {"event", "replayed"},
      {"rank", rank},
      {"layers", Json::array()},
  };
  for (const absl::Duration time : result.steps) {
    json["step_seconds"].push_back(absl::ToDoubleSeconds(time));
  }
  for (const LayerReport& layer : layers) {
    json["layers"].push_back(LayerJson(layer));
  }
  int64_t sent = 0;
  int64_t received = 0;
  for (const PeerTraffic& peer : traffic) {
    sent += peer.bytes_sent;
    received += peer.bytes_received;
  }
  json["bytes_sent"] = sent;
  json["bytes_received"] = received;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nereus
