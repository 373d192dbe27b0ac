#include "common/compute/blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace nereus {
namespace {

// Number of partial sums. No partial sum depends on another one, so the loop
// runs in vectors; the order of additions stays fixed.
constexpr int64_t kLanes = 16;

// Adds up the partial sums, first to last.
float Fold(const float* lanes) {
  return std::accumulate(lanes, lanes + kLanes, 0.0f);
}

}  // namespace

void ChooseBlocks(int64_t count, int64_t blocks, const float* norms,
                  const float* before, float* after) {
  std::vector<int64_t> order(blocks);
  std::iota(order.begin(), order.end(), int64_t{0});
  // Treats a NaN as infinity: nth_element needs an order, and a NaN has none.
  const auto norm = [&](int64_t block) {
    return std::isnan(norms[block]) ? std::numeric_limits<float>::infinity()
                                    : norms[block];
  };
  std::nth_element(order.begin(), order.begin() + count, order.end(),
                   [&](int64_t a, int64_t b) {
                     return norm(a) != norm(b) ? norm(a) > norm(b) : a < b;
                   });
  std::vector<bool> chosen(blocks, false);
  for (int64_t i = 0; i < count; ++i) chosen[order[i]] = true;
  for (int64_t block = 0; block < blocks; ++block) {
    // Number of rounds in a row in which the block was held back, up to and
    // including the last round.
    const float waited = Travels(before[block]) ? 0 : 1 - before[block];
    after[block] =
        std::min(waited, kChoiceMax) * (chosen[block] ? 1.0f : -1.0f) +
        (chosen[block] ? 1.0f : 0.0f);
  }
}

float SumOfAbsolutes(int64_t length, const float* values) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= length; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += std::fabs(values[i + lane]);
    }
  }
  for (; i < length; ++i) sums[0] += std::fabs(values[i]);
  return Fold(sums);
}

// __restrict tells the compiler that the arrays do not overlap, so that it can
// use vectors. The bits are those without vectors.
float HoldBack(float momentum, float weight_decay, bool first, int64_t length,
               const float* __restrict gradient,
               const float* __restrict parameters, float* __restrict velocity,
               float* __restrict held) {
  for (int64_t i = 0; i < length; ++i) {
    const float decayed = gradient[i] + weight_decay * parameters[i];
    velocity[i] = first ? decayed : momentum * velocity[i] + decayed;
    held[i] = first ? decayed : held[i] + velocity[i];
  }
  return SumOfAbsolutes(length, held);
}

void ReleaseHeld(float momentum, int64_t length,
                 const float* __restrict velocity, const float* __restrict held,
                 float* __restrict gradient) {
  for (int64_t i = 0; i < length; ++i) {
    gradient[i] = held[i] + (momentum * velocity[i] + gradient[i]);
  }
}

void SplitPieces(const BlockPieces& pieces, float momentum, float weight_decay,
                 const PieceUse* uses, const float* parameters, float* gradient,
                 float* velocity, float* held, float* norms) {
  for (int64_t k = 0; k < pieces.Count(); ++k) {
    const int64_t begin = pieces.Begin(k);
    const int64_t length = pieces.End(k) - begin;
    if (!Travels(uses[k])) {
      norms[k] += HoldBack(
          momentum, weight_decay, uses[k] == PieceUse::kHeldFirst, length,
          gradient + begin, parameters + begin, velocity + begin, held + begin);
      continue;
    }
    norms[k] += SumOfAbsolutes(length, gradient + begin);
    if (uses[k] == PieceUse::kResumes) {
      ReleaseHeld(momentum, length, velocity + begin, held + begin,
                  gradient + begin);
    }
  }
}

}  // namespace nereus
