#pragma once

#include <cstdint>

#include "common/tensor/buffer.h"

namespace nereus {

// Samples by which the coordinator compares replicas about once a second. A
// checksum of all parameters would read gigabytes each time. All workers take
// the same sample of a round, because it follows from the round alone.

// Number of rounds from one comparison of the servers' copies of a shard to the
// next (CopyChecksums). Each such comparison has one chunk of the shard.
inline constexpr int64_t kCopyCheckRounds = 64;

// Largest number of layers in one sample. It bounds the time that a sample
// takes, and the coordinator's work: 1 KiB from each worker about once a
// second.
inline constexpr int kSampledLayersMax = 256;
// Largest number of runs of elements in the sample of one layer, and the length
// of a run. A run is a cache line: to read it takes as long as to read one of
// its elements.
inline constexpr int kSampledRuns = 16;
inline constexpr int64_t kSampledRunElements = 16;

// Layers of a sample: `count` layers from `first`.
struct SampledLayers {
  int first = 0;
  int count = 0;

  bool Has(int layer) const { return layer >= first && layer < first + count; }
};

// Elements of a layer that a sample has: `runs` runs of `length` elements each.
// The first run begins at element `first`, and each other run `stride` elements
// after the run before it.
struct SampledElements {
  int64_t first = 0;
  int64_t stride = 0;
  int64_t length = 0;
  int runs = 0;

  int64_t count() const { return runs * length; }
};

// Returns the layers of the sample of `round`, of a model with `layers` layers:
// all of them, or kSampledLayersMax of them, or fewer at the end of the model.
// REQUIRES: layers > 0.
SampledLayers SampledLayersOf(int64_t round, int layers);

// Returns the elements that the sample of `round` has of `layer`, which has
// `elements` elements. A layer of at most 256 elements is sampled whole. Of a
// larger layer the sample has one run in each sixteenth, at a place that
// follows from layer and round by a hash: over the rounds, each element is in
// some sample.
SampledElements SampledElementsOf(int layer, int64_t round, int64_t elements);

// Returns the CRC-32C of the sampled elements of `values`, float32, the whole
// layer in host memory, in their order.
uint32_t SampleChecksum(const Buffer& values, const SampledElements& sampled);

}  // namespace nereus
