#include "common/protocol/replica_sample.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

Buffer Values(int64_t count) {
  Buffer values = Buffer::Allocate(count * static_cast<int64_t>(sizeof(float)));
  for (int64_t i = 0; i < count; ++i) {
    values.floats()[i] = static_cast<float>(i);
  }
  return values;
}

TEST(ReplicaSampleTest, SmallModelIsSampledWhole) {
  for (const int layers : {1, 2, kSampledLayersMax}) {
    for (int64_t round = 0; round < 5; ++round) {
      const SampledLayers sampled = SampledLayersOf(round, layers);
      EXPECT_EQ(sampled.first, 0);
      EXPECT_EQ(sampled.count, layers);
      EXPECT_TRUE(sampled.Has(0));
      EXPECT_TRUE(sampled.Has(layers - 1));
      EXPECT_FALSE(sampled.Has(layers));
    }
  }
}

TEST(ReplicaSampleTest, EachLayerOfALargeModelIsInSomeSample) {
  for (const int layers : {kSampledLayersMax + 1, 3 * kSampledLayersMax + 7}) {
    std::set<int> seen;
    for (int64_t round = 0; round < 64; ++round) {
      // Workers report rounds that are multiples of powers of two.
      const SampledLayers sampled = SampledLayersOf(round * 512, layers);
      ASSERT_GE(sampled.first, 0);
      ASSERT_GE(sampled.count, 1);
      ASSERT_LE(sampled.count, kSampledLayersMax);
      ASSERT_LE(sampled.first + sampled.count, layers);
      for (int i = 0; i < sampled.count; ++i) seen.insert(sampled.first + i);
    }
    EXPECT_EQ(std::ssize(seen), layers);
  }
}

TEST(ReplicaSampleTest, ElementsAreInTheLayerAndApart) {
  for (const int64_t elements : {1, 2, 255, 256, 257, 271, 272, 4096, 100003}) {
    for (int64_t round = 0; round < 100; ++round) {
      const SampledElements sampled = SampledElementsOf(3, round, elements);
      std::set<int64_t> seen;
      for (int run = 0; run < sampled.runs; ++run) {
        for (int64_t i = 0; i < sampled.length; ++i) {
          const int64_t at = sampled.first + run * sampled.stride + i;
          ASSERT_GE(at, 0) << elements;
          ASSERT_LT(at, elements) << elements;
          seen.insert(at);
        }
      }
      ASSERT_EQ(std::ssize(seen), sampled.count()) << elements;
      ASSERT_EQ(sampled.count(), elements < 256 ? elements : 256) << elements;
    }
  }
}

TEST(ReplicaSampleTest, EachElementIsInSomeSample) {
  for (const int64_t elements : {257, 272, 1000}) {
    std::set<int64_t> seen;
    for (int64_t round = 0; round < 2000; ++round) {
      const SampledElements sampled =
          SampledElementsOf(0, round * 1024, elements);
      for (int run = 0; run < sampled.runs; ++run) {
        for (int64_t i = 0; i < sampled.length; ++i) {
          seen.insert(sampled.first + run * sampled.stride + i);
        }
      }
    }
    EXPECT_EQ(std::ssize(seen), elements);
  }
}

// All workers of a job must look at the same elements, whatever their build.
TEST(ReplicaSampleTest, PlacesAreThoseOfThisVersionOfTheProtocol) {
  EXPECT_EQ(SampledElementsOf(0, 0, 1 << 20).first, 57875);
  EXPECT_EQ(SampledElementsOf(1, 0, 1 << 20).first, 17298);
  EXPECT_EQ(SampledElementsOf(1, 512, 1 << 20).first, 64097);
  EXPECT_EQ(SampledLayersOf(512, 10 * kSampledLayersMax).first, 768);
}

TEST(ReplicaSampleTest, ChecksumHasTheSampledElementsAndNoOthers) {
  for (const int64_t elements : {1, 256, 257, 5000}) {
    SCOPED_TRACE(absl::StrCat(elements, " elements"));
    const Buffer values = Values(elements);
    const SampledElements sampled = SampledElementsOf(2, 7, elements);
    std::set<int64_t> seen;
    for (int run = 0; run < sampled.runs; ++run) {
      for (int64_t i = 0; i < sampled.length; ++i) {
        seen.insert(sampled.first + run * sampled.stride + i);
      }
    }
    const uint32_t before = SampleChecksum(values, sampled);
    for (int64_t i = 0; i < elements; ++i) {
      const float kept = values.floats()[i];
      values.floats()[i] = kept + 0.5f;
      EXPECT_EQ(SampleChecksum(values, sampled) != before, seen.contains(i))
          << i;
      values.floats()[i] = kept;
    }
  }
}

}  // namespace
}  // namespace nereus
