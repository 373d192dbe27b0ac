#pragma once

#include <cstdint>

namespace nereus {

// Returns the mean over the rows of -log(softmax(logits[row])[labels[row]]). A
// logit that is NaN or plus infinity makes the mean NaN. Minus infinity at the
// label makes the mean infinite; at another class it adds nothing.
//
//   logits    float32, shape {rows, classes}
//   labels    {rows}, each in [0, classes)
//   gradient  gradient of the mean with respect to the logits: float32,
//             shape {rows, classes}; may be `logits` itself
//
// The function adds up each softmax, and the rows, in double and in order.
float SoftmaxCrossEntropy(int64_t rows, int64_t classes, const float* logits,
                          const int32_t* labels, float* gradient);

}  // namespace nereus
