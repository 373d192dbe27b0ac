#include "common/compute/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::ElementsAre;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Choose(int64_t count, const std::vector<float>& norms,
                          std::vector<float> before) {
  ChooseBlocks(count, std::ssize(norms), norms.data(), before.data(),
               before.data());
  return before;
}

std::vector<float> First(int64_t blocks) {
  return std::vector<float>(blocks, kFirstChoice);
}

TEST(BlocksTest, LargestBlocksTravelAndTheFirstOfEqualBlocks) {
  EXPECT_THAT(Choose(2, {1, 5, 3, 5, 4}, First(5)), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(Choose(3, {2, 2, 2, 2, 2}, First(5)), ElementsAre(1, 1, 1, 0, 0));
  EXPECT_THAT(Choose(0, {1, 2}, First(2)), ElementsAre(0, 0));
  EXPECT_THAT(Choose(2, {0, 0}, First(2)), ElementsAre(1, 1));
}

TEST(BlocksTest, NanNormCountsAsTheLargest) {
  EXPECT_THAT(Choose(2, {9, kNaN, 3, kNaN}, First(4)), ElementsAre(0, 1, 0, 1));
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Choose(1, {infinity, kNaN}, First(2)), ElementsAre(1, 0));
}

TEST(BlocksTest, ChoiceCountsTheRoundsThatABlockHasWaited) {
  std::vector<float> choice = First(2);
  const std::vector<float> first_is_large = {2, 1};
  const std::vector<float> second_is_large = {1, 2};
  choice = Choose(1, first_is_large, choice);
  EXPECT_THAT(choice, ElementsAre(1, 0));
  EXPECT_FALSE(Travels(choice[1]));
  choice = Choose(1, first_is_large, choice);
  EXPECT_THAT(choice, ElementsAre(1, -1));
  choice = Choose(1, first_is_large, choice);
  EXPECT_THAT(choice, ElementsAre(1, -2));
  choice = Choose(1, second_is_large, choice);
  // The block was last sent four rounds ago.
  EXPECT_THAT(choice, ElementsAre(0, 4));
  EXPECT_TRUE(Travels(choice[1]));
  EXPECT_TRUE(Resumes(choice[1]));
  choice = Choose(1, second_is_large, choice);
  EXPECT_THAT(choice, ElementsAre(-1, 1));
  EXPECT_FALSE(Resumes(choice[1]));
  choice = Choose(2, second_is_large, choice);
  EXPECT_THAT(choice, ElementsAre(3, 1));
}

TEST(BlocksTest, ChoiceCountsWaitingUpToABound) {
  std::vector<float> choice = {-kChoiceMax, kChoiceMax + 1};
  choice = Choose(0, {1, 1}, choice);
  EXPECT_THAT(choice, ElementsAre(-kChoiceMax, 0));
  choice = Choose(1, {1, 0}, choice);
  EXPECT_TRUE(Resumes(choice[0]));
}

TEST(BlocksTest, AbsoluteSumIsRightForEachLength) {
  for (const int64_t length : {0, 1, 15, 16, 17, 1000}) {
    std::vector<float> values(length);
    float expected = 0;
    for (int64_t i = 0; i < length; ++i) {
      values[i] = static_cast<float>((i % 7) - 3);
      expected += std::abs(values[i]);
    }
    EXPECT_EQ(SumOfAbsolutes(length, values.data()), expected) << length;
  }
}

// The gradient held back over some rounds moves the parameters as far as sgd
// with momentum would have moved them in these rounds, starting at rest. The
// reference computes in double.
TEST(BlocksTest, HeldGradientsMoveParametersLikeMomentum) {
  constexpr int64_t kLength = 37;
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const float momentum = static_cast<float>(random.Uniform());
    const float decay = random.Chance(0.5) ? 0.01f : 0.0f;
    const int rounds = 1 + static_cast<int>(random.Below(12));
    std::vector<float> parameters(kLength);
    // Old contents must not matter.
    std::vector<float> velocity(kLength, kNaN);
    std::vector<float> held(kLength, kNaN);
    std::vector<double> moves(kLength, 0);
    std::vector<double> velocities(kLength, 0);
    for (float& value : parameters) {
      value = static_cast<float>(random.Uniform() - 0.5);
    }
    float norm = 0;
    for (int round = 0; round < rounds; ++round) {
      std::vector<float> gradient(kLength);
      for (int64_t i = 0; i < kLength; ++i) {
        gradient[i] = static_cast<float>(random.Uniform() - 0.5);
        velocities[i] = momentum * velocities[i] + gradient[i] +
                        static_cast<double>(decay) * parameters[i];
        moves[i] += velocities[i];
      }
      norm = HoldBack(momentum, decay, round == 0, kLength, gradient.data(),
                      parameters.data(), velocity.data(), held.data());
    }
    double expected_norm = 0;
    for (int64_t i = 0; i < kLength; ++i) {
      EXPECT_NEAR(held[i], moves[i], 1e-4);
      EXPECT_NEAR(velocity[i], velocities[i], 1e-5);
      expected_norm += std::abs(moves[i]);
    }
    EXPECT_NEAR(norm, expected_norm, 1e-2);
  }
}

TEST(BlocksTest, EachPieceIsSplitByItsUse) {
  // Pieces of 3, 4, 4, 4 and 2 values.
  const BlockPieces pieces{17, 4, 1};
  const std::vector<PieceUse> uses = {PieceUse::kTravels, PieceUse::kResumes,
                                      PieceUse::kHeld, PieceUse::kHeldFirst,
                                      PieceUse::kTravels};
  const std::vector<float> parameters(17, 10.0f);
  std::vector<float> gradient(17, -2.0f);
  std::vector<float> velocity(17, 4.0f);
  std::vector<float> held(17, 100.0f);
  // The last norm already counts another layer.
  std::vector<float> norms = {0, 0, 0, 0, 7};
  SplitPieces(pieces, 0.5f, 0.25f, uses.data(), parameters.data(),
              gradient.data(), velocity.data(), held.data(), norms.data());
  const auto part = [&](const std::vector<float>& values, int64_t piece) {
    return std::vector<float>(values.begin() + pieces.Begin(piece),
                              values.begin() + pieces.End(piece));
  };
  EXPECT_THAT(part(gradient, 0), testing::Each(-2.0f));
  EXPECT_THAT(part(gradient, 1), testing::Each(100 + (0.5f * 4 - 2)));
  EXPECT_THAT(part(velocity, 2), testing::Each(0.5f * 4 + (-2 + 2.5f)));
  EXPECT_THAT(part(held, 2), testing::Each(100 + 2.5f));
  EXPECT_THAT(part(held, 3), testing::Each(0.5f));
  EXPECT_THAT(part(velocity, 3), testing::Each(0.5f));
  EXPECT_THAT(part(gradient, 4), testing::Each(-2.0f));
  EXPECT_THAT(norms, testing::ElementsAre(6, 8, 4 * 102.5f, 2, 7 + 4));
  // Packing works in place: the destination is the source.
  const std::vector<int32_t> chosen = {1, 2, 4};
  std::vector<float> packed = {0, 1,  2,  3,  4,  5,  6,  7, 8,
                               9, 10, 11, 12, 13, 14, 15, 16};
  GatherPieces(pieces, chosen.data(), 3, packed.data(), packed.data());
  packed.resize(10);
  EXPECT_THAT(packed, testing::ElementsAre(3, 4, 5, 6, 7, 8, 9, 10, 15, 16));
}

}  // namespace
}  // namespace nereus
