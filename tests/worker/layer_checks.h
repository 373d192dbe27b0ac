#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/compute/optimizer.h"
#include "worker/trainer/dataset.h"
#include "worker/trainer/layer.h"

namespace nereus {

// Returns integers in [-magnitude, magnitude]. With values as small as the
// tests use, each product and each sum in a layer is exact in float. So results
// are compared with ==, in any order of additions.
std::vector<float> RandomIntegers(int64_t count, int magnitude, Random* random);

// Returns 0, 1, ..., count - 1 in random order, times `factor`.
std::vector<float> ShuffledIntegers(int64_t count, float factor,
                                    Random* random);

// Checks Backward against central differences of Forward. For
//   L = sum(output_gradient[i] * output[i])
// an input or a parameter p has exactly
//   2 * gradient = L(p + 1) - L(p - 1),
// because L is linear in each of them. For a pool this holds while a step of 1
// doesn't change which input is the largest. Also checks that Backward
// overwrites all values, that `input_gradient` may be null, and that a layer
// with factors leaves `gradient` alone; the check multiplies these factors with
// FactorGradient. `input` holds small integers.
void ExpectExactGradients(int64_t images, const std::vector<float>& input,
                          Random* random, Layer* layer);

// Returns the accuracy, on the images to test with, of a network that one
// worker has trained.
double TrainedAccuracy(const std::string& model, const DataSplit& data,
                       const OptimizerOptions& optimizer, int64_t batch,
                       int64_t epochs);

}  // namespace nereus
