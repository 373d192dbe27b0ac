// Processes that join a running job, and must wait because others have cost it
// steps (JoinBrake).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr SessionId kNew = 50;

// A worker joins in `session`, and ends at once when the epoch has begun.
void JoinAndEnd(CoordinatorDriver& driver, const std::string& name,
                SessionId session) {
  driver.Say(session, WorkerRequest(name));
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().worker_count(), 3);
  driver.Break(session);
  driver.Pass(absl::Seconds(1.5));
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().worker_count(), 2);
}

TEST(CoordinatorJoinTest, WorkerThatEndsAtOnceMakesTheNextOneWait) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  JoinAndEnd(driver, "w2", kNew);
  const uint64_t epoch = driver.job().epoch;
  const Reaction joins = driver.Say(kNew + 1, WorkerRequest("w3"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(joins), IsEmpty());
  const Reaction told = driver.Tick();
  EXPECT_THAT(Heard<Waiting>(told, kNew + 1).text, HasSubstr("w3 waits "));
  EXPECT_THAT(
      Heard<Waiting>(told, kNew + 1).text,
      HasSubstr("because processes that joined lately ended soon, and stopped "
                "the steps for 1."));
  EXPECT_THAT(told.announced, Contains(HasSubstr("w3 at w3:1 waits ")));
  EXPECT_THAT(driver.Status().newcomers, ElementsAre(HasSubstr("w3 waits ")));
  EXPECT_EQ(driver.Status().waiting, "");  // The job itself waits for nothing.
  // A second newcomer is admitted together with the first one.
  driver.Beat(kNew + 1, -1, -1);
  driver.Pass(absl::Seconds(9));
  driver.Beat(kNew + 1, -1, -1);
  driver.Pass(absl::Seconds(9));
  driver.Say(kNew + 2, WorkerRequest("w4"));
  EXPECT_EQ(driver.job().epoch, epoch);
  for (int i = 0; i < 14; ++i) {
    driver.Beat(kNew + 1, -1, -1);
    driver.Beat(kNew + 2, -1, -1);
    driver.Pass(absl::Seconds(1));
  }
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().worker_count(), 4);
  EXPECT_EQ(driver.job().epoch, epoch + 1);
  EXPECT_THAT(driver.Status().newcomers, IsEmpty());
}

TEST(CoordinatorJoinTest, ReplacementOfAnOldWorkerDoesNotWait) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  JoinAndEnd(driver, "w2", kNew);
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().worker_count(), 1);
  const Reaction back = driver.Say(kNew + 1, WorkerRequest("w1"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(back), SizeIs(2));
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().worker_count(), 2);
}

TEST(CoordinatorJoinTest, WorkerThatIsNeverAdmittedGivesItsRankBack) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  for (int i = 0; i < 3; ++i) {
    driver.Say(kNew + i, WorkerRequest(absl::StrCat("gone", i)));
    driver.Break(kNew + i);
    driver.ReportRest(4);
    driver.Pass(absl::Minutes(1));
  }
  driver.Say(kNew + 5, WorkerRequest("stays"));
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(Heard<EpochStart>(on, kNew + 5).self, PeerId::Worker(2));
  EXPECT_EQ(on.saved.back().next_rank, 3);
}

TEST(CoordinatorJoinTest, RankOfADeadWorkerIsNotGivenAgain) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  JoinAndEnd(driver, "w2", kNew);
  driver.Pass(absl::Minutes(1));
  driver.Say(kNew + 1, WorkerRequest("w2"));
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(Heard<EpochStart>(on, kNew + 1).self, PeerId::Worker(3));
}

TEST(CoordinatorJoinTest, WaitingProcessHearsThatTheJobIsOver) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  JoinAndEnd(driver, "w2", kNew);
  driver.Say(kNew + 1, WorkerRequest("w3"));
  driver.Fail("over");
  EXPECT_FALSE(driver.coordinator().everyone_knows());
  EXPECT_THAT(RefusalIn(driver.Tick(), kNew + 1).ToString(), HasSubstr("over"));
}

TEST(CoordinatorJoinTest, WaitingProcessMayGo) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  JoinAndEnd(driver, "w2", kNew);
  driver.Say(kNew + 1, WorkerRequest("w3"));
  driver.Break(kNew + 1);
  EXPECT_THAT(driver.Status().newcomers, IsEmpty());
  driver.Pass(absl::Minutes(1));
  EXPECT_EQ(driver.job().worker_count(), 2);
}

}  // namespace
}  // namespace nereus
