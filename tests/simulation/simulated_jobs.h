#pragma once

#include <cstdint>
#include <vector>

#include "tests/simulation/simulation_options.h"

namespace nereus {

// Returns a job drawn from a seed: members, schemes, optimizer, network.
SimulatedClusterOptions RandomJob(uint64_t seed);

// Returns layers of many shapes: fully connected ones with and without a bias,
// convolutions that are shorter than a frame, as long and longer, and a vector
// of one element.
std::vector<LayerSpec> MixedLayers();

// Returns a workload with arbitrary floats as gradients and factors. They
// depend on the seed, the rank, the step, the layer and the parameters.
Workload RandomWorkload(std::vector<LayerSpec> layers, uint64_t seed);

// Returns the workload, in which workers sometimes push the dense gradient of a
// layer in place of its factors. In two of three seeds they never do.
Workload WithDenseGradients(Workload workload, uint64_t seed);

// Returns a RandomWorkload of MixedLayers with dense gradients.
Workload MixedWorkload(uint64_t seed);

// Returns the workload, in which workers join without their rows and report
// them (Workload::reports), mostly in their first step. Some layers lose their
// factors later. In three of four seeds the workload stays as it is.
Workload WithLearntRows(Workload workload, uint64_t seed);

// Returns a workload with small integers as gradients, which do not depend on
// the parameters. With ExactSgd, and with a power of two as the number of
// workers, every sum, mean and update is exact in float32. So a test finds each
// lost or repeated contribution.
Workload IntegerWorkload(std::vector<LayerSpec> layers);
// Returns the gradient that IntegerWorkload gives for one element.
float IntegerGradient(int rank, int64_t step, int layer, int64_t element);
// Returns the sum of these gradients over all workers in `steps` steps.
float IntegerSum(int workers, int64_t steps, int layer, int64_t element);
// Returns plain SGD with a power of two as learning rate.
OptimizerOptions ExactSgd();
// Gives a job this optimizer, with the same rate in each step.
void UseExactSgd(JobOptions& options);

// Number of columns after which SignedWorkload repeats itself, which is also
// the number of ranks that it tells apart.
inline constexpr int64_t kSignedColumns = 32;

// Returns a workload on MixedLayers. In the first row of each layer, the
// gradient of worker r is 1 in the columns that equal r modulo kSignedColumns,
// and 0 in all others. So the first row of a mean says how often it counts each
// worker.
Workload SignedWorkload();

// Returns linear regression on arbitrary samples. Layer 0 is fully connected, m
// x n with a bias. A step uses `global_rows` samples. Worker r of P takes rows
// [r, r + 1) * global_rows / P of them. Its gradient is that of the mean loss
// over its rows.
Workload RegressionWorkload(int64_t m, int64_t n, int64_t global_rows,
                            int workers);

}  // namespace nereus
