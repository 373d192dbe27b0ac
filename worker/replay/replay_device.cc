#include "worker/replay/replay_device.h"

#include <algorithm>
#include <cstddef>

#include "common/base/random.h"

namespace nereus {
namespace {

// Mean value of all gradients. How gradients travel depends on their values
// only in a sparse job (see Vary).
constexpr float kValue = 1e-3f;

// Gives the blocks of a gradient different norms. In a sparse job only the
// blocks with the largest norms travel; blocks with equal norms would take
// turns.
void Vary(Random& random, std::vector<float>& gradient) {
  constexpr size_t kStretch = 1024;
  for (size_t i = 0; i < gradient.size(); i += kStretch) {
    const float factor = 0.5f + static_cast<float>(random.Uniform());
    const size_t end = std::min(gradient.size(), i + kStretch);
    for (size_t j = i; j < end; ++j) gradient[j] *= factor;
  }
}

}  // namespace

ReplayLayer MakeReplayLayer(const LayerSpec& spec, int layer) {
  ReplayLayer values;
  values.parameters.assign(spec.parameters, 0.0f);
  values.gradient.assign(spec.parameters, kValue);
  Random random(/*seed=*/static_cast<uint64_t>(layer) + 1);
  Vary(random, values.gradient);
  if (spec.has_factors) {
    values.output_gradient.assign(spec.rows * spec.m, kValue);
    values.input.assign(spec.rows * spec.n, kValue);
  }
  return values;
}

}  // namespace nereus
