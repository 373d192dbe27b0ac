#include "worker/client/round_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// Timeout of waits that must succeed; no passing test waits that long.
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

void Begin(RoundTable& table, const StepInfo& step) {
  table.Use([&](StepLedger& ledger) { ledger.Begin(step); });
}
int64_t Restart(RoundTable& table) {
  return table.Use(
      [](StepLedger& ledger) { return ledger.Restart(/*epoch=*/1); });
}
void Fail(RoundTable& table, const absl::Status& failure) {
  table.Use([&](StepLedger& ledger) { ledger.Fail(failure); });
}
void End(RoundTable& table, const absl::Status& outcome) {
  table.Use([&](StepLedger& ledger) { ledger.End(outcome); });
}
absl::Status Failure(RoundTable& table) {
  return table.Use([](const StepLedger& ledger) { return ledger.failure(); });
}
absl::StatusOr<StepLedger::Call> ToBegin(RoundTable& table) {
  return table.Use(
      [](const StepLedger& ledger) { return ledger.StepToBegin(); });
}

// Notes that both layers have the result of a round.
void FinishBoth(RoundTable& table, int64_t round) {
  for (const int layer : {0, 1}) {
    table.Finish(layer, round, /*skipped=*/false, At(0));
  }
}

// Returns a table in which both layers have their initial parameters and step 0
// has begun.
std::shared_ptr<RoundTable> StartedTable() {
  auto table = TwoLayers();
  FinishBoth(*table, kInitialRound);
  Begin(*table, Step(0));
  return table;
}

// Pushes a layer in step 0. Returns the buffer over its memory.
Buffer Lend(RoundTable& table, int layer, absl::Span<const float> values) {
  auto push = table.BeginPush(layer, 0, At(0), values, {{values}});
  EXPECT_TRUE(push.ok()) << push.status();
  return push.ok() ? push->buffers[0] : Buffer();
}

TEST(RoundTableTest, SyncTimesAreMeansSinceTheLastCall) {
  auto table = TwoLayers();
  Restart(*table);
  FinishBoth(*table, kInitialRound);
  EXPECT_THAT(table->TakeSyncTimes(), Each(absl::ZeroDuration()));
  double now = 0;
  const auto run = [&](int64_t step, double seconds) {
    Begin(*table, Step(step));
    ASSERT_TRUE(table->BeginPush(0, step, At(now)).ok());
    ASSERT_TRUE(table->BeginPush(1, step, At(now)).ok());
    now += seconds;
    table->Finish(0, step, /*skipped=*/false, At(now));
    table->Finish(1, step, /*skipped=*/false, At(now + 0.5));
    now += 1;
  };
  run(0, 1);
  run(1, 2);
  EXPECT_THAT(table->TakeSyncTimes(),
              ElementsAre(absl::Seconds(1.5), absl::Seconds(2)));
  run(2, 5);
  EXPECT_THAT(table->TakeSyncTimes(),
              ElementsAre(absl::Seconds(5), absl::Seconds(5.5)));
}

// Its layers report a skipped step one after the other.
TEST(RoundTableTest, CountsSkippedStepsAndUnfitGradients) {
  auto table = TwoLayers();
  Restart(*table);
  FinishBoth(*table, kInitialRound);
  table->NoteUnfit(0);
  table->NoteUnfit(0);
  for (const int64_t step : {0, 1, 2, 3}) {
    for (const int layer : {0, 1}) {
      table->Finish(layer, step, /*skipped=*/step != 1, At(1));
    }
  }
  EXPECT_EQ(table->counts().skipped_steps, 3);
  EXPECT_EQ(table->counts().unfit_gradients, 2);
}

TEST(RoundTableTest,
     TheFirstValuesAreAwaitedForAllLayersAndAgainAfterARestart) {
  const auto table = TwoLayers();
  EXPECT_EQ(Restart(*table), 1);
  table->Finish(0, 4, /*skipped=*/false, At(0));
  EXPECT_EQ(Restart(*table), 2);
  ASSERT_TRUE(table->Acknowledge().ok());
  std::thread driver([&] { FinishBoth(*table, 5); });
  EXPECT_TRUE(table->AwaitFirstValues().ok());
  driver.join();
  EXPECT_EQ(table->Use([](const StepLedger& ledger) { return ledger.round(); }),
            5);
}

TEST(RoundTableTest, EveryCallReportsThatTheJobWentBackUntilAcknowledged) {
  const auto table = TwoLayers();
  EXPECT_EQ(Restart(*table), 1);
  FinishBoth(*table, kInitialRound);
  Begin(*table, Step(0));
  const float gradient = 1.0f;
  auto lent = std::make_unique<Buffer>(Lend(*table, 0, {&gradient, 1}));
  // The waiting call returns the error, and so do later calls.
  std::thread driver([&] { EXPECT_EQ(Restart(*table), 2); });
  EXPECT_TRUE(absl::IsOutOfRange(table->Await(0, 0, kLong)));
  driver.join();
  EXPECT_TRUE(absl::IsOutOfRange(table->BeginPush(1, 0, At(0)).status()));
  EXPECT_TRUE(absl::IsOutOfRange(table->AwaitBegin(1).status()));
  EXPECT_TRUE(absl::IsOutOfRange(ToBegin(*table).status()));
  EXPECT_TRUE(absl::IsOutOfRange(table->AwaitFirstValues()));
  EXPECT_TRUE(absl::IsOutOfRange(table->AwaitOver(kLong)));
  // Acknowledge waits until the transport has returned the caller's buffer.
  std::thread transport([&] { lent.reset(); });
  EXPECT_TRUE(table->Acknowledge().ok());
  transport.join();
  EXPECT_TRUE(table->AwaitReturned(absl::ZeroDuration()));
  FinishBoth(*table, 4);
  EXPECT_TRUE(table->AwaitFirstValues().ok());
  ASSERT_TRUE(ToBegin(*table).ok());
  EXPECT_EQ(ToBegin(*table)->step, 5);
  EXPECT_EQ(ToBegin(*table)->life, 2);
}

TEST(RoundTableTest, TheEndOfTheMembershipIsAwaited) {
  const auto table = StartedTable();
  ASSERT_TRUE(table->BeginLeave(SteadyNow()).ok());
  EXPECT_TRUE(absl::IsUnavailable(table->AwaitOver(absl::ZeroDuration())));
  End(*table, absl::OkStatus());
  EXPECT_TRUE(table->AwaitOver(kLong).ok());
  End(*table, AbortedError("gone"));
  EXPECT_EQ(table->AwaitOver(kLong), AbortedError("gone"));
}

// Each call is one part of the wait, and times out at once.
TEST(RoundTableTest, ALeaveInPartsGivesUpWhenTheCoordinatorIsSilentForLong) {
  const auto table = StartedTable();
  const absl::Time now = SteadyNow();
  const auto leave_at = [&](absl::Time at) {
    ASSERT_TRUE(table->BeginLeave(at).ok());
  };
  leave_at(now - 2 * kLong);
  EXPECT_TRUE(absl::IsUnavailable(table->AwaitOver(kLong, now)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->AwaitOver(3 * kLong, now)));
  // The next part of the same leave does not begin the patience anew.
  leave_at(now);
  EXPECT_TRUE(absl::IsUnavailable(table->AwaitOver(kLong, now)));
  table->NoteWaiting();
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->AwaitOver(kLong, now)));
}

TEST(RoundTableTest, AWorkerThatLeavesAfterTheJobWentBackHasNewPatience) {
  const auto table = StartedTable();
  Restart(*table);
  const absl::Time now = SteadyNow();
  ASSERT_TRUE(table->BeginLeave(now - 2 * kLong).ok());
  Restart(*table);
  ASSERT_TRUE(table->Acknowledge().ok());
  ASSERT_TRUE(table->BeginLeave(now).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->AwaitOver(kLong, now)));
}

TEST(RoundTableTest, EachWaitWithALimitTimesOut) {
  const auto table = TwoLayers();
  Restart(*table);
  const absl::Time past = SteadyNow();
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->AwaitFirstValues(past)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->AwaitBegin(0, past).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->AwaitOver(kLong, past)));
  FinishBoth(*table, kInitialRound);
  Begin(*table, Step(0));
  EXPECT_EQ(table->AwaitBegin(0, past)->step, 0);
  const float gradient = 1.0f;
  Buffer lent = Lend(*table, 0, {&gradient, 1});
  Restart(*table);
  EXPECT_TRUE(absl::IsDeadlineExceeded(table->Acknowledge(past)));
  EXPECT_TRUE(absl::IsOutOfRange(table->AwaitFirstValues(past)));
  lent = Buffer();
  EXPECT_TRUE(table->Acknowledge(past).ok());
}

TEST(RoundTableTest, ATimeoutNamesTheLayerAndTheStep) {
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
  EXPECT_TRUE(Failure(*table).ok());
  std::thread driver([&] { Fail(*table, AbortedError("worker 3 is gone")); });
  const absl::Status status = table->Await(0, 0, kLong);
  driver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "worker 3 is gone");
  EXPECT_EQ(table->BeginPush(1, 0, At(0)).status(), status);
  EXPECT_EQ(Failure(*table), status);
}

TEST(RoundTableTest, AwaitEndsOnlyWhenTheBuffersAreReturned) {
  const auto table = StartedTable();
  const std::vector<float> values = {1, 2};
  Buffer lent = Lend(*table, 0, values);
  EXPECT_EQ(lent.floats(), values.data());
  EXPECT_EQ(lent.bytes(), 8);
  Buffer slice = lent.Slice(4, 4);
  lent = Buffer();
  const Buffer none = Lend(*table, 1, {});  // Need not be returned.
  FinishBoth(*table, 0);
  EXPECT_EQ(table->Await(0, 0, absl::ZeroDuration()).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(table->Await(1, 0, absl::ZeroDuration()).ok());
  EXPECT_FALSE(table->AwaitReturned(absl::ZeroDuration()));
  std::thread transport([&] { slice = Buffer(); });
  EXPECT_TRUE(table->Await(0, 0, kLong).ok());
  transport.join();
  EXPECT_TRUE(table->AwaitReturned(absl::ZeroDuration()));
}

// A transport may keep a buffer slightly longer than the client lives.
TEST(RoundTableTest, ABufferKeepsTheTableAlive) {
  auto table = StartedTable();
  const std::weak_ptr<RoundTable> weak = table;
  const float value = 1;
  Buffer lent = Lend(*table, 0, {&value, 1});
  table.reset();
  EXPECT_FALSE(weak.expired());
  lent = Buffer();
  EXPECT_TRUE(weak.expired());
}

TEST(RoundTableTest, AMeanIsInTheCallersGradientOrInTheReportedBuffer) {
  const auto table = StartedTable();
  std::vector<float> gradient = {1, 2};
  EXPECT_TRUE(table->Mean(0).empty());
  ASSERT_TRUE(table->BeginPush(0, 0, At(0), gradient).ok());
  EXPECT_TRUE(table->Mean(0).empty());
  table->Finish(0, 0, /*skipped=*/false, At(0));
  EXPECT_EQ(table->Mean(0).data(), gradient.data());
  EXPECT_EQ(table->Mean(0).size(), 2u);
  EXPECT_TRUE(table->Mean(1).empty());
  EXPECT_TRUE(table->Mean(2).empty());

  Begin(*table, Step(1));
  ASSERT_TRUE(table->BeginPush(0, 1, At(0), gradient).ok());
  const Buffer mean = Buffer::AllocateZeroed(8);
  table->Finish(0, 1, /*skipped=*/false, At(0), mean);
  EXPECT_EQ(table->Mean(0).data(), mean.floats());
  EXPECT_EQ(table->Mean(0).size(), 2u);
  EXPECT_FALSE(mean.unique());
  Begin(*table, Step(2));
  ASSERT_TRUE(table->BeginPush(0, 2, At(0), gradient).ok());
  EXPECT_TRUE(mean.unique());
}

TEST(RoundTableTest, AMeanEndsWhenTheCallerKnowsThatTheJobWentBack) {
  const auto table = StartedTable();
  std::vector<float> gradient = {1, 2};
  ASSERT_TRUE(table->BeginPush(0, 0, At(0), gradient).ok());
  table->Finish(0, 0, /*skipped=*/false, At(0));
  Restart(*table);
  // A caller that has waited may be about to read the mean.
  EXPECT_EQ(table->Mean(0).data(), gradient.data());
  ASSERT_TRUE(table->Acknowledge().ok());
  EXPECT_TRUE(table->Mean(0).empty());
  FinishBoth(*table, kInitialRound);
  EXPECT_TRUE(table->Mean(0).empty());
}

TEST(RoundTableTest, ARoundCostsTheTimeFromPushToDone) {
  const auto table = TwoLayers();
  Begin(*table, Step(0));
  EXPECT_EQ(table->cost(0).rounds, 0);
  table->Finish(0, kInitialRound, /*skipped=*/false, At(100));
  EXPECT_EQ(table->cost(0).rounds, 0);
  EXPECT_EQ(table->cost(0).latency_total, absl::ZeroDuration());
  ASSERT_TRUE(table->BeginPush(0, 0, At(200)).ok());
  table->Finish(0, 0, /*skipped=*/false, At(202));
  // Values that are fetched again for another plan cost nothing.
  table->Finish(0, 0, /*skipped=*/false, At(250));
  Begin(*table, Step(1));
  ASSERT_TRUE(table->BeginPush(0, 1, At(300)).ok());
  table->Finish(0, 1, /*skipped=*/false, At(305));
  EXPECT_EQ(table->cost(0).rounds, 2);
  EXPECT_EQ(table->cost(0).latency_total, absl::Seconds(7));
  EXPECT_EQ(table->cost(1).rounds, 0);
}

}  // namespace
}  // namespace nereus
