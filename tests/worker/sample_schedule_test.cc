#include "worker/machine/sample_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A worker that does steps, and has heartbeats in between.
class Worker {
 public:
  explicit Worker(int64_t begun_step = -1)
      : step_(begun_step), schedule_(/*layers=*/1, begun_step) {}

  // Does `steps` steps and then has a heartbeat. Returns the rounds that it has
  // sampled meanwhile.
  std::vector<int64_t> Beat(int64_t steps) {
    std::vector<int64_t> rounds;
    for (int64_t i = 0; i < steps; ++i) {
      ++step_;
      if (step_ > 0 && schedule_.Chooses(0, step_ - 1)) {
        rounds.push_back(step_ - 1);
      }
    }
    schedule_.OnHeartbeat(step_);
    return rounds;
  }
  int64_t stride() const { return schedule_.stride(); }

 private:
  int64_t step_;
  SampleSchedule schedule_;
};

TEST(SampleScheduleTest, NoRoundIsSampledBeforeTheFirstHeartbeat) {
  Worker worker;
  EXPECT_THAT(worker.Beat(1000), IsEmpty());
  EXPECT_EQ(worker.stride(), 512);
}

TEST(SampleScheduleTest, FastStepsHaveOneOrTwoSamplesForEachHeartbeat) {
  for (const int64_t pace : {1, 2, 3, 7, 100, 512, 1023}) {
    Worker worker;
    worker.Beat(pace);
    for (int i = 0; i < 50; ++i) {
      const auto rounds = worker.Beat(pace);
      EXPECT_GE(rounds.size(), 1u) << pace;
      EXPECT_LE(rounds.size(), 2u) << pace;
    }
  }
}

TEST(SampleScheduleTest, EachOfSlowStepsIsSampled) {
  Worker worker;
  for (int i = 0; i < 60; ++i) worker.Beat(0);
  EXPECT_EQ(worker.stride(), 1);
  worker.Beat(1);
  for (int i = 0; i < 60; ++i) worker.Beat(0);
  EXPECT_THAT(worker.Beat(1), ElementsAre(0));
  EXPECT_THAT(worker.Beat(0), IsEmpty());
  EXPECT_THAT(worker.Beat(1), ElementsAre(1));
}

// Otherwise a worker would sample a thousand rounds after each checkpoint.
TEST(SampleScheduleTest, StepsThatBecomeFasterHaveFewSamples) {
  Worker worker;
  for (int i = 0; i < 10; ++i) worker.Beat(0);
  EXPECT_EQ(worker.stride(), 1);
  EXPECT_LE(worker.Beat(1000).size(), 14u);
  EXPECT_LE(worker.Beat(1000).size(), 2u);
}

TEST(SampleScheduleTest, PauseMakesSamplesMoreFrequentOnlySlowly) {
  Worker worker;
  for (int i = 0; i < 3; ++i) worker.Beat(1000);
  worker.Beat(0);
  EXPECT_EQ(worker.stride(), 256);
  worker.Beat(0);
  EXPECT_EQ(worker.stride(), 128);
  worker.Beat(1000);
  EXPECT_EQ(worker.stride(), 512);
}

// Heartbeats of two workers are not at the same time, one comes late now and
// then, and paces differ a little.
TEST(SampleScheduleTest, WorkersOfAboutEqualPaceSampleManyEqualRounds) {
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(testing::Message() << "NEREUS_TEST_SEED=" << seed);
    Random random(seed);
    const auto pace = static_cast<int64_t>(random.Below(1000)) + 2;
    const auto some = [&] {
      const int64_t late = random.Chance(0.1) ? 2 : 1;
      return late * pace + static_cast<int64_t>(random.Below(pace / 2 + 1));
    };
    Worker a;
    Worker b(static_cast<int64_t>(random.Below(static_cast<uint64_t>(pace))));
    std::vector<int64_t> of_a;
    std::vector<int64_t> of_b;
    for (int i = 0; i < 40; ++i) {
      for (const int64_t round : a.Beat(some())) of_a.push_back(round);
      for (const int64_t round : b.Beat(some())) of_b.push_back(round);
    }
    std::vector<int64_t> both;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                          std::back_inserter(both));
    EXPECT_GE(both.size(), 15u) << "pace " << pace;
  }
}

TEST(SampleScheduleTest, AllLayersOfARoundAreSampledThoughTheStrideDoubles) {
  SampleSchedule schedule(/*layers=*/3, -1);
  schedule.OnHeartbeat(-1);
  for (int64_t round = 0; round < 40; ++round) {
    const bool is_chosen = schedule.Chooses(2, round);
    EXPECT_EQ(schedule.Chooses(1, round), is_chosen) << round;
    EXPECT_EQ(schedule.Chooses(0, round), is_chosen) << round;
  }
  EXPECT_EQ(schedule.stride(), 32);
}

TEST(SampleScheduleTest, OnlyLayersOfTheSampleAreChosen) {
  constexpr int kLayers = 3 * kSampledLayersMax;
  SampleSchedule schedule(kLayers, -1);
  schedule.OnHeartbeat(-1);
  const SampledLayers sampled = SampledLayersOf(0, kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(schedule.Chooses(layer, 0), sampled.Has(layer)) << layer;
  }
}

}  // namespace
}  // namespace nereus
