#include "common/protocol/replica_sample.h"

#include <algorithm>

#include "common/base/crc32c.h"
#include "common/base/random.h"

namespace nereus {
namespace {

// Odd constants that keep the seeds of layers and of rounds apart.
constexpr uint64_t kRoundFactor = 0xd6e8feb86659fd93;
constexpr uint64_t kLayerFactor = 0xa0761d6478bd642f;

}  // namespace

SampledLayers SampledLayersOf(int64_t round, int layers) {
  if (layers <= kSampledLayersMax) return {0, layers};
  const int parts = (layers - 1) / kSampledLayersMax + 1;
  Random random(static_cast<uint64_t>(round) * kRoundFactor);
  const int first =
      static_cast<int>(random.Below(static_cast<uint64_t>(parts))) *
      kSampledLayersMax;
  return {first, std::min(kSampledLayersMax, layers - first)};
}

// The last sixteenth is a little longer if the layer is no multiple of 16. The
// first element may be so late that a run of the last sixteenth ends the layer.
SampledElements SampledElementsOf(int layer, int64_t round, int64_t elements) {
  if (elements <= kSampledRuns * kSampledRunElements) {
    return {0, elements, elements, 1};
  }
  const int64_t stride = elements / kSampledRuns;
  const int64_t places =
      elements - (kSampledRuns - 1) * stride - kSampledRunElements + 1;
  Random random(static_cast<uint64_t>(round) * kRoundFactor +
                static_cast<uint64_t>(layer) * kLayerFactor);
  const auto first =
      static_cast<int64_t>(random.Below(static_cast<uint64_t>(places)));
  return {first, stride, kSampledRunElements, kSampledRuns};
}

uint32_t SampleChecksum(const Buffer& values, const SampledElements& sampled) {
  uint32_t crc = 0;
  for (int run = 0; run < sampled.runs; ++run) {
    crc = ExtendCrc32c(crc,
                       values.floats() + sampled.first + run * sampled.stride,
                       static_cast<size_t>(sampled.length) * sizeof(float));
  }
  return crc;
}

}  // namespace nereus
