#include "worker/trainer/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace nereus {
namespace {

using testing::HasSubstr;

Batches MakeBatches(int64_t examples, int64_t batch, int workers, int rank,
                    uint64_t seed = 1) {
  const absl::StatusOr<Batches> batches =
      Batches::Create({examples, batch, workers, rank, seed});
  EXPECT_TRUE(batches.ok()) << batches.status();
  return *batches;
}

std::vector<uint32_t> Epoch(Batches batches, int64_t epoch) {
  batches.StartEpoch(epoch);
  std::vector<uint32_t> examples;
  for (int64_t step = 0; step < batches.steps_per_epoch(); ++step) {
    const absl::Span<const uint32_t> some = batches.Examples(step);
    examples.insert(examples.end(), some.begin(), some.end());
  }
  return examples;
}

TEST(BatchesTest, WorkersTogetherSeeWhatOneAloneSees) {
  const struct {
    int64_t examples;
    int64_t batch;
    int workers;
  } kCases[] = {{100, 5, 4}, {103, 1, 7}, {64, 16, 4}, {9, 4, 2}, {50, 50, 1}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.examples << " " << c.batch);
    Batches alone = MakeBatches(c.examples, c.batch * c.workers, 1, 0);
    std::vector<Batches> workers;
    for (int rank = 0; rank < c.workers; ++rank) {
      workers.push_back(MakeBatches(c.examples, c.batch, c.workers, rank));
    }
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      alone.StartEpoch(epoch);
      for (Batches& worker : workers) worker.StartEpoch(epoch);
      for (int64_t step = 0; step < alone.steps_per_epoch(); ++step) {
        std::vector<uint32_t> together;
        for (const Batches& worker : workers) {
          ASSERT_EQ(worker.steps_per_epoch(), alone.steps_per_epoch());
          const absl::Span<const uint32_t> some = worker.Examples(step);
          together.insert(together.end(), some.begin(), some.end());
        }
        EXPECT_EQ(absl::MakeConstSpan(together), alone.Examples(step));
      }
    }
  }
}

TEST(BatchesTest, AnEpochHasNoExampleTwice) {
  const std::vector<uint32_t> examples = Epoch(MakeBatches(103, 10, 1, 0), 0);
  EXPECT_EQ(examples.size(), 100u);  // The incomplete last batch is left out.
  const std::set<uint32_t> distinct(examples.begin(), examples.end());
  EXPECT_EQ(distinct.size(), 100u);
  EXPECT_LT(*distinct.rbegin(), 103u);
}

TEST(BatchesTest, WhatOneEpochLeavesOutAnotherHas) {
  std::set<uint32_t> seen;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    for (uint32_t example : Epoch(MakeBatches(11, 10, 1, 0), epoch)) {
      seen.insert(example);
    }
  }
  EXPECT_EQ(seen.size(), 11u);
}

TEST(BatchesTest, OrderDependsOnSeedAndEpoch) {
  const std::vector<uint32_t> order = Epoch(MakeBatches(64, 8, 1, 0, 1), 3);
  EXPECT_EQ(Epoch(MakeBatches(64, 8, 1, 0, 1), 3), order);
  EXPECT_NE(Epoch(MakeBatches(64, 8, 1, 0, 1), 4), order);
  EXPECT_NE(Epoch(MakeBatches(64, 8, 1, 0, 2), 3), order);
  // Not on the epochs before it: a worker may start with any.
  Batches resumed = MakeBatches(64, 8, 1, 0, 1);
  resumed.StartEpoch(0);
  EXPECT_EQ(Epoch(resumed, 3), order);
  // Nor is the next seed's epoch this seed's next one.
  EXPECT_NE(Epoch(MakeBatches(64, 8, 1, 0, 2), 2), order);
}

TEST(BatchesTest, OrderIsTheSameOnEveryMachine) {
  EXPECT_THAT(Epoch(MakeBatches(8, 8, 1, 0, 1), 0),
              testing::ElementsAre(4, 1, 7, 5, 3, 0, 6, 2));
}

// Every example is equally likely at every place: chi-squared over the first
// place of many epochs.
TEST(BatchesTest, ShuffleIsFair) {
  const int kExamples = 10;
  const int kEpochs = 20000;
  std::vector<int> first(kExamples);
  Batches batches = MakeBatches(kExamples, kExamples, 1, 0);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    batches.StartEpoch(epoch);
    ++first[batches.Examples(0)[0]];
  }
  const double expected = static_cast<double>(kEpochs) / kExamples;
  double chi_squared = 0.0;
  for (int count : first) {
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  // Nine degrees of freedom: exceeded with a probability of 1e-5.
  EXPECT_LT(chi_squared, 39.5);
}

TEST(BatchesTest, BadOptionsAreRefusedWithTheirValues) {
  const struct {
    Batches::Options options;
    const char* message;
  } kCases[] = {
      {{0, 1, 1, 0, 1}, "examples is 0, must be in [1, 4294967295]"},
      {{int64_t{1} << 32, 1, 1, 0, 1}, "examples is 4294967296"},
      {{10, 0, 1, 0, 1}, "batch is 0 and workers 1"},
      {{10, 1, 0, 0, 1}, "batch is 1 and workers 0"},
      {{10, 1, 2, 2, 1}, "rank is 2, must be in [0, 2)"},
      {{10, 1, 2, -1, 1}, "rank is -1"},
      {{10, 4, 3, 0, 1},
       "10 images to train with are less than one step of 3 workers with 4"},
      {{10, int64_t{1} << 62, 4, 0, 1}, "less than one step of 4 workers"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Batches::Create(c.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace nereus
