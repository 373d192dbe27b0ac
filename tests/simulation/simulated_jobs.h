#pragma once

#include <cstdint>
#include <vector>

#include "tests/simulation/simulation_options.h"

namespace nereus {

// Returns a job drawn from a seed: members, schemes, optimizer, network.
SimulatedClusterOptions RandomJob(uint64_t seed);

// Returns layers of many shapes: fully connected with and without a bias, and
// convolutions of a length below, at and above a frame, and of one element.
std::vector<LayerSpec> MixedLayers();

// Returns a workload with arbitrary floats as gradients and factors, which
// depend on rank, step and parameters.
Workload RandomWorkload(std::vector<LayerSpec> layers, uint64_t seed);

// Returns a workload with small integers as gradients, whatever the parameters
// are. With the optimizer of ExactSgd, and a number of workers that
// is a power of two, every sum, mean and update is exact in float32: one lost
// or repeated contribution shows.
Workload IntegerWorkload(std::vector<LayerSpec> layers);
// Returns the gradient that IntegerWorkload gives for one element.
float IntegerGradient(int rank, int64_t step, int layer, int64_t element);
// Returns plain SGD with a power of two as learning rate.
OptimizerOptions ExactSgd();

// Number of columns after which SignedWorkload repeats itself, and most ranks
// that it tells apart.
inline constexpr int64_t kSignedColumns = 32;

// Returns a workload on MixedLayers in which the gradient of worker r is 1 in
// column r of each row, modulo kSignedColumns, and 0 elsewhere. A mean then
// tells which workers are in it, and how often each was counted.
Workload SignedWorkload();

// Returns linear regression on fixed samples: layer 0 is fully connected, m x n
// with a bias. A step uses `global_rows` samples; worker r of P takes rows
// [r, r + 1) * global_rows / P of them, and its gradient is that of the mean
// loss over those.
Workload RegressionWorkload(int64_t m, int64_t n, int64_t global_rows,
                            int workers);

}  // namespace nereus
