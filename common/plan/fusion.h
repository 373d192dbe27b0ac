#pragma once

#include <cstdint>

namespace nereus {

// Fusion threshold: the number of bytes of gradients that a worker collects
// before it sends small layers, in [0, kFusionBytesMax]. The frames of a batch
// share messages. Sun et al., "GradientFlow", lazy all-reduce; there one fused
// operation replaces many, here one message does.
//
// kNoFusion: each frame is a message, and goes at once.
inline constexpr int64_t kNoFusion = -1;
inline constexpr int64_t kFusionBytesMax = int64_t{1} << 30;

}  // namespace nereus
