#pragma once

#include <cstdint>

#include "tests/simulation/simulated_cluster.h"

namespace nereus {

// A job drawn from a seed: members, schemes, optimizer, network.
SimulatedClusterOptions RandomJob(uint64_t seed);

// Layers of many shapes: fully connected with and without bias, convolutions of
// a length below, at and above a frame, one element.
std::vector<LayerSpec> MixedLayers();

// Gradients and factors that depend on rank, step and parameters; arbitrary
// floats.
Workload RandomWorkload(std::vector<LayerSpec> layers, uint64_t seed);

// Gradients that are small integers, whatever the parameters are: with a number
// of workers that is a power of two and OptimizerOptions of ExactSgd, every
// sum, mean and update is exact in float32, so that one lost or repeated
// contribution shows.
Workload IntegerWorkload(std::vector<LayerSpec> layers);
OptimizerOptions ExactSgd();

// The gradient that IntegerWorkload gives for one element.
float IntegerGradient(int rank, int64_t step, int layer, int64_t element);

// Linear regression on fixed samples: layer 0 is fully connected, m x n with a
// bias. Step t uses `global_rows` samples; worker r of P takes rows [r, r + 1)
// * rows / P, and its gradient is that of the mean loss over them.
Workload RegressionWorkload(int64_t m, int64_t n, int64_t global_rows,
                            int workers);

}  // namespace nereus
