#include "tests/simulation/simulated_jobs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/random.h"
#include "common/plan/cost_model.h"

namespace nereus {
namespace {

constexpr int64_t kRows = 4;
// Rows of a layer that two workers make a shared product of (ProductParts).
constexpr int64_t kManyRows = kSharedProductRowsMin / 2;

// A float in [-1, 1) from a few numbers, the same on every machine.
float Noise(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  Random random(a * 0x9e3779b97f4a7c15 ^ b * 0xc2b2ae3d27d4eb4f ^
                c * 0x165667b19e3779f9 ^ d);
  return static_cast<float>(random.Uniform() * 2.0 - 1.0);
}

// Writes the first row of worker `rank`'s gradient: 1 in the column of its
// rank, modulo the columns that CountedOnceLaw looks at.
void Sign(int rank, absl::Span<float> row) {
  absl::c_fill(row, 0.0f);
  if (rank >= kSignedColumns) return;
  for (size_t i = rank; i < row.size(); i += kSignedColumns) row[i] = 1.0f;
}

LayerSpec FullyConnected(const char* name, int64_t m, int64_t n, bool bias,
                         int64_t rows) {
  return {name, LayerKind::kFullyConnected, m, n, m * n + (bias ? m : 0), rows,
          true};
}

LayerSpec Vector(const char* name, LayerKind kind, int64_t m, int64_t n) {
  return {name, kind, m, n, m * n, kRows};
}

}  // namespace

// The order of draws is part of every seed: a new draw belongs at the end.
SimulatedClusterOptions RandomJob(uint64_t seed) {
  Random random(seed ^ 0x5bd1e995);
  SimulatedClusterOptions options;
  options.seed = seed;
  options.gathers = seed % 3 == 0;
  // A weak brake, or none: a run has few steps, in which processes come and go,
  // and a brake of 20 would hold them up for longer than the run.
  options.join_share = seed % 2 == 0 ? 1 : 0;
  options.workers = 1 + static_cast<int>(random.Below(5));
  options.shards = 1 + static_cast<int>(random.Below(4));
  const uint64_t scheme = random.Below(4);
  if (scheme < 3) options.rules.forced = kSchemes[scheme];
  constexpr UpdateRule kRules[] = {UpdateRule::kSgd, UpdateRule::kNesterov,
                                   UpdateRule::kAdam, UpdateRule::kAdamW};
  options.job.optimizer.rule = kRules[random.Below(4)];
  options.job.optimizer.weight_decay = random.Chance(0.5) ? 0.001f : 0.0f;
  options.job.optimizer_place =
      random.Chance(0.3) ? OptimizerPlace::kWorker : OptimizerPlace::kServer;
  options.job.deterministic = random.Chance(0.5);
  options.disk.tears = true;
  options.network.delay_max = absl::Microseconds(20 + random.Below(20000));
  options.network.repeat_probability = random.Chance(0.5) ? 0.1 : 0.0;
  const uint64_t overlap = random.Below(3);
  options.job.overlap = overlap == 0 ? Overlap::kNone : Overlap::kWaitFree;
  options.waits_in_forward = overlap == 2;
  constexpr int64_t kFusion[] = {kNoFusion, 0, 1000, 300000};
  options.job.fusion_bytes = kFusion[random.Below(4)];
  options.job.tune_fusion =
      options.job.fusion_bytes != kNoFusion && random.Chance(0.3);
  if (random.Chance(0.4)) options.rules.wire = kWireTypes[random.Below(3)];
  if (random.Chance(0.3)) {
    // Plans change, as workers say that they have measured this and that.
    options.rules.forced.reset();
    options.rules.cost = CostKind::kTime;
    if (options.rules.wire == WireType::kBfloat16) {
      options.rules.wire = WireType::kFloat32;
      options.rules.choose_wire = true;
      options.job.deterministic = false;
    }
  }
  if (random.Chance(0.5)) {
    options.job.rate_schedule.points = {
        {.step = 0, .factor = 0.1f},
        {.step = 4, .factor = 1.0f},
        {.step = 9, .factor = 0.5f, .curve = RateCurve::kHold},
        {.step = 30, .factor = 0.0f, .curve = RateCurve::kCosine}};
  }
  if (options.rules.forced == Scheme::kRing && random.Chance(0.5)) {
    options.rules.forced = Scheme::kDirect;
  }
  return options;
}

std::vector<LayerSpec> MixedLayers() {
  return {
      Vector("conv1", LayerKind::kConvolution, 8, 9),
      Vector("scale", LayerKind::kVector, 1, 1),
      Vector("conv2", LayerKind::kConvolution, 256, 256),  // Exactly a frame.
      Vector("conv3", LayerKind::kConvolution, 1,
             65537),  // A frame and one element.
      FullyConnected("fc1", 33, 47, true, kManyRows),
      FullyConnected("fc2", 40, 40, false, kRows),
      FullyConnected("fc3", 1, 3, true, kRows),
  };
}

Workload RandomWorkload(std::vector<LayerSpec> layers, uint64_t seed) {
  Workload workload;
  workload.initialize = [seed](int rank, int layer, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = Noise(seed + 100 + rank, layer, i, 1);
    }
  };
  workload.gradient = [seed](int rank, int64_t step, int layer,
                             absl::Span<const float> parameters,
                             absl::Span<float> gradient) {
    const float noise = Noise(seed, rank, step, layer);
    // Multiples of the noise, which repeat. (A remainder for each element would
    // take much of the time of all simulations.)
    std::array<float, 7> offsets;
    for (size_t i = 0; i < offsets.size(); ++i) {
      offsets[i] = noise * static_cast<float>(i);
    }
    for (size_t begin = 0; begin < gradient.size(); begin += offsets.size()) {
      const size_t end = std::min(begin + offsets.size(), gradient.size());
      for (size_t i = begin; i < end; ++i) {
        gradient[i] = 0.1f * parameters[i] + offsets[i - begin];
      }
    }
  };
  workload.factors = [seed](int rank, int64_t step, int layer,
                            absl::Span<const float> parameters,
                            absl::Span<float> output_gradient,
                            absl::Span<float> input) {
    for (size_t i = 0; i < output_gradient.size(); ++i) {
      output_gradient[i] =
          Noise(seed + rank, step, layer, i) + 0.1f * parameters[0];
    }
    for (size_t i = 0; i < input.size(); ++i) {
      input[i] = Noise(seed + rank, step, layer, i + 1000000);
    }
  };
  workload.layers = std::move(layers);
  return workload;
}

Workload WithDenseGradients(Workload workload, uint64_t seed) {
  if (seed % 3 != 1) return workload;
  workload.multiplies = [seed](int rank, int64_t step, int layer) {
    return Noise(seed + 7, rank, step, layer) > 0.5f;
  };
  return workload;
}

Workload MixedWorkload(uint64_t seed) {
  return WithDenseGradients(RandomWorkload(MixedLayers(), seed), seed);
}

Workload WithLearntRows(Workload workload, uint64_t seed) {
  if (seed % 4 != 2 || workload.factors == nullptr) return workload;
  workload.reports = [seed, layers = workload.layers](int rank, int64_t step) {
    std::vector<int64_t> rows(layers.size(), kRowsNotKnown);
    for (size_t i = 0; i < layers.size(); ++i) {
      if (!layers[i].has_factors) continue;
      // Most workers know their rows after their first step, some later.
      const float late = Noise(seed + 11, rank, i, 0);
      if (step >= (late < 0.7f ? 0 : 3)) rows[i] = layers[i].rows;
      // Some layers of some workers lose their factors.
      const bool loses = Noise(seed + 13, rank, i, 0) > 0.8f;
      if (loses && step >= 1 + rank % 5) rows[i] = kFactorsLost;
    }
    return rows;
  };
  return workload;
}

float IntegerGradient(int rank, int64_t step, int layer, int64_t element) {
  return static_cast<float>((rank * 7 + step * 3 + layer + element) % 16 - 8);
}

float IntegerSum(int workers, int64_t steps, int layer, int64_t element) {
  float sum = 0;
  for (int rank = 0; rank < workers; ++rank) {
    for (int64_t step = 0; step < steps; ++step) {
      sum += IntegerGradient(rank, step, layer, element);
    }
  }
  return sum;
}

OptimizerOptions ExactSgd() {
  OptimizerOptions optimizer;
  optimizer.learning_rate = 0.5f;
  optimizer.momentum = 0.0f;
  return optimizer;
}

void UseExactSgd(JobOptions& options) {
  options.optimizer = ExactSgd();
  options.rate_schedule = {};
}

// Gradients repeat after 16 steps, workers and elements: sums stay small.
Workload IntegerWorkload(std::vector<LayerSpec> layers) {
  Workload workload;
  workload.initialize = [](int, int, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 5);
    }
  };
  workload.gradient = [](int rank, int64_t step, int layer,
                         absl::Span<const float>, absl::Span<float> gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = IntegerGradient(rank, step, layer, static_cast<int64_t>(i));
    }
  };
  workload.layers = std::move(layers);
  return workload;
}

Workload SignedWorkload() {
  Workload workload = IntegerWorkload(MixedLayers());
  workload.is_signed = true;
  workload.gradient = [](int rank, int64_t, int, absl::Span<const float>,
                         absl::Span<float> gradient) { Sign(rank, gradient); };
  workload.factors = [layers = workload.layers](
                         int rank, int64_t, int layer, absl::Span<const float>,
                         absl::Span<float> output_gradient,
                         absl::Span<float> input) {
    // The first row of the batch has it all, the others are zero.
    absl::c_fill(output_gradient, 0.0f);
    absl::c_fill(input, 0.0f);
    const auto first = output_gradient.subspan(0, layers[layer].m);
    absl::c_fill(first, 1.0f);
    Sign(rank, input.subspan(0, layers[layer].n));
  };
  return workload;
}

Workload RegressionWorkload(int64_t m, int64_t n, int64_t global_rows,
                            int workers) {
  const int64_t rows = global_rows / workers;
  const LayerSpec layer = FullyConnected("regression", m, n, true, rows);
  Workload workload;
  workload.layers = {layer};
  workload.initialize = [](int, int, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = Noise(7, i, 0, 0);
  };
  workload.factors =
      [=](int rank, int64_t step, int, absl::Span<const float> parameters,
          absl::Span<float> output_gradient, absl::Span<float> input) {
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t sample = rank * rows + row;
          float* x = input.data() + row * n;
          for (int64_t j = 0; j < n; ++j) x[j] = Noise(1, step, sample, j);
          for (int64_t i = 0; i < m; ++i) {
            double y = parameters[m * n + i];
            for (int64_t j = 0; j < n; ++j) y += parameters[i * n + j] * x[j];
            const double error = y - Noise(2, step, sample, i);
            output_gradient[row * m + i] =
                static_cast<float>(error / static_cast<double>(rows));
          }
        }
      };
  return workload;
}

}  // namespace nereus
