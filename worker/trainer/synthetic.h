#pragma once

#include <cstdint>

#include "worker/trainer/dataset.h"

namespace nereus {

// `count` images, 28x28, of the digits 0 to 9 as a seven-segment display shows
// them, for those who have no data at hand. Place, size, slant, thickness,
// contrast and noise are drawn for each image, and some segments are displaced,
// so that digits overlap from image to image and no single pixel tells them
// apart: a network with convolutions learns them in a few epochs, a linear
// classifier stays well below.
//
// The same bits for the same seed on every machine; the first images of a
// longer set are those of a shorter one. Classes are drawn at random too.
Dataset GenerateSynthetic(uint64_t seed, int64_t count);

}  // namespace nereus
