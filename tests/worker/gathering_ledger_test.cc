#include "worker/machine/gathering_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nereus {
namespace {

using testing::ElementsAre;

TEST(GatheringLedgerTest, GatheringsAreNumberedFromEachStepOn) {
  GatheringLedger ledger;
  std::vector<GatheringId> ids;
  for (const int64_t step : {kInitialRound, kInitialRound, int64_t{3}}) {
    ids.push_back(ledger.Begin(step, "a")->id);
    ledger.OnGathered({ids.back(), {"a", "b"}, ""});
    EXPECT_THAT(*ledger.Take(), ElementsAre("a", "b"));
  }
  EXPECT_THAT(ids,
              ElementsAre(GatheringId{kInitialRound, 0},
                          GatheringId{kInitialRound, 1}, GatheringId{3, 0}));
}

TEST(GatheringLedgerTest, CallThatIsMadeAgainGoesOnWithTheFirstValue) {
  GatheringLedger ledger;
  EXPECT_EQ(ledger.Begin(3, "a")->value, "a");
  EXPECT_FALSE(ledger.Begin(3, "b").has_value());
  EXPECT_EQ(ledger.Unanswered()->value, "a");
  ledger.OnGathered({{2, 0}, {"x"}, ""});
  EXPECT_FALSE(ledger.is_answered());
  ledger.OnGathered({{3, 0}, {"a"}, ""});
  EXPECT_FALSE(ledger.Unanswered().has_value());
  EXPECT_TRUE(ledger.is_answered());
}

TEST(GatheringLedgerTest, ErrorOfTheAnswerIsReturnedOnce) {
  GatheringLedger ledger;
  ledger.Begin(3, "a");
  ledger.OnGathered({{3, 0}, {}, "worker w2 has begun step 4"});
  const auto values = ledger.Take();
  EXPECT_EQ(values.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(values.status().message()),
            "worker w2 has begun step 4");
  EXPECT_EQ(ledger.Begin(3, "b")->id, (GatheringId{3, 1}));
}

TEST(GatheringLedgerTest, JobThatGoesBackForgetsTheGathering) {
  GatheringLedger ledger;
  ledger.Begin(3, "a");
  ledger.GoBack(/*epoch=*/7);
  EXPECT_FALSE(ledger.Unanswered().has_value());
  EXPECT_EQ(ledger.Begin(3, "b")->id, (GatheringId{3, 0}));
}

TEST(GatheringLedgerTest, GatheringsAfterGoingBackAreOtherThanTheFirstOnes) {
  GatheringLedger ledger;
  EXPECT_EQ(ledger.Begin(kInitialRound, "a")->id,
            (GatheringId{kInitialRound, 0, 0}));
  ledger.GoBack(/*epoch=*/7);
  const GatheringId back = ledger.Begin(kInitialRound, "b")->id;
  EXPECT_EQ(back, (GatheringId{kInitialRound, 0, 7}));
  ledger.OnGathered({back, {"b"}, ""});
  ASSERT_TRUE(ledger.Take().ok());
  EXPECT_EQ(ledger.Begin(3, "c")->id, (GatheringId{3, 0, 0}));
}

}  // namespace
}  // namespace nereus
