#include "common/plan/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"
#include "common/plan/scheme.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::ElementsAre;

constexpr int64_t kFull = kChunkElementsMax;

LayerSpec Fc(const std::string& name, int64_t elements) {
  return {name, LayerKind::kFullyConnected, 1, elements, elements, 1, true};
}
LayerSpec Conv(const std::string& name, int64_t elements) {
  return {name, LayerKind::kConvolution, 1, elements, elements, 1};
}

Placement Place(const std::vector<LayerSpec>& layers, int shards,
                int64_t chunk_bytes = kChunkBytesMax) {
  absl::StatusOr<Placement> placement =
      Placement::Make(layers, shards, chunk_bytes);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return *std::move(placement);
}

// Returns the largest load minus the smallest load, of the chunks for which
// `counts` is true.
template <typename Predicate>
int64_t Spread(const Placement& placement, Predicate counts) {
  std::vector<int64_t> loads(placement.shards(), 0);
  for (const Chunk& chunk : placement.chunks()) {
    if (counts(chunk)) loads[chunk.shard] += chunk.length;
  }
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  return *most - *least;
}

// Checks all promises of Placement for `layers`, with chunks that fit.
void CheckPlacement(const std::vector<LayerSpec>& layers, int shards) {
  const Placement placement = Place(layers, shards, kChunkAuto);
  const int64_t bytes = FittingChunkBytes(layers, shards);
  const int64_t full = bytes / 4;
  ASSERT_EQ(placement.layers(), static_cast<int>(layers.size()));
  ASSERT_EQ(placement.shards(), shards);

  size_t next = 0;
  std::vector<int64_t> loads(shards, 0);
  for (int layer = 0; layer < placement.layers(); ++layer) {
    int64_t offset = 0;
    int32_t index = 0;
    for (const Chunk& chunk : placement.layer_chunks(layer)) {
      ASSERT_EQ(chunk, placement.chunks()[next++]);
      ASSERT_EQ(chunk.layer, layer);
      ASSERT_EQ(chunk.index, index++);
      ASSERT_EQ(chunk.offset, offset);
      ASSERT_GE(chunk.length, 1);
      ASSERT_LE(chunk.length, full);
      ASSERT_GE(chunk.shard, 0);
      ASSERT_LT(chunk.shard, shards);
      offset += chunk.length;
      loads[chunk.shard] += chunk.length;
    }
    ASSERT_EQ(offset, layers[layer].parameters);
    ASSERT_EQ(index, (4 * layers[layer].parameters + bytes - 1) / bytes);
  }
  ASSERT_EQ(next, placement.chunks().size());
  for (int shard = 0; shard < shards; ++shard) {
    ASSERT_EQ(placement.shard_elements(shard), loads[shard]);
  }
  EXPECT_LE(Spread(placement, [](const Chunk&) { return true; }), full);
  EXPECT_LE(Spread(placement,
                   [&](const Chunk& chunk) {
                     return !SupportsScheme(layers[chunk.layer],
                                            Scheme::kFactor);
                   }),
            full);
}

TEST(PlacementTest, LayersAreCutIntoFullChunksAndARest) {
  const struct {
    int64_t elements;
    std::vector<int64_t> lengths;
  } kCases[] = {
      {1, {1}},
      {kFull - 1, {kFull - 1}},
      {kFull, {kFull}},
      {kFull + 1, {kFull, 1}},
      {3 * kFull, {kFull, kFull, kFull}},
      {2 * kFull + 5, {kFull, kFull, 5}},
  };
  for (const auto& c : kCases) {
    const Placement placement = Place({Conv("conv", c.elements)}, 1);
    std::vector<int64_t> lengths;
    for (const Chunk& chunk : placement.chunks()) {
      lengths.push_back(chunk.length);
    }
    EXPECT_EQ(lengths, c.lengths) << c.elements;
  }
}

TEST(PlacementTest, ChunksFitTheModelAndItsServers) {
  constexpr int64_t kKiB = 256;  // Elements.
  constexpr int64_t kMiB = 1024 * kKiB;
  const struct {
    int64_t elements;
    int shards;
    int64_t chunk_kib;
  } kCases[] = {
      {1, 1, 256},
      {16 * kMiB - 1, 1, 256},  // A 32nd of the load is below two frames.
      {16 * kMiB, 1, 512},
      {16 * kMiB, 4, 256},
      {100 * kMiB, 4, 768},  // 800 KiB, in whole frames.
      {64 * kMiB, 1, 2048},
      {1024 * kMiB, 1, 2048},
      {1024 * kMiB, 1000, 256},  // 4,096 chunks.
      {2048 * kMiB, 1000, 512},
      {2048 * kMiB + 1, 1000, 512},
      {16384 * kMiB, 1000, 2048},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(FittingChunkBytes({Conv("conv", c.elements)}, c.shards),
              c.chunk_kib * 1024)
        << c.elements << " elements, " << c.shards << " shards";
  }
}

TEST(PlacementTest, ChunksArePlacedInTheDocumentedOrder) {
  // Layers without factors go first (b, d), larger chunks first, then by layer
  // and index. Each chunk goes to the least loaded shard; the lowest index wins
  // a tie.
  const Placement placement = Place(
      {Fc("a", kFull + 10), Conv("b", 100), Fc("c", kFull), Conv("d", 300)}, 2);
  EXPECT_THAT(placement.chunks(),
              ElementsAre(Chunk{0, 0, 0, kFull, 1},   // After d and b: 100.
                          Chunk{0, 1, kFull, 10, 1},  // kFull + 100 is less.
                          Chunk{1, 0, 0, 100, 1},     // After d: 300, 0.
                          Chunk{2, 0, 0, kFull, 0},   // 300 is less.
                          Chunk{3, 0, 0, 300, 0}));   // First.
  EXPECT_EQ(placement.shard_elements(0), kFull + 300);
  EXPECT_EQ(placement.shard_elements(1), kFull + 110);
  EXPECT_THAT(placement.layer_chunks(2), ElementsAre(Chunk{2, 0, 0, kFull, 0}));
}

TEST(PlacementTest, KnownModelsAreBalanced) {
  for (const std::string& model : ModelNames()) {
    for (const int shards : {1, 2, 3, 4, 8, 16, 32, 100}) {
      SCOPED_TRACE(testing::Message() << model << ", shards " << shards);
      ASSERT_NO_FATAL_FAILURE(CheckPlacement(*LoadModel(model, 1), shards));
    }
  }
}

TEST(PlacementTest, RandomModelsAreBalanced) {
  for (const uint64_t seed : TestSeeds(300)) {
    SCOPED_TRACE(ReplayHint(seed));
    std::mt19937_64 random(seed);
    std::vector<LayerSpec> layers(1 + random() % 30);
    for (size_t i = 0; i < layers.size(); ++i) {
      // Layers have 1 element to 16 chunks; each factor of two is equally
      // likely.
      const auto elements = static_cast<int64_t>(
          1 + random() % (uint64_t{1} << (1 + random() % 23)));
      const std::string name = std::to_string(i);
      layers[i] = random() % 2 == 0 ? Fc(name, elements) : Conv(name, elements);
    }
    ASSERT_NO_FATAL_FAILURE(
        CheckPlacement(layers, static_cast<int>(1 + random() % 40)));
  }
}

TEST(PlacementTest, BadArgumentsAreRefused) {
  const std::vector<LayerSpec> layers = {Conv("a", 3)};
  for (const int64_t shards : {int64_t{0}, int64_t{-1}, kServersMax + 1}) {
    const absl::Status status =
        Placement::Make(layers, static_cast<int>(shards)).status();
    EXPECT_THAT(status,
                IsInvalidArgument("shards is " + std::to_string(shards)));
  }
  for (const int64_t bytes : {kChunkBytesMin - 1, kChunkBytesMax + 1}) {
    EXPECT_THAT(Placement::Make(layers, 1, bytes).status(),
                IsInvalidArgument("chunk_bytes is " + std::to_string(bytes)));
  }
  EXPECT_EQ(Placement::Make({}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  // A model of impossible size is refused before its chunks are cut.
  EXPECT_EQ(Placement::Make({Conv("a", int64_t{1} << 62)}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A job learns rows, and loses factors, while parameters are on the servers.
TEST(PlacementTest, RowsDoNotMoveChunks) {
  std::vector<LayerSpec> layers = {
      {"fc1", LayerKind::kFullyConnected, 1000, 1000, 1000000, 32, true},
      {"conv", LayerKind::kConvolution, 3000, 1000, 3000000, 32},
      {"fc2", LayerKind::kFullyConnected, 1000, 2000, 2000000, 32, true}};
  const auto before = Placement::Make(layers, 3);
  ASSERT_TRUE(before.ok()) << before.status();
  layers[0].rows = kRowsNotKnown;
  layers[2].rows = kFactorsLost;
  const auto after = Placement::Make(layers, 3);
  ASSERT_TRUE(after.ok()) << after.status();
  ASSERT_EQ(before->chunks().size(), after->chunks().size());
  for (size_t i = 0; i < before->chunks().size(); ++i) {
    EXPECT_EQ(before->chunks()[i], after->chunks()[i]);
  }
}

}  // namespace
}  // namespace nereus
