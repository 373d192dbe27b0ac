#include "worker/trainer/loss.h"

#include <algorithm>
#include <cmath>

namespace nereus {

float SoftmaxCrossEntropy(int64_t rows, int64_t classes, const float* logits,
                          const int32_t* labels, float* gradient) {
  double total = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = logits + row * classes;
    float* out = gradient + row * classes;
    // Subtracts the largest logit: exp overflows for values from 89 on.
    const float largest = *std::max_element(in, in + classes);
    const double label_logit = in[labels[row]];
    double sum = 0.0;
    for (int64_t i = 0; i < classes; ++i) {
      out[i] = std::exp(in[i] - largest);
      sum += out[i];
    }
    total += std::log(sum) - (label_logit - largest);
    // Divides by `rows`, too, because the gradient is that of the mean.
    const float scale = static_cast<float>(1.0 / (sum * rows));
    for (int64_t i = 0; i < classes; ++i) out[i] *= scale;
    out[labels[row]] -= 1.0f / static_cast<float>(rows);
  }
  return static_cast<float>(total / static_cast<double>(rows));
}

}  // namespace nereus
