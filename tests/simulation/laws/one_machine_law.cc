#include "tests/simulation/laws/one_machine_law.h"

#include <cstring>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/optimizer.h"
#include "common/plan/ring_segments.h"

namespace nereus {

OneMachineLaw::OneMachineLaw(Workload workload, Lineup lineup,
                             const JobOptions& options)
    : workload_(std::move(workload)),
      lineup_(std::move(lineup)),
      options_(options) {
  for (size_t i = 0; i < workload_.layers.size(); ++i) {
    const int64_t count = workload_.layers[i].parameters;
    Layer layer;
    layer.parameters.resize(count);
    layer.state.resize(OptimizerStateCount(options.optimizer.rule) * count);
    workload_.initialize(0, static_cast<int>(i),
                         absl::MakeSpan(layer.parameters));
    layers_.push_back(std::move(layer));
  }
}

void OneMachineLaw::Observe(const ClusterEvent& event) {
  const auto* done = std::get_if<RoundDone>(&event);
  if (done == nullptr) return;
  const LayerPlace& at = done->place;
  Layer& layer = layers_[at.layer];
  // The first worker with a round advances the layer. No worker leaves out a
  // round, so the layer is at most one round behind.
  if (layer.round == at.round - 1) Advance(at.layer, at.job->routes[at.layer]);
  if (layer.round != at.round) return;
  ++checked_count_;
  const absl::Span<const float> values = done->parameters.values;
  for (size_t i = 0; i < layer.parameters.size(); ++i) {
    const float expected = layer.parameters[i];
    if (std::memcmp(&values[i], &expected, sizeof(float)) == 0) continue;
    return Breach(PlaceOf(at),
                  absl::StrFormat("element %d is %.9g on the worker, %.9g on "
                                  "one machine",
                                  i, values[i], expected));
  }
}

// Does the arithmetic of the job's members in the same order: the bits depend
// on the order of additions and on the moment of the scaling.
void OneMachineLaw::Advance(int index, const Route& route) {
  Layer& layer = layers_[index];
  const int64_t step = ++layer.round;
  float scale = 1.0f / static_cast<float>(lineup_.workers());
  std::vector<float> gradient;
  if (workload_.layers[index].has_factors && route.scheme == Scheme::kFactor) {
    gradient = StackedProduct(step, index, scale);
    scale = 1.0f;
  } else {
    const bool is_ring = route.scheme == Scheme::kRing;
    gradient = Sum(step, index, is_ring);
    if (is_ring) {
      for (float& value : gradient) value *= scale;
      scale = 1.0f;
    }
  }
  ApplyOptimizer(OptimizerAt(options_.optimizer, options_.rate_schedule, step),
                 step, std::ssize(gradient), scale, gradient.data(),
                 layer.parameters.data(), layer.state.data(),
                 layer.parameters.data());
}

OneMachineLaw::Factors OneMachineLaw::FactorsOf(int rank, int64_t step,
                                                int layer) const {
  const LayerSpec& spec = workload_.layers[layer];
  Factors factors{std::vector<float>(spec.rows * spec.m),
                  std::vector<float>(spec.rows * spec.n)};
  workload_.factors(rank, step, layer, layers_[layer].parameters,
                    absl::MakeSpan(factors.output_gradient),
                    absl::MakeSpan(factors.input));
  return factors;
}

std::vector<float> OneMachineLaw::Product(const Factors& factors, int64_t rows,
                                          int layer, float scale) const {
  const LayerSpec& spec = workload_.layers[layer];
  std::vector<float> gradient(spec.parameters);
  FactorGradient(rows, spec.m, spec.n, spec.parameters > spec.m * spec.n, scale,
                 factors.output_gradient.data(), factors.input.data(),
                 gradient.data());
  return gradient;
}

std::vector<float> OneMachineLaw::StackedProduct(int64_t step, int layer,
                                                 float scale) const {
  Factors stack;
  std::vector<float> dense;
  for (int host = 0; host < lineup_.hosts(); ++host) {
    for (const int32_t rank : lineup_.at(host)) {
      Factors own = FactorsOf(rank, step, layer);
      if (workload_.PushesProduct(rank, step, layer)) {
        const std::vector<float> gradient = GradientOf(rank, step, layer);
        dense.resize(gradient.size());
        for (size_t i = 0; i < gradient.size(); ++i) dense[i] += gradient[i];
        absl::c_fill(own.output_gradient, 0.0f);
        absl::c_fill(own.input, 0.0f);
      }
      stack.output_gradient.insert(stack.output_gradient.end(),
                                   own.output_gradient.begin(),
                                   own.output_gradient.end());
      stack.input.insert(stack.input.end(), own.input.begin(), own.input.end());
    }
  }
  std::vector<float> gradient =
      Product(stack, lineup_.workers() * workload_.layers[layer].rows, layer,
              dense.empty() ? scale : 1.0f);
  for (size_t i = 0; i < dense.size(); ++i) {
    gradient[i] = (gradient[i] + dense[i]) * scale;
  }
  return gradient;
}

std::vector<float> OneMachineLaw::GradientOf(int rank, int64_t step,
                                             int layer) const {
  const LayerSpec& spec = workload_.layers[layer];
  if (spec.has_factors) {
    return Product(FactorsOf(rank, step, layer), spec.rows, layer, 1.0f);
  }
  std::vector<float> gradient(spec.parameters);
  workload_.gradient(rank, step, layer, layers_[layer].parameters,
                     absl::MakeSpan(gradient));
  return gradient;
}

std::vector<float> OneMachineLaw::HostSum(int host, int64_t step,
                                          int layer) const {
  const absl::Span<const int32_t> ranks = lineup_.at(host);
  std::vector<float> sum = GradientOf(ranks.front(), step, layer);
  for (const int32_t rank : ranks.subspan(1)) {
    const std::vector<float> gradient = GradientOf(rank, step, layer);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  return sum;
}

std::vector<float> OneMachineLaw::Sum(int64_t step, int layer,
                                      bool is_ring) const {
  const int hosts = lineup_.hosts();
  std::vector<std::vector<float>> sums;
  for (int host = 0; host < hosts; ++host) {
    sums.push_back(HostSum(host, step, layer));
  }
  std::vector<float> sum(sums[0].size());
  const int64_t length =
      RingSegments(workload_.layers[layer].parameters, hosts).full_length();
  for (size_t i = 0; i < sum.size(); ++i) {
    // Servers add host by host. On a ring, host i begins the sum of segment i,
    // and the sum goes around.
    const auto first = is_ring ? static_cast<int>(i / length) : 0;
    sum[i] = sums[first][i];
    for (int count = 1; count < hosts; ++count) {
      sum[i] += sums[(first + count) % hosts][i];
    }
  }
  return sum;
}

}  // namespace nereus
