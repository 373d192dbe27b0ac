#include "worker/trainer/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

using testing::HasSubstr;

Batches MakeBatches(int64_t examples, int64_t batch, uint64_t seed = 1) {
  const absl::StatusOr<Batches> batches =
      Batches::Create({examples, batch, seed});
  EXPECT_TRUE(batches.ok()) << batches.status();
  return *batches;
}

// Returns the order of the examples in pass `pass` over all of them.
std::vector<uint32_t> Pass(int64_t examples, int64_t pass, uint64_t seed = 1) {
  Batches batches = MakeBatches(examples, examples, seed);
  const absl::Span<const uint32_t> all = batches.Examples(pass * examples);
  return {all.begin(), all.end()};
}

TEST(BatchesTest, WorkersTogetherSeeTheExamplesOfASingleWorker) {
  const struct {
    int64_t examples;
    int64_t batch;
    int workers;
  } kCases[] = {{100, 5, 4}, {103, 1, 7}, {64, 16, 4}, {9, 4, 2}, {50, 50, 1}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.examples << " " << c.batch);
    Batches alone = MakeBatches(c.examples, c.batch * c.workers);
    std::vector<Batches> workers(c.workers, MakeBatches(c.examples, c.batch));
    for (int64_t step = 0; step < 40; ++step) {
      std::vector<uint32_t> together;
      for (int position = 0; position < c.workers; ++position) {
        const absl::Span<const uint32_t> some =
            workers[position].Examples((step * c.workers + position) * c.batch);
        together.insert(together.end(), some.begin(), some.end());
      }
      EXPECT_EQ(absl::MakeConstSpan(together),
                alone.Examples(step * c.workers * c.batch));
    }
  }
}

TEST(BatchesTest, PassHasEachExampleOnce) {
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::vector<uint32_t> examples = Pass(103, pass);
    absl::c_sort(examples);
    std::vector<uint32_t> all(103);
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(examples, all);
  }
}

TEST(BatchesTest, BatchMayEndOnePassAndBeginTheNext) {
  Batches batches = MakeBatches(10, 4);
  const absl::Span<const uint32_t> across = batches.Examples(8);
  const std::vector<uint32_t> first = Pass(10, 0);
  const std::vector<uint32_t> second = Pass(10, 1);
  EXPECT_THAT(across,
              testing::ElementsAre(first[8], first[9], second[0], second[1]));
}

TEST(BatchesTest, OrderDependsOnSeedAndPass) {
  const std::vector<uint32_t> order = Pass(64, 3, 1);
  EXPECT_EQ(Pass(64, 3, 1), order);
  EXPECT_NE(Pass(64, 4, 1), order);
  EXPECT_NE(Pass(64, 3, 2), order);
  // Earlier calls do not change the order: a worker may start at any batch.
  Batches resumed = MakeBatches(64, 64, 1);
  resumed.Examples(0);
  EXPECT_EQ(resumed.Examples(3 * 64), absl::MakeConstSpan(order));
  // Pass p of seed s + 1 must differ from pass p + 1 of seed s.
  EXPECT_NE(Pass(64, 2, 2), order);
}

TEST(BatchesTest, OrderIsTheSameOnEveryMachine) {
  EXPECT_THAT(Pass(8, 0), testing::ElementsAre(4, 1, 7, 5, 3, 0, 6, 2));
}

// Every example is equally likely at every place. The test computes chi-squared
// for the first place of many passes.
TEST(BatchesTest, ShuffleIsFair) {
  const int kExamples = 10;
  const int kEpochs = 20000;
  std::vector<int> first(kExamples);
  Batches batches = MakeBatches(kExamples, 1);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    ++first[batches.Examples(epoch * kExamples)[0]];
  }
  const double expected = static_cast<double>(kEpochs) / kExamples;
  double chi_squared = 0.0;
  for (int count : first) {
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  // With nine degrees of freedom, the probability of a larger value is 1e-5.
  EXPECT_LT(chi_squared, 39.5);
}

TEST(BatchesTest, BadOptionsAreRefusedWithTheirValues) {
  const struct {
    Batches::Options options;
    const char* message;
  } kCases[] = {
      {{0, 1, 1}, "examples is 0, must be in [1, 4294967295]"},
      {{int64_t{1} << 32, 1, 1}, "examples is 4294967296"},
      {{10, 0, 1}, "batch is 0, must be in [1, 10]"},
      {{10, 11, 1}, "batch is 11, must be in [1, 10]"},
      {{10, int64_t{1} << 62, 1}, "must be in [1, 10]"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Batches::Create(c.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace nereus
