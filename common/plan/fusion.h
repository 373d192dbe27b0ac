#pragma once

#include <cstdint>

namespace nereus {

// Fusion threshold: the number of bytes of gradients that a worker collects
// before it sends them, in [0, kFusionBytesMax]. The frames of layers that are
// sent together share messages: they leave in one system call. The idea is lazy
// all-reduce (Sun et al., "GradientFlow"). In the paper, one fused operation
// replaces many; here, one message replaces many.
//
// With the threshold kNoFusion, each frame is a message of its own, and no
// layer waits.
inline constexpr int64_t kNoFusion = -1;
inline constexpr int64_t kFusionBytesMax = int64_t{1} << 30;

}  // namespace nereus
