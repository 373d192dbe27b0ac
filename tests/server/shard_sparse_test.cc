// Rounds of which only some blocks travel, on a shard.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/crc32c.h"
#include "common/compute/blocks.h"
#include "server/shard/shard.h"
#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Layer 1 comes first in the blocks' order: one of 256 and 44 values of the
// next, of which layer 0 has the rest.
constexpr int64_t kFirst = 600;   // Frames of 212, 256 and 132.
constexpr int64_t kSecond = 300;  // 256 and 44.

JobOptions SparseOptions(float momentum = 0.0f) {
  JobOptions options = PlainSgd();
  options.sparsity.share = 0.5;
  options.sparsity.block_elements = 256;
  options.sparsity.dense_steps = 0;
  options.optimizer.momentum = momentum;
  return options;
}

JobPtr SparseJob(int workers, JobOptions options = SparseOptions()) {
  return TestJob(workers, 1,
                 {VectorLayer("a", kFirst), VectorLayer("b", kSecond)},
                 options);
}

// A contribution to layer 0: `value` everywhere in these frames; true: it was
// held back before.
std::vector<Frame> Contribution(const Job& job, int rank, int64_t round,
                                const std::map<int64_t, bool>& chosen,
                                float value,
                                FrameKind kind = FrameKind::kContribution) {
  const Chunk& chunk = job.placement.layer_chunks(0)[0];
  const FrameGrid grid = job.GridOf(chunk);
  std::vector<Frame> frames;
  FrameHeader header = MakeHeader(job, PeerId::Worker(rank), kind, 0, 0, round);
  header.wire = job.WireOf(header);
  header.frames = static_cast<uint16_t>(chosen.size());
  for (const auto& [index, resumed] : chosen) {
    header.part = resumed ? kResumedPart : kValuesPart;
    Frame frame = {CutHeader(job, header, grid, index),
                   FloatBuffer(std::vector<float>(grid.Length(index), value))};
    frame.header.payload_crc = Crc32c(
        frame.payload.data(), static_cast<size_t>(frame.payload.bytes()));
    frames.push_back(std::move(frame));
  }
  if (frames.empty()) frames.push_back({header, Buffer()});
  return frames;
}

class ShardSparseTest : public testing::Test {
 protected:
  explicit ShardSparseTest(JobPtr job = SparseJob(2))
      : driver_(std::move(job)) {
    driver_.Contribute(0, kInitialRound, std::vector<float>(kFirst, 0.0f));
  }

  Effects Push(int rank, int64_t round, const std::map<int64_t, bool>& chosen,
               float value) {
    return driver_.Send(
        Contribution(driver_.job(), rank, round, chosen, value));
  }
  // Both workers push as much; what went out.
  Effects PushBoth(int64_t round, const std::map<int64_t, bool>& chosen,
                   float value) {
    EXPECT_THAT(Push(0, round, chosen, value).sent, IsEmpty());
    return Push(1, round, chosen, value);
  }
  std::string Refusal(const Frame& frame) {
    const auto delivery = Deliver(driver_.shard(), frame.header.sender, frame);
    EXPECT_EQ(delivery.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(delivery.status().message());
  }
  // The first values of the three frames.
  std::vector<float> Parameters() const {
    const float* values =
        driver_.shard().chunk(0, 0).held().parameters.floats();
    return {values[0], values[212], values[468]};
  }
  static std::vector<uint32_t> Offsets(const Effects& effects) {
    std::vector<uint32_t> offsets;
    for (const auto& sent : effects.sent) {
      offsets.push_back(sent.frame.header.offset);
    }
    return offsets;
  }

  ShardDriver driver_;
};

TEST_F(ShardSparseTest, ChunksAreCutAtTheBlocksBoundaries) {
  const FrameGrid first =
      driver_.job().GridOf(driver_.job().placement.layer_chunks(0)[0]);
  EXPECT_EQ(first.Count(), 3);
  EXPECT_EQ(first.Length(0), 212);
  EXPECT_EQ(first.Length(1), 256);
  EXPECT_EQ(first.Length(2), 132);
  EXPECT_EQ(
      driver_.job().FirstBlock(driver_.job().placement.layer_chunks(0)[0]), 1);
  const FrameGrid second =
      driver_.job().GridOf(driver_.job().placement.layer_chunks(1)[0]);
  EXPECT_EQ(second.Count(), 2);
  EXPECT_EQ(second.Length(0), 256);
  EXPECT_EQ(second.Length(1), 44);
  EXPECT_EQ(driver_.job().block_count(), 4);
}

TEST_F(ShardSparseTest, ChosenBlocksAreUpdatedAndSentBack) {
  const Effects effects = PushBoth(0, {{0, false}, {2, false}}, 3.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-3, 0, -3));
  EXPECT_THAT(Offsets(effects), ElementsAre(0, 468));
  EXPECT_EQ(driver_.shard().chunk(0, 0).round(), 1);
}

TEST_F(ShardSparseTest, EmptyFrameClosesARoundWithoutBlocks) {
  const Effects effects = PushBoth(0, {}, 0.0f);
  ASSERT_THAT(effects.sent, SizeIs(1));
  EXPECT_EQ(effects.sent[0].frame.payload.bytes(), 0);
  EXPECT_EQ(driver_.shard().chunk(0, 0).round(), 1);
  EXPECT_THAT(Parameters(), Each(0.0f));
}

TEST_F(ShardSparseTest, BlocksOfAnotherChoiceAreRefused) {
  Push(0, 0, {{0, false}, {1, true}}, 1.0f);
  const auto refusal = [&](const std::map<int64_t, bool>& chosen, int frame) {
    return Refusal(Contribution(driver_.job(), 1, 0, chosen, 1.0f)[frame]);
  };
  EXPECT_THAT(
      refusal({}, 0),
      HasSubstr(
          "the frame count is 0, in earlier frames of the round it was 2"));
  EXPECT_THAT(
      refusal({{0, false}}, 0),
      HasSubstr(
          "the frame count is 1, in earlier frames of the round it was 2"));
  EXPECT_THAT(refusal({{0, false}, {2, false}}, 1),
              HasSubstr("the round already has 2 frames of other blocks"));
  EXPECT_THAT(
      refusal({{0, true}, {1, true}}, 0),
      HasSubstr(
          "the part is 1, another contributor sent this frame with part 0"));
  // A frame of a worker that has sent all of its frames.
  EXPECT_THAT(Refusal(Contribution(driver_.job(), 0, 0, {{1, true}, {2, false}},
                                   1.0f)[1]),
              HasSubstr("all 2 frames of this contributor have arrived"));
  // The others go on.
  EXPECT_THAT(Push(1, 0, {{0, false}, {1, true}}, 1.0f).sent, SizeIs(2));
}

// That holds too if no worker has sent all of its frames.
TEST_F(ShardSparseTest, ContributionsOfDifferentBlocksAreNotMixed) {
  const auto frames = [&](int rank, const std::map<int64_t, bool>& chosen) {
    return Contribution(driver_.job(), rank, 0, chosen, 1.0f);
  };
  driver_.Send({frames(0, {{0, false}, {2, false}})[0]});
  driver_.Send({frames(1, {{1, false}, {2, false}})[0]});
  EXPECT_THAT(Refusal(frames(0, {{0, false}, {2, false}})[1]),
              HasSubstr("the round already has 2 frames of other blocks"));
}

// Header of the only frame of a contribution, which an edit spoils.
struct Contradiction {
  const char* name;
  std::map<int64_t, bool> chosen;
  std::function<void(FrameHeader&)> edit;
  const char* message;
};

class ShardSparseHeaderTest
    : public ShardSparseTest,
      public testing::WithParamInterface<Contradiction> {};

TEST_P(ShardSparseHeaderTest, ContradictionIsRefused) {
  Frame frame = Contribution(driver_.job(), 0, 0, GetParam().chosen, 1.0f)[0];
  GetParam().edit(frame.header);
  EXPECT_THAT(Refusal(frame), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardSparseHeaderTest,
    testing::Values(Contradiction{"ValuesOfNoFrame",
                                  {{0, false}},
                                  [](auto& h) { h.frames = 0; },
                                  "the frame count is 0, must be from 1 to 3"},
                    Contradiction{"MoreFramesThanBlocks",
                                  {{0, false}},
                                  [](auto& h) { h.frames = 4; },
                                  "the frame count is 4, must be from 1 to 3"},
                    Contradiction{"UnknownPart",
                                  {{0, false}},
                                  [](auto& h) { h.part = kResumedPart + 1; },
                                  "the frame count is 1, must be from 1 to 3"},
                    Contradiction{"FrameWithoutValues",
                                  {},
                                  [](auto& h) { h.frames = 1; },
                                  "the frame count is 1, must be from 1 to 3"},
                    Contradiction{"OffsetBetweenBlocks",
                                  {{1, false}},
                                  [](auto& h) { h.offset = 256; },
                                  "a multiple of 256 less 44"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ShardDenseTest, DenseRoundHasAllFrames) {
  const JobPtr job = TestJob(1, 1, {VectorLayer("a", 5)});
  Shard shard(job, 0);
  Frame frame = FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution, 0,
                         0, kInitialRound, std::vector<float>(5, 1.0f))[0];
  frame.header.frames = 1;
  const auto delivery = Deliver(shard, PeerId::Worker(0), frame);
  EXPECT_THAT(std::string(delivery.status().message()),
              HasSubstr("the frame count is 1, must be 0"));
}

class ShardMomentumTest : public ShardSparseTest {
 protected:
  ShardMomentumTest() : ShardSparseTest(SparseJob(2, SparseOptions(0.5f))) {}
};

// A block that was held back brings its momentum, and has none afterwards.
TEST_F(ShardMomentumTest, BlockThatWasHeldBackRestartsItsMomentum) {
  PushBoth(0, {{0, false}, {1, false}, {2, false}}, 4.0f);
  EXPECT_THAT(Parameters(), Each(-4.0f));
  PushBoth(1, {{0, false}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-4 - (4 + 2), -4, -4));
  PushBoth(2, {{0, false}, {1, true}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-10 - (4 + 3), -8, -4));
  PushBoth(3, {{1, false}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-17, -12, -4));
  PushBoth(4, {{1, false}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-17, -12 - (4 + 2), -4));
}

// A worker that asks for a round again may have begun it with another choice.
TEST_F(ShardSparseTest, RoundClosedInAnEarlierEpochIsAnsweredWithAllValues) {
  PushBoth(0, {{1, false}}, 3.0f);
  driver_.Enter();
  const Frame question = driver_.PullOf(1, 0);
  const Effects again = driver_.Send({question});
  EXPECT_THAT(Offsets(again), ElementsAre(0, 212, 468, 0));
  EXPECT_EQ(again.sent.back().frame.payload.bytes(), 0);
  EXPECT_THAT(Parameters(), ElementsAre(0, -3, 0));
  // Once; and the worker's contribution does not count.
  EXPECT_THAT(Push(1, 0, {{2, true}}, 9.0f).sent, IsEmpty());
  EXPECT_THAT(driver_.Send({question}).sent, IsEmpty());
}

// A worker may be done with a step, and leave, before all norms are there.
TEST_F(ShardSparseTest, BlockLayerDoesNotCountForTheClosedRound) {
  for (const auto& [layer, elements] :
       {std::pair{1, kSecond}, std::pair{2, int64_t{4}}}) {
    driver_.Contribute(0, kInitialRound,
                       std::vector<float>(elements, kFirstChoice), layer);
  }
  PushBoth(0, {}, 0.0f);
  for (const int rank : {0, 1}) {
    FrameHeader none = MakeHeader(driver_.job(), PeerId::Worker(rank),
                                  FrameKind::kContribution, 1, 0, 0);
    none.wire = driver_.job().WireOf(none);
    driver_.Send({{none, Buffer()}});
  }
  EXPECT_EQ(driver_.shard().chunk(2, 0).round(), 0);
  EXPECT_EQ(driver_.shard().closed_round(), 0);
}

// All workers that were to choose the blocks of round 1 are gone. They had done
// step 0 of layer 0.
TEST_F(ShardSparseTest, ChoiceStaysIfAllItsWorkersAreGone) {
  const std::vector<float> choice = {1, 1, 0, 1};
  driver_.Contribute(0, kInitialRound, choice, /*layer=*/2);
  EXPECT_EQ(driver_.shard().chunk(2, 0).round(), 0);
  PushBoth(0, {}, 0.0f);
  driver_.Enter([](Job& job) {
    job.workers = {{2, 1}};
    job.history.first_step = 1;
  });
  const Effects effects = driver_.Pull(2, 0, /*layer=*/2);
  ASSERT_THAT(effects.sent, SizeIs(1));
  EXPECT_EQ(FloatsOf(effects.sent[0].frame.payload), choice);
  // Whether the model's chunks are at that round is another matter.
  EXPECT_EQ(driver_.shard().closed_round(), kInitialRound);
}

TEST_F(ShardSparseTest, ChoiceIsByTheSumOfAllNorms) {
  const auto norms = [&](int rank, const std::vector<float>& values,
                         int64_t round) {
    return driver_.Contribute(rank, round, values, /*layer=*/2);
  };
  norms(0, std::vector<float>(4, kFirstChoice), kInitialRound);
  norms(0, {5, 0, 3, 0}, 0);
  const Effects effects = norms(1, {0, 4, 3, 0}, 0);
  // 5, 4, 6, 0: two of four.
  EXPECT_THAT(FloatsOf(effects.sent[0].frame.payload), ElementsAre(1, 0, 1, 0));
}

}  // namespace
}  // namespace nereus
