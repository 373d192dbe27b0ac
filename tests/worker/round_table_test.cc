#include "worker/client/round_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// No test waits that long unless something is broken.
constexpr absl::Duration kLong = absl::Seconds(60);

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

std::shared_ptr<RoundTable> TwoLayers() {
  return std::make_shared<RoundTable>(
      std::vector<std::string>{"first", "second"});
}

StepInfo Step(int64_t step) {
  StepInfo info;
  info.step = step;
  return info;
}

// Both layers have their initial parameters, and step 0 was begun.
std::shared_ptr<RoundTable> StartedTable() {
  auto table = TwoLayers();
  for (const int layer : {0, 1})
    table->Finish(layer, kInitialRound, /*skipped=*/false, At(0));
  table->Begin(Step(0));
  return table;
}

TEST(RoundTableTest, LayersOutsideTheModelAreRefused) {
  const auto table = StartedTable();
  for (const int layer : {-1, 2, 1 << 30}) {
    for (const absl::Status& status :
         {table->CheckLayer(layer), table->BeginPush(layer, 0, At(0)).status(),
          table->Await(layer, 0, absl::ZeroDuration())}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("layer " + std::to_string(layer)),
                        HasSubstr("the model has 2")));
    }
  }
  EXPECT_TRUE(table->CheckLayer(0).ok());
  EXPECT_TRUE(table->CheckLayer(1).ok());
}

TEST(RoundTableTest, StepsComeOneByOneAndTheErrorNamesTheLayer) {
  const auto table = StartedTable();
  const auto refused = [&](int64_t step) {
    const absl::Status status = table->BeginPush(1, step, At(0)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << step;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("layer second"),
                      HasSubstr("step " + std::to_string(step))));
  };
  for (const int64_t step : {-2, -1, 1, 5}) refused(step);
  ASSERT_TRUE(table->BeginPush(1, 0, At(0)).ok());
  for (const int64_t step : {0, 1}) refused(step);
  table->Finish(1, 0, /*skipped=*/false, At(0));
  for (const int64_t step : {-1, 0, 1, 2}) refused(step);
  // The other layer goes its own way.
  EXPECT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  table->Begin(Step(1));
  ASSERT_TRUE(table->BeginPush(1, 1, At(0)).ok());
  // Step 0 of it is not done.
  const absl::Status early = table->BeginPush(0, 1, At(0)).status();
  EXPECT_EQ(early.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(early.message()),
              HasSubstr("step 0 is not waited for: Wait or WaitAll comes "
                        "before the next push"));
}

TEST(RoundTableTest, AStepIsBegunBeforeItIsPushed) {
  const auto table = TwoLayers();
  table->Finish(0, kInitialRound, /*skipped=*/false, At(0));
  const absl::Status status = table->BeginPush(0, 0, At(0)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layer first"), HasSubstr("none was begun")));
}

TEST(RoundTableTest, StepsBeginOneAfterTheOther) {
  const auto table = TwoLayers();
  for (const int layer : {0, 1})
    table->Finish(layer, 6, /*skipped=*/false, At(0));
  EXPECT_EQ(table->next_step(), 7);
  EXPECT_EQ(table->last_step()->step, 6);
  EXPECT_EQ(table->last_step()->life, 0);
  std::thread driver([&] { table->Begin(Step(7)); });
  const absl::StatusOr<StepInfo> begun = table->AwaitBegin(7);
  driver.join();
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->step, 7);
  EXPECT_EQ(table->next_step(), 8);
  table->Fail(absl::AbortedError("gone"));
  EXPECT_EQ(table->AwaitBegin(8).status(), absl::AbortedError("gone"));
}

TEST(RoundTableTest,
     TheFirstValuesAreAwaitedForAllLayersAndAgainAfterARestart) {
  const auto table = TwoLayers();
  EXPECT_EQ(table->Restart(), 1);
  table->Finish(0, 4, /*skipped=*/false, At(0));
  EXPECT_EQ(table->Restart(), 2);
  ASSERT_TRUE(table->Acknowledge().ok());
  std::thread driver([&] {
    table->Finish(0, 5, /*skipped=*/false, At(0));
    table->Finish(1, 5, /*skipped=*/false, At(0));
  });
  EXPECT_TRUE(table->AwaitFirstValues().ok());
  driver.join();
  EXPECT_EQ(table->round(), 5);
}

TEST(RoundTableTest, AJobThatGoesBackIsHeardFromEveryCallUntilTheCallerKnows) {
  const auto table = TwoLayers();
  EXPECT_EQ(table->Restart(), 1);
  for (const int layer : {0, 1})
    table->Finish(layer, kInitialRound, /*skipped=*/false, At(0));
  table->Begin(Step(0));
  const float gradient = 1.0f;
  ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  auto lent = std::make_unique<Buffer>(table->Borrow(0, &gradient, 1));
  // Whoever waits hears it, and whoever calls afterwards.
  std::thread driver([&] { EXPECT_EQ(table->Restart(), 2); });
  EXPECT_TRUE(absl::IsOutOfRange(table->Await(0, 0, kLong)));
  driver.join();
  EXPECT_TRUE(absl::IsOutOfRange(table->BeginPush(1, 0, At(0)).status()));
  EXPECT_TRUE(absl::IsOutOfRange(table->AwaitBegin(1).status()));
  EXPECT_TRUE(absl::IsOutOfRange(table->step_to_begin().status()));
  EXPECT_TRUE(absl::IsOutOfRange(table->AwaitFirstValues()));
  EXPECT_TRUE(absl::IsOutOfRange(table->AwaitOver(kLong)));
  // It gets its buffer back before it goes on.
  std::thread transport([&] { lent.reset(); });
  EXPECT_TRUE(table->Acknowledge().ok());
  transport.join();
  EXPECT_TRUE(table->AwaitReturned(absl::ZeroDuration()));
  for (const int layer : {0, 1})
    table->Finish(layer, 4, /*skipped=*/false, At(0));
  EXPECT_TRUE(table->AwaitFirstValues().ok());
  ASSERT_TRUE(table->step_to_begin().ok());
  EXPECT_EQ(table->step_to_begin()->step, 5);
  EXPECT_EQ(table->step_to_begin()->life, 2);
}

TEST(RoundTableTest, TheEndOfTheMembershipIsAwaited) {
  const auto table = StartedTable();
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->AwaitOver(absl::ZeroDuration())));
  table->End(absl::OkStatus());
  EXPECT_TRUE(table->AwaitOver(kLong).ok());
  table->End(absl::AbortedError("gone"));
  EXPECT_EQ(table->AwaitOver(kLong), absl::AbortedError("gone"));
}

TEST(RoundTableTest, NothingIsPushedBeforeTheInitialParameters) {
  const auto table = TwoLayers();
  EXPECT_EQ(table->BeginPush(0, 0, At(0)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RoundTableTest, AwaitOfAStepThatWasNotPushedIsRefused) {
  const auto table = StartedTable();
  const absl::Status status = table->Await(1, 0, kLong);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layer second"), HasSubstr("step 0"),
                    HasSubstr("step -1")));
}

TEST(RoundTableTest, AwaitEndsWhenTheRoundIsDone) {
  const auto table = StartedTable();
  ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  std::thread driver([&] { table->Finish(0, 0, /*skipped=*/false, At(1)); });
  EXPECT_TRUE(table->Await(0, 0, kLong).ok());
  driver.join();
  // Earlier rounds are done too.
  EXPECT_TRUE(table->Await(0, kInitialRound, absl::ZeroDuration()).ok());
}

TEST(RoundTableTest, TimeRunsOutWithTheLayerAndTheStep) {
  const auto table = StartedTable();
  ASSERT_TRUE(table->BeginPush(1, 0, At(0)).ok());
  const absl::Status status = table->Await(1, 0, absl::Milliseconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("layer second"), HasSubstr("step 0"), HasSubstr("1ms")));
}

TEST(RoundTableTest, AFailureEndsEveryWaitAndEveryPush) {
  const auto table = StartedTable();
  ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  EXPECT_TRUE(table->failure().ok());
  std::thread driver(
      [&] { table->Fail(absl::AbortedError("worker 3 is gone")); });
  const absl::Status status = table->Await(0, 0, kLong);
  driver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "worker 3 is gone");
  EXPECT_EQ(table->BeginPush(1, 0, At(0)).status(), status);
  EXPECT_EQ(table->failure(), status);
}

TEST(RoundTableTest, TheFirstFailureCounts) {
  const auto table = StartedTable();
  table->Fail(absl::OkStatus());
  EXPECT_TRUE(table->failure().ok());
  table->Fail(absl::AbortedError("the cause"));
  table->Fail(absl::UnavailableError("a symptom"));
  table->Fail(absl::OkStatus());
  EXPECT_EQ(table->failure(), absl::AbortedError("the cause"));
}

TEST(RoundTableTest, AwaitEndsOnlyWhenTheBuffersAreBack) {
  const auto table = StartedTable();
  const std::vector<float> values = {1, 2};
  ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  Buffer lent = table->Borrow(0, values.data(), values.size());
  EXPECT_EQ(lent.floats(), values.data());
  EXPECT_EQ(lent.bytes(), 8);
  Buffer slice = lent.Slice(4, 4);
  lent = Buffer();
  table->Finish(0, 0, /*skipped=*/false, At(1));
  EXPECT_EQ(table->Await(0, 0, absl::ZeroDuration()).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(table->AwaitReturned(absl::ZeroDuration()));
  std::thread transport([&] { slice = Buffer(); });
  EXPECT_TRUE(table->Await(0, 0, kLong).ok());
  transport.join();
  EXPECT_TRUE(table->AwaitReturned(absl::ZeroDuration()));
}

TEST(RoundTableTest, BuffersAreCountedByLayer) {
  const auto table = StartedTable();
  const float value = 1;
  ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  ASSERT_TRUE(table->BeginPush(1, 0, At(0)).ok());
  const Buffer first = table->Borrow(0, &value, 1);
  const Buffer again = table->Borrow(0, &value, 1);
  table->Finish(0, 0, /*skipped=*/false, At(1));
  table->Finish(1, 0, /*skipped=*/false, At(1));
  EXPECT_TRUE(table->Await(1, 0, absl::ZeroDuration()).ok());
  EXPECT_FALSE(table->Await(0, 0, absl::ZeroDuration()).ok());
}

TEST(RoundTableTest, NothingBorrowedNeedNotComeBack) {
  const auto table = StartedTable();
  const Buffer none = table->Borrow(0, nullptr, 0);
  EXPECT_EQ(none.bytes(), 0);
  EXPECT_TRUE(table->AwaitReturned(absl::ZeroDuration()));
}

// A transport may hold a reference a moment longer than the client lives.
TEST(RoundTableTest, ABufferKeepsTheTableAlive) {
  auto table = StartedTable();
  const std::weak_ptr<RoundTable> weak = table;
  const float value = 1;
  Buffer lent = table->Borrow(0, &value, 1);
  table.reset();
  EXPECT_FALSE(weak.expired());
  lent = Buffer();
  EXPECT_TRUE(weak.expired());
}

TEST(RoundTableTest, MeansAreWhereTheyWereToGoOrWhereTheyWereMade) {
  const auto table = StartedTable();
  std::vector<float> gradient = {1, 2};
  ASSERT_TRUE(table->BeginPush(0, 0, At(0), gradient).ok());
  table->Finish(0, 0, /*skipped=*/false, At(0));
  EXPECT_EQ(table->Mean(0).data(), gradient.data());
  EXPECT_EQ(table->Mean(0).size(), 2u);
  EXPECT_TRUE(table->Mean(1).empty());
  EXPECT_TRUE(table->Mean(2).empty());

  table->Begin(Step(1));
  ASSERT_TRUE(table->BeginPush(0, 1, At(0), gradient).ok());
  const Buffer mean = Buffer::AllocateZeroed(8);
  table->Finish(0, 1, /*skipped=*/false, At(0), mean);
  EXPECT_EQ(table->Mean(0).data(), mean.floats());
  EXPECT_EQ(table->Mean(0).size(), 2u);
  EXPECT_FALSE(mean.unique());
  table->Begin(Step(2));
  ASSERT_TRUE(table->BeginPush(0, 2, At(0), gradient).ok());
  EXPECT_TRUE(mean.unique());
}

TEST(RoundTableTest, TheRoundIsThatOfTheSlowestLayer) {
  const auto table = TwoLayers();
  EXPECT_EQ(table->round(), kInitialRound);
  table->Finish(0, kInitialRound, /*skipped=*/false, At(0));
  EXPECT_EQ(table->round(), kInitialRound);
  table->Finish(1, kInitialRound, /*skipped=*/false, At(0));
  EXPECT_EQ(table->round(), kInitialRound);
  table->Finish(1, 0, /*skipped=*/false, At(0));
  EXPECT_EQ(table->round(), kInitialRound);
  table->Finish(0, 0, /*skipped=*/false, At(0));
  EXPECT_EQ(table->round(), 0);
}

TEST(RoundTableTest, WhatIsFetchedAgainForAnotherPlanChangesNothing) {
  const auto table = TwoLayers();
  table->Finish(0, kInitialRound, /*skipped=*/false, At(0));
  table->Begin(Step(0));
  ASSERT_TRUE(table->BeginPush(0, 0, At(1)).ok());
  EXPECT_FALSE(table->IsIdle());
  table->Finish(0, 0, /*skipped=*/true, At(2));
  table->Finish(0, 0, /*skipped=*/false, At(50));
  EXPECT_TRUE(table->IsIdle());
  EXPECT_TRUE(table->Skipped(0));
  EXPECT_EQ(table->cost(0).rounds, 1);
  EXPECT_EQ(table->cost(0).latency_total, absl::Seconds(1));
}

TEST(RoundTableTest, CostIsFromPushToDone) {
  const auto table = TwoLayers();
  table->Begin(Step(0));
  EXPECT_EQ(table->cost(0).rounds, 0);
  table->Finish(0, kInitialRound, /*skipped=*/false, At(100));
  EXPECT_EQ(table->cost(0).rounds, 0);
  EXPECT_EQ(table->cost(0).latency_total, absl::ZeroDuration());
  ASSERT_TRUE(table->BeginPush(0, 0, At(200)).ok());
  table->Finish(0, 0, /*skipped=*/false, At(202));
  table->Begin(Step(1));
  ASSERT_TRUE(table->BeginPush(0, 1, At(300)).ok());
  table->Finish(0, 1, /*skipped=*/false, At(305));
  EXPECT_EQ(table->cost(0).rounds, 2);
  EXPECT_EQ(table->cost(0).latency_total, absl::Seconds(7));
  EXPECT_EQ(table->cost(1).rounds, 0);
}

// A layer that is left out of a step would stop all workers.

void ExpectIncomplete(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(RoundTableTest, AStepOfWhichALayerWasNotPushedIsRefusedByItsName) {
  const auto table = StartedTable();
  ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  for (const bool or_untouched : {false, true}) {
    const absl::Status status = table->CheckComplete(or_untouched);
    ExpectIncomplete(status,
                     "step 0 is not complete: no gradient was pushed of "
                     "second. Push every layer in each step");
    EXPECT_THAT(std::string(status.message()),
                testing::Not(HasSubstr("first")));
  }
  ASSERT_TRUE(table->BeginPush(1, 0, At(0)).ok());
  for (const bool or_untouched : {false, true}) {
    EXPECT_TRUE(table->CheckComplete(or_untouched).ok());
  }
}

TEST(RoundTableTest, AStepOfWhichNothingWasPushedIsCompleteForALeaverAlone) {
  const auto table = StartedTable();
  EXPECT_TRUE(table->CheckComplete(/*or_untouched=*/true).ok());
  ExpectIncomplete(table->CheckComplete(/*or_untouched=*/false),
                   "no gradient was pushed of first, second.");
}

TEST(RoundTableTest, ALaterStepIsCheckedForItselfWhateverWasPushedBefore) {
  const auto table = StartedTable();
  for (const int layer : {0, 1}) {
    ASSERT_TRUE(table->BeginPush(layer, 0, At(0)).ok());
    table->Finish(layer, 0, /*skipped=*/false, At(0));
  }
  EXPECT_TRUE(table->CheckComplete(/*or_untouched=*/false).ok());
  table->Begin(Step(1));
  ASSERT_TRUE(table->BeginPush(1, 1, At(0)).ok());
  ExpectIncomplete(table->CheckComplete(/*or_untouched=*/true),
                   "step 1 is not complete: no gradient was pushed of first.");
}

TEST(RoundTableTest, BeforeTheFirstStepNothingIsIncomplete) {
  const auto table = TwoLayers();
  EXPECT_TRUE(table->CheckComplete(/*or_untouched=*/false).ok());
}

// The caller's next call tells it that instead.
TEST(RoundTableTest, AStepIsNotIncompleteWhereTheJobHasGoneBackOrFailed) {
  {
    const auto table = TwoLayers();
    table->Restart();
    for (const int layer : {0, 1}) {
      table->Finish(layer, kInitialRound, /*skipped=*/false, At(0));
    }
    table->Begin(Step(0));
    ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
    ASSERT_FALSE(table->CheckComplete(/*or_untouched=*/false).ok());
    table->Restart();
    EXPECT_TRUE(table->CheckComplete(/*or_untouched=*/false).ok());
  }
  const auto table = StartedTable();
  ASSERT_TRUE(table->BeginPush(0, 0, At(0)).ok());
  table->Fail(absl::AbortedError("gone"));
  EXPECT_TRUE(table->CheckComplete(/*or_untouched=*/false).ok());
}

}  // namespace
}  // namespace nereus
