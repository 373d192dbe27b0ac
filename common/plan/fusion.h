#pragma once

#include <cstdint>

namespace nereus {

// Small frames share messages, and a worker holds layers back until so many
// bytes of gradients can go at once (GradientFlow's lazy all-reduce): 0 to
// kFusionBytesMax, or kNoFusion: each frame is a message, and goes at once.
inline constexpr int64_t kNoFusion = -1;
inline constexpr int64_t kFusionBytesMax = int64_t{1} << 30;

}  // namespace nereus
