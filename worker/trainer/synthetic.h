#pragma once

#include <cstdint>

#include "worker/trainer/dataset.h"

namespace nereus {

// Returns `count` generated images, 28x28, of the digits 0 to 9 on a
// seven-segment display: training data for a first try. Place, size, slant,
// thickness, contrast and noise vary from image to image, and segments are
// displaced. So no single pixel tells the digits apart. A network with
// convolutions learns them in a few passes through the images; a linear
// classifier is much worse.
//
// Equal seeds give equal bits on every computer. The images of a smaller set
// are the first images of a larger one. Which digit an image shows is random,
// too.
Dataset GenerateSynthetic(uint64_t seed, int64_t count);

}  // namespace nereus
