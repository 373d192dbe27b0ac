#pragma once

#include <cstdint>

namespace nereus {

// Returns the mean over the rows of -log(softmax(logits[row])[labels[row]]). A
// NaN or infinite logit makes the mean NaN or infinite.
//
//   logits    float32, shape {rows, classes}
//   labels    {rows}, each in [0, classes)
//   gradient  gradient of the mean with respect to the logits: float32,
//             shape {rows, classes}; may be `logits` itself
//
// The sum of each softmax, and the sum over the rows, are added in double, in
// order.
float SoftmaxCrossEntropy(int64_t rows, int64_t classes, const float* logits,
                          const int32_t* labels, float* gradient);

}  // namespace nereus
