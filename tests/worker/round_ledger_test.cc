#include "worker/machine/round_ledger.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

// The ledger of a layer of three values on worker 0.
struct LedgerOfLayer {
  explicit LedgerOfLayer(JobOptions options = {})
      : ledger(TestJob(2, 1, {VectorLayer("a", 3)}, options), 0, 0, verdicts) {}

  // Returns the rounds that the ledger reports to the driver as done.
  std::vector<int64_t> Reported() {
    Outbox out;
    ledger.ReportIfSettled(out);
    std::vector<int64_t> rounds;
    for (const LayerDone& done : Carry(out).done) rounds.push_back(done.round);
    return rounds;
  }

  Verdicts verdicts;
  RoundLedger ledger;
};

TEST(RoundLedgerTest, ARoundOpensWithItsPushAndEndsWithItsResult) {
  LedgerOfLayer a;
  EXPECT_TRUE(a.ledger.fetching());
  EXPECT_EQ(a.ledger.next_round(), 0);
  EXPECT_FALSE(a.ledger.CheckPush(0).ok());
  a.ledger.OnFetched(kInitialRound);
  EXPECT_FALSE(a.ledger.fetching());
  EXPECT_EQ(a.ledger.contributors(), 0);
  EXPECT_EQ(a.Reported(), std::vector<int64_t>{kInitialRound});

  ASSERT_TRUE(a.ledger.CheckPush(0).ok());
  a.ledger.Push(0);
  EXPECT_TRUE(a.ledger.is_open());
  EXPECT_TRUE(a.ledger.is_unsent());
  EXPECT_FALSE(a.ledger.is_sent());
  EXPECT_TRUE(a.ledger.Send());
  EXPECT_FALSE(a.ledger.Send());
  EXPECT_TRUE(a.ledger.is_sent());
  EXPECT_FALSE(a.ledger.CheckPush(1).ok());

  a.ledger.Finish(/*contributors=*/2, Buffer());
  EXPECT_FALSE(a.ledger.is_open());
  EXPECT_EQ(a.ledger.done_round(), 0);
  EXPECT_EQ(a.ledger.contributors(), 2);
  EXPECT_EQ(a.ledger.next_round(), 1);
  EXPECT_EQ(a.Reported(), std::vector<int64_t>{0});
  EXPECT_TRUE(a.Reported().empty());
}

TEST(RoundLedgerTest, ARoundIsReportedWhenTheVerdictOnItsStepIsKnown) {
  JobOptions options;
  options.nan = NanPolicy::kSkip;
  LedgerOfLayer a(options);
  a.ledger.OnFetched(kInitialRound);
  EXPECT_EQ(a.Reported(), std::vector<int64_t>{kInitialRound});
  a.ledger.Push(0);
  a.ledger.Finish(2, Buffer());
  EXPECT_EQ(a.ledger.Skipped(0), std::nullopt);
  EXPECT_TRUE(a.Reported().empty());
  EXPECT_FALSE(a.ledger.is_reported());
  const StepVerdict verdict{0, /*skipped=*/true};
  a.verdicts.Add({&verdict, 1});
  EXPECT_EQ(a.ledger.Skipped(0), true);
  EXPECT_EQ(a.Reported(), std::vector<int64_t>{0});
  EXPECT_TRUE(a.ledger.is_reported());
}

}  // namespace
}  // namespace nereus
