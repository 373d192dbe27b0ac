#include "server/shard/copy_checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Shard 0 of a job of two servers, with chunks of layers 0, 2 and 4. Workers
// exchange layer 4 on a ring.
class CopyChecksumsTest : public testing::Test {
 protected:
  explicit CopyChecksumsTest() {
    JobOptions options;
    options.backup = true;
    options.checkpoint_every = 10;
    options.has_checkpoints = true;
    std::vector<LayerSpec> layers;
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      layers.push_back(VectorLayer(name, 2));
    }
    Job job = *TestJob(2, 2, layers, options);
    job.routes[4].scheme = Scheme::kRing;
    epoch_ = {std::make_shared<const Job>(std::move(job)),
              0,
              PeerId::Shard(0),
              {},
              false};
    checksums_.emplace(&epoch_);
    for (const Chunk& chunk : epoch_.job->placement.chunks()) {
      if (chunk.shard != 0) continue;
      held_.emplace_back().chunk = chunk;
      held_.back().Allocate(/*state_arrays=*/1);
    }
    EXPECT_THAT(held_, SizeIs(3));
  }

  // Chunk `index` reaches a round. Returns the parts whose checksums are
  // computed.
  std::vector<ChecksumValues> Reach(int index, int64_t round) {
    Outbox out;
    checksums_->Compute(index, round, held_[index], out);
    std::vector<ChecksumValues> sums;
    for (const Action& action : out.actions()) {
      sums.push_back(std::get<ChecksumValues>(action));
    }
    return sums;
  }
  std::optional<ReplicaChecksums> Answer(
      int index, const std::vector<ChecksumValues>& sums, uint32_t crc) {
    std::optional<ReplicaChecksums> all;
    for (const ChecksumValues& sum : sums) {
      EXPECT_FALSE(all.has_value());
      all = checksums_->OnChecksum(index, sum, crc++);
    }
    return all;
  }

  ShardEpoch epoch_;
  std::optional<CopyChecksums> checksums_;
  std::vector<HeldChunk> held_;
};

TEST_F(CopyChecksumsTest, AllChunksAreComparedAsOfACheckpoint) {
  EXPECT_THAT(Reach(0, 8), IsEmpty());
  const auto first = Reach(0, 9);
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(first[0].values.data(), held_[0].parameters.data());
  EXPECT_FALSE(first[0].is_state);
  EXPECT_EQ(first[1].values.data(), held_[0].state.data());
  EXPECT_TRUE(first[1].is_state);
  EXPECT_EQ(Answer(0, first, 5), std::nullopt);
  EXPECT_THAT(Reach(2, 9), IsEmpty());  // The layer is the workers'.
  const auto all = Answer(1, Reach(1, 9), 7);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->round, 9);
  EXPECT_EQ(all->shard, 0);
  EXPECT_EQ(all->first_chunk, 0);
  EXPECT_THAT(all->layers, ElementsAre(5, 6, 7, 8, 0, 0));
}

TEST_F(CopyChecksumsTest, ChunksTakeTurnsBetweenCheckpoints) {
  // Rounds that are no checkpoints: 63, 127, 191, ...
  std::vector<int> compared;
  for (int64_t round = 63; round < 12 * 64; round += 64) {
    if (epoch_.job->IsCheckpoint(round)) continue;
    const CopyChecksums::Range range = checksums_->ChunksOf(round);
    EXPECT_EQ(range.count, 1);
    compared.push_back(range.first);
    const auto all = Answer(range.first, Reach(range.first, round), 3);
    EXPECT_EQ(all.has_value(), range.first != 2);
    if (all.has_value()) {
      EXPECT_EQ(all->first_chunk, range.first);
    }
  }
  EXPECT_THAT(compared, testing::IsSupersetOf({0, 1, 2}));
}

TEST_F(CopyChecksumsTest, ChunkMayBeARoundAhead) {
  epoch_.job = EpochAfter(*epoch_.job,
                          [](Job& job) { job.options.checkpoint_every = 1; });
  const auto one = Reach(0, 20);
  const auto ahead = Reach(0, 21);
  EXPECT_EQ(Answer(0, one, 1), std::nullopt);
  EXPECT_EQ(Answer(0, ahead, 3), std::nullopt);
  EXPECT_THAT(Answer(1, Reach(1, 20), 5)->layers,
              ElementsAre(1, 2, 5, 6, 0, 0));
  EXPECT_THAT(Answer(1, Reach(1, 21), 7)->layers,
              ElementsAre(3, 4, 7, 8, 0, 0));
}

TEST_F(CopyChecksumsTest, RoundsThatStayIncompleteAreForgotten) {
  epoch_.job = EpochAfter(*epoch_.job,
                          [](Job& job) { job.options.checkpoint_every = 1; });
  const auto old = Reach(0, 20);
  for (int64_t round = 21; round < 24; ++round) Reach(0, round);
  EXPECT_EQ(Answer(0, old, 1), std::nullopt);
  EXPECT_EQ(Answer(1, Reach(1, 20), 1), std::nullopt);
}

TEST_F(CopyChecksumsTest, InitialRoundIsNotCompared) {
  EXPECT_THAT(Reach(0, kInitialRound), IsEmpty());
}

}  // namespace
}  // namespace nereus
