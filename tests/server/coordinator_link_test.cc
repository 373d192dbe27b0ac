#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

// The member of `session` reports that it has lost its connection to `peer`, in
// the job's epoch.
Reaction Lose(CoordinatorDriver& driver, SessionId session, PeerId peer) {
  return driver.Say(session, LostPeer{driver.job().epoch, peer, "reset"});
}

TEST(CoordinatorLinkTest, LostLinkReportedByBothEndsIsASingleChange) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const Reaction asked = Lose(driver, kWorker0, PeerId::Shard(0));
  EXPECT_THAT(HearersOf<PrepareEpoch>(asked),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  EXPECT_THAT(asked.announced,
              ElementsAre("worker w0 lost its connection to shard 0 (s0 at "
                          "s0:1): reset"));
  EXPECT_THAT(Lose(driver, kShard0, PeerId::Worker(0)).sent, IsEmpty());
  const Reaction on = driver.ReportRest(4);
  EXPECT_THAT(on.announced,
              Contains(HasSubstr("the job goes on; worker w0 and shard 0 lost "
                                 "their connection, and make another; ")));
  EXPECT_EQ(driver.job().workers, FirstWorkers(2));
  for (const SessionId session : {kShard0, kWorker0, kWorker1}) {
    EXPECT_THAT(Heard<EpochStart>(on, session).broken_links,
                ElementsAre(Pair(PeerId::Worker(0), PeerId::Shard(0))));
  }
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
  // The next epoch makes only the newly broken link again.
  Lose(driver, kWorker1, PeerId::Worker(0));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportRest(4), kWorker0).broken_links,
              ElementsAre(Pair(PeerId::Worker(0), PeerId::Worker(1))));
}

TEST(CoordinatorLinkTest, LinkLostInAChangeIsMadeAgainInItsEpoch) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  Lose(driver, kWorker1, PeerId::Shard(0));
  const Reaction on = driver.ReportRest(4);
  EXPECT_THAT(Heard<EpochStart>(on, kNew).broken_links,
              ElementsAre(Pair(PeerId::Worker(1), PeerId::Shard(0))));
  EXPECT_THAT(HearersOf<PrepareEpoch>(on), IsEmpty());
  EXPECT_EQ(driver.job().epoch, 2u);
}

TEST(CoordinatorLinkTest, LinkToAMemberWithoutSessionWaits) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  EXPECT_THAT(Lose(driver, kWorker0, PeerId::Worker(1)).sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(1)).sent, IsEmpty());
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.ResumeIn(kNew, kWorker1)),
              UnorderedElementsAre(kShard0, kWorker0, kNew));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportRest(4), kNew).broken_links,
              ElementsAre(Pair(PeerId::Worker(0), PeerId::Worker(1))));
}

TEST(CoordinatorLinkTest, LossOfALinkToADeadMemberNeedsNoEpochOfItsOwn) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  Lose(driver, kWorker0, PeerId::Worker(1));
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Pass(absl::Seconds(1.5))),
              UnorderedElementsAre(kShard0, kWorker0));
  driver.ReportRest(4);
  EXPECT_THAT(driver.job().workers, ElementsAre(EpochWorker{0, 0}));
  // Later reports about this member are ignored.
  EXPECT_THAT(Lose(driver, kShard0, PeerId::Worker(1)).sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorLinkTest, ReportsAboutUnknownPeersOrTheSenderAreIgnored) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/4));
  driver.Gather();
  for (const PeerId peer :
       {PeerId::Worker(0), PeerId::Worker(7), PeerId::Shard(1)}) {
    EXPECT_THAT(Lose(driver, kWorker0, peer).sent, IsEmpty());
  }
  // Reports about processes that are not admitted are ignored too.
  driver.Say(kNew, WorkerRequest("new"));
  Lose(driver, kWorker0, PeerId::Worker(2));
  Lose(driver, kNew, PeerId::Worker(0));
  EXPECT_THAT(Heard<EpochStart>(driver.ReportRest(4), kNew).broken_links,
              IsEmpty());
}

std::string NameOf(PeerId member) {
  return member.role == Role::kShard ? PeerName(member)
                                     : "worker w" + std::to_string(member.rank);
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
  // Both ends report that the link is lost, unless the first report removes one
  // of them. Then the next epoch begins.
  Reaction LoseOnce(CoordinatorDriver& driver) {
    const Pairing& pairing = GetParam();
    Reaction asked = Lose(driver, pairing.reporter, pairing.peer);
    const SessionId other =
        (pairing.peer.role == Role::kShard ? kShard0 : kWorker0) +
        pairing.peer.rank;
    const PeerId self =
        pairing.goes == pairing.peer ? pairing.stays : pairing.goes;
    if (asked.ended.empty()) Lose(driver, other, self);
    driver.ReportRest(4);
    return asked;
  }
};

TEST_P(CoordinatorLinkLossTest, ThirdLossWithinAMinutePartsTheMembers) {
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
              HasSubstr("it and " + NameOf(GetParam().stays) +
                        " cannot keep a connection"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().epoch, 4u);
  EXPECT_THAT(driver.job().workers, SizeIs(2));
  EXPECT_EQ(driver.job().PositionOf(GetParam().goes.rank), -1);
}

TEST_P(CoordinatorLinkLossTest, ThreeLossesInMoreThanAMinuteDoNotPartThem) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  LoseOnce(driver);
  driver.Pass(absl::Seconds(30));
  LoseOnce(driver);
  driver.Pass(absl::Seconds(30.5));
  LoseOnce(driver);
  EXPECT_EQ(driver.job().epoch, 4u);
  EXPECT_THAT(driver.job().workers, SizeIs(3));
  // The last three of four losses lie within a minute.
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

// Three links of worker w1 are lost twice each.
// Each attempt takes a minute until it is reported.
TEST(CoordinatorLinkTest, WorkersThatNeverConnectAreParted) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  Reaction last;
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(driver.job().worker_count(), 2);
    driver.Pass(absl::Minutes(1));
    last = driver.Say(kWorker0, LostPeer{driver.job().epoch, PeerId::Worker(1),
                                         "no route", /*reached=*/false});
    driver.ReportRest(4);
  }
  EXPECT_THAT(last.announced,
              Contains(HasSubstr("was removed: it and worker w0 have never "
                                 "been connected")));
  EXPECT_EQ(driver.job().worker_count(), 1);
}

TEST(CoordinatorLinkTest, LossesCountByLink) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const PeerId peer :
         {PeerId::Shard(0), PeerId::Worker(0), PeerId::Worker(2)}) {
      Lose(driver, kWorker1, peer);
      driver.ReportRest(4);
    }
  }
  EXPECT_EQ(driver.job().epoch, 7u);
  EXPECT_EQ(driver.job().workers, FirstWorkers(3));
}

// Worker w1 has lost another connection before, and has the lower rank.
TEST(CoordinatorLinkTest, MemberWithMoreLossesGoes) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  Lose(driver, kWorker1, PeerId::Worker(0));
  driver.ReportRest(4);
  Reaction last;
  for (int repeat = 0; repeat < 3; ++repeat) {
    ASSERT_EQ(driver.job().worker_count(), 3);
    last = Lose(driver, kWorker2, PeerId::Worker(1));
    driver.ReportRest(4);
  }
  EXPECT_THAT(std::string(RefusalIn(last, kWorker1).message()),
              HasSubstr("it and worker w2 cannot keep a connection"));
  EXPECT_EQ(driver.job().PositionOf(1), -1);
  EXPECT_EQ(driver.job().worker_count(), 2);
}

// A loss of an hour ago says nothing of today's links.
TEST(CoordinatorLinkTest, LossesOfLongAgoDoNotCount) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  Lose(driver, kWorker1, PeerId::Worker(0));
  driver.ReportRest(4);
  driver.Pass(absl::Hours(1));
  for (int repeat = 0; repeat < 3; ++repeat) {
    Lose(driver, kWorker2, PeerId::Worker(1));
    driver.ReportRest(4);
  }
  EXPECT_EQ(driver.job().PositionOf(2), -1);
  EXPECT_EQ(driver.job().worker_count(), 2);
}

// Worker w1 has lost its connection to w0, which then left the job.
TEST(CoordinatorLinkTest, LossesToAReleasedWorkerDoNotCount) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  Lose(driver, kWorker1, PeerId::Worker(0));
  driver.ReportRest(4);
  driver.Say(kWorker0, Leave{4});
  for (const SessionId session : {kWorker1, kWorker2}) {
    driver.Beat(session, 5, 4);
  }
  driver.ReportRest(5);
  EXPECT_THAT(driver.Tick().ended, ElementsAre(kWorker0));
  for (int repeat = 0; repeat < 3; ++repeat) {
    ASSERT_EQ(driver.job().worker_count(), 2);
    Lose(driver, kWorker2, PeerId::Worker(1));
    driver.ReportRest(5);
  }
  EXPECT_EQ(driver.job().PositionOf(2), -1);
  EXPECT_EQ(driver.job().worker_count(), 1);
}

// Two servers, each the backup of the other's shard. One of them runs in the
// coordinator's process, which would end with it.
class CoordinatorOwnShardTest : public testing::TestWithParam<int> {
 protected:
  static CoordinatorOptions Options(int own_shard) {
    CoordinatorOptions options = OptionsOf(2, 2);
    options.spec.options.backup = true;
    options.own_shard = own_shard;
    return options;
  }
  // Each of `servers` reports closed rounds of both shards; then all other
  // members report.
  static void ReportRest(CoordinatorDriver& driver,
                         const std::vector<SessionId>& servers) {
    MachineReport report;
    report.closed_rounds = {{0, 3}, {1, 3}};
    for (const SessionId server : servers) driver.Report(server, report);
    driver.ReportRest(4);
  }
  // Server `reporter` reports the loss of the other server again and again,
  // until one of them is removed. Returns the reaction to the last report.
  static Reaction LoseUntilOneGoes(CoordinatorDriver& driver, int reporter) {
    for (int repeat = 1;; ++repeat) {
      Reaction reaction =
          Lose(driver, kShard0 + reporter, PeerId::Shard(1 - reporter));
      if (!reaction.ended.empty()) {
        EXPECT_EQ(repeat, 3);
        return reaction;
      }
      if (repeat > 3) return reaction;
      ReportRest(driver, {kShard0, kShard1});
    }
  }
};

TEST_P(CoordinatorOwnShardTest, OwnShardNeverHasToGo) {
  const int own = GetParam();
  for (const int reporter : {0, 1}) {
    SCOPED_TRACE(reporter);
    CoordinatorDriver driver(Options(own));
    driver.Gather();
    const Reaction gone = LoseUntilOneGoes(driver, reporter);
    EXPECT_THAT(gone.ended, ElementsAre(kShard0 + 1 - own));
    EXPECT_THAT(std::string(RefusalIn(gone, kShard0 + 1 - own).message()),
                HasSubstr("it and shard " + std::to_string(own) +
                          " cannot keep a connection"));
    ReportRest(driver, {kShard0 + own});
    EXPECT_EQ(driver.state(), JobState::kRunning);
    EXPECT_EQ(driver.job().shard_servers[1 - own].primary, own);
  }
}

// The own shard's server has lost a worker's connection as well.
TEST_P(CoordinatorOwnShardTest, OwnShardStaysThoughItHasMoreLosses) {
  const int own = GetParam();
  CoordinatorDriver driver(Options(own));
  driver.Gather();
  Lose(driver, kWorker0, PeerId::Shard(own));
  ReportRest(driver, {kShard0, kShard1});
  EXPECT_THAT(LoseUntilOneGoes(driver, /*reporter=*/0).ended,
              ElementsAre(kShard0 + 1 - own));
}

INSTANTIATE_TEST_SUITE_P(Shards, CoordinatorOwnShardTest, testing::Values(0, 1),
                         testing::PrintToStringParamName());

// A coordinator that is a process of its own has no own shard.
TEST(CoordinatorLinkTest, ServerWithMoreLossesGoes) {
  for (const int worse : {0, 1}) {
    CoordinatorOptions options = OptionsOf(2, 2);
    options.spec.options.backup = true;
    ASSERT_EQ(options.own_shard, -1);
    CoordinatorDriver driver(options);
    driver.Gather();
    MachineReport report;
    report.closed_rounds = {{0, 3}, {1, 3}};
    Reaction last = Lose(driver, kWorker0, PeerId::Shard(worse));
    for (int repeat = 0; repeat < 3; ++repeat) {
      driver.Report(kShard0, report);
      driver.Report(kShard1, report);
      driver.ReportRest(4);
      last = Lose(driver, kShard1, PeerId::Shard(0));
    }
    EXPECT_THAT(last.ended, ElementsAre(kShard0 + worse));
  }
}

}  // namespace
}  // namespace nereus
