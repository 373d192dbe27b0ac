#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

// `session`'s member has lost its connection to `peer`, in the job's epoch.
Reaction Lose(CoordinatorDriver& driver, SessionId session, PeerId peer) {
  return driver.Say(session, LostPeer{driver.job().epoch, peer, "reset"});
}

TEST(CoordinatorLinkTest, ALostLinkIsOneChangeWhoeverReportsIt) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const Reaction asked = Lose(driver, kWorker0, PeerId::Shard(0));
  EXPECT_THAT(HearersOf<PrepareEpoch>(asked),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  EXPECT_THAT(asked.announced,
              ElementsAre("worker 0 lost its connection to shard 0 (s0 at "
                          "s0:1): reset"));
  EXPECT_THAT(Lose(driver, kShard0, PeerId::Worker(0)).sent, IsEmpty());
  const Reaction on = driver.ReportAll(4);
  EXPECT_EQ(driver.job().workers, FirstWorkers(2));
  for (const SessionId session : {kShard0, kWorker0, kWorker1}) {
    EXPECT_THAT(Heard<EpochStart>(on, session).lost_links,
                ElementsAre(Pair(PeerId::Worker(0), PeerId::Shard(0))));
  }
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
  // The next change has others.
  Lose(driver, kWorker1, PeerId::Worker(0));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportAll(4), kWorker0).lost_links,
              ElementsAre(Pair(PeerId::Worker(0), PeerId::Worker(1))));
}

TEST(CoordinatorLinkTest, WhatIsLostInAChangeIsMadeAgainInItsEpoch) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  Lose(driver, kWorker1, PeerId::Shard(0));
  const Reaction on = driver.ReportAll(4);
  EXPECT_THAT(Heard<EpochStart>(on, kNew).lost_links,
              ElementsAre(Pair(PeerId::Worker(1), PeerId::Shard(0))));
  EXPECT_THAT(HearersOf<PrepareEpoch>(on), IsEmpty());
  EXPECT_EQ(driver.job().epoch, 2u);
}

TEST(CoordinatorLinkTest, ALinkToOneWithoutASessionWaits) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  EXPECT_THAT(Lose(driver, kWorker0, PeerId::Worker(1)).sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(1)).sent, IsEmpty());
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.ResumeIn(kNew, kWorker1)),
              UnorderedElementsAre(kShard0, kWorker0, kNew));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportAll(4), kNew).lost_links,
              ElementsAre(Pair(PeerId::Worker(0), PeerId::Worker(1))));
}

TEST(CoordinatorLinkTest, ALinkToOneThatHasDiedIsItsDeath) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  Lose(driver, kWorker0, PeerId::Worker(1));
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Pass(absl::Seconds(1.5))),
              UnorderedElementsAre(kShard0, kWorker0));
  driver.ReportAll(4);
  EXPECT_THAT(driver.job().workers, ElementsAre(WorkerSeat{0, 0}));
  // Reports that come later are of nobody.
  EXPECT_THAT(Lose(driver, kShard0, PeerId::Worker(1)).sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorLinkTest, ReportsAboutNobodyAndItselfAreIgnored) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  for (const PeerId peer :
       {PeerId::Worker(0), PeerId::Worker(7), PeerId::Shard(1)}) {
    EXPECT_THAT(Lose(driver, kWorker0, peer).sent, IsEmpty());
  }
  // Nor are those who are yet to be admitted.
  driver.Say(kNew, WorkerRequest("new"));
  Lose(driver, kWorker0, PeerId::Worker(2));
  Lose(driver, kNew, PeerId::Worker(0));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportAll(4), kNew).lost_links,
              IsEmpty());
}

struct Pairing {
  const char* name;
  SessionId reporter;
  PeerId peer;
  PeerId goes;
  PeerId stays;
};

class CoordinatorLinkLossTest : public testing::TestWithParam<Pairing> {
 protected:
  // Both ends report it; the job goes on.
  Reaction LoseOnce(CoordinatorDriver& driver) {
    const Pairing& pairing = GetParam();
    Reaction asked = Lose(driver, pairing.reporter, pairing.peer);
    const SessionId other =
        (pairing.peer.role == Role::kShard ? kShard0 : kWorker0) +
        pairing.peer.rank;
    const PeerId self =
        pairing.goes == pairing.peer ? pairing.stays : pairing.goes;
    if (asked.ended.empty()) Lose(driver, other, self);
    driver.ReportAll(4);
    return asked;
  }
};

TEST_P(CoordinatorLinkLossTest, TheThirdWithinAMinuteParts) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  LoseOnce(driver);
  driver.Pass(absl::Seconds(30));
  LoseOnce(driver);
  EXPECT_THAT(driver.Status().members, SizeIs(4));
  driver.Pass(absl::Seconds(30));
  const Reaction gone = LoseOnce(driver);
  const SessionId session = kWorker0 + GetParam().goes.rank;
  EXPECT_EQ(RefusalIn(gone, session).code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(RefusalIn(gone, session).message()),
              HasSubstr("it and " + PeerName(GetParam().stays) +
                        " cannot keep a connection"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().epoch, 4u);
  EXPECT_THAT(driver.job().workers, SizeIs(2));
  EXPECT_EQ(driver.job().PositionOf(GetParam().goes.rank), -1);
}

TEST_P(CoordinatorLinkLossTest, ThreeInMoreThanAMinuteDoNot) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  LoseOnce(driver);
  driver.Pass(absl::Seconds(30));
  LoseOnce(driver);
  driver.Pass(absl::Seconds(30.5));
  LoseOnce(driver);
  EXPECT_EQ(driver.job().epoch, 4u);
  EXPECT_THAT(driver.job().workers, SizeIs(3));
  // But the third after the second is one.
  driver.Pass(absl::Seconds(29.5));
  LoseOnce(driver);
  EXPECT_THAT(driver.job().workers, SizeIs(2));
}

INSTANTIATE_TEST_SUITE_P(
    All, CoordinatorLinkLossTest,
    testing::Values(
        Pairing{"TheHigherOfTwoWorkers", kWorker1, PeerId::Worker(2),
                PeerId::Worker(2), PeerId::Worker(1)},
        Pairing{"TheHigherAlsoIfItReports", kWorker2, PeerId::Worker(1),
                PeerId::Worker(2), PeerId::Worker(1)},
        Pairing{"TheWorkerNotTheShard", kWorker1, PeerId::Shard(0),
                PeerId::Worker(1), PeerId::Shard(0)},
        Pairing{"TheWorkerAlsoIfTheShardReports", kShard0, PeerId::Worker(1),
                PeerId::Worker(1), PeerId::Shard(0)}),
    [](const auto& info) { return std::string(info.param.name); });

// Of different links, each is lost twice.
TEST(CoordinatorLinkTest, LossesCountByLink) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const PeerId peer :
         {PeerId::Shard(0), PeerId::Worker(0), PeerId::Worker(2)}) {
      Lose(driver, kWorker1, peer);
      driver.ReportAll(4);
    }
  }
  EXPECT_EQ(driver.job().epoch, 7u);
  EXPECT_EQ(driver.job().workers, FirstWorkers(3));
}

}  // namespace
}  // namespace nereus
