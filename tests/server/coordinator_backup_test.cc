// Tests of a coordinator that loses servers of a job with backups.

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
using testing::Not;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNewShard = 50;
constexpr SessionId kBack = 100;

CoordinatorOptions BackupOptions(int shards = 2, bool has_checkpoints = false) {
  CoordinatorOptions options = OptionsOf(2, shards);
  options.spec.options.backup = true;
  options.has_checkpoints = has_checkpoints;
  return options;
}

// Request of another process to be the server of `shard`.
JoinRequest Another(int shard, bool has_checkpoints = false) {
  JoinRequest request = ShardRequest(shard);
  request.incarnation = 99 + shard;
  request.has_checkpoints = has_checkpoints;
  return request;
}

Heartbeat WholeBeat(uint64_t epoch, std::vector<int32_t> whole) {
  Heartbeat heartbeat;
  heartbeat.epoch = epoch;
  heartbeat.current_backups = std::move(whole);
  return heartbeat;
}

// Each of `servers` reports closed rounds of all shards; then all other members
// report.
void ReportRest(CoordinatorDriver& driver, int64_t begun_step,
                std::vector<SessionId> servers) {
  MachineReport report;
  for (int shard = 0; shard < driver.job().shards(); ++shard) {
    report.closed_rounds[shard] = begun_step - 1;
  }
  for (const SessionId session : servers) driver.Report(session, report);
  driver.ReportRest(begun_step);
}

// Loses server 0. In epoch 2 the backup of shard 0, server 1, is its primary.
void LoseServer0(CoordinatorDriver& driver) {
  driver.Gather();
  driver.Break(kShard0);
  driver.Pass(absl::Seconds(1.5));
  ReportRest(driver, 5, {kShard1});
  ASSERT_EQ(driver.job().epoch, 2u);
}

// Loses server 0. In epoch 3 another server 0 is the backup of both shards.
void ReplaceServer0(CoordinatorDriver& driver) {
  LoseServer0(driver);
  driver.Say(kNewShard, Another(0));
  ReportRest(driver, 6, {kShard1});
  ASSERT_EQ(driver.job().epoch, 3u);
}

TEST(CoordinatorBackupTest, EachShardBeginsWithABackup) {
  CoordinatorDriver driver(BackupOptions());
  EXPECT_THAT(driver.Status().shard_servers, IsEmpty());
  driver.Gather();
  EXPECT_EQ(driver.job().shard_servers, FirstShardServers(2, true));
  EXPECT_EQ(driver.Status().shard_servers, FirstShardServers(2, true));
}

TEST(CoordinatorBackupTest, JobWithBackupsNeedsTwoServers) {
  EXPECT_THAT(
      std::string(BackupOptions(1).Validate().message()),
      HasSubstr("--backup=1 needs two servers or more: --servers is 1"));
  EXPECT_TRUE(BackupOptions(2).Validate().ok());
}

TEST(CoordinatorBackupTest, BackupOfALostPrimaryTakesOverAtOnce) {
  CoordinatorDriver driver(BackupOptions());
  driver.Gather();
  driver.Break(kShard0);
  const Reaction gone = driver.Pass(absl::Seconds(1.5));
  EXPECT_THAT(gone.announced,
              Contains("backups take over all chunks that shard 0 served"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(gone),
              UnorderedElementsAre(kShard1, kWorker0, kWorker1));
  ReportRest(driver, 5, {kShard1});
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().epoch, 2u);
  EXPECT_EQ(driver.job().history.base_round, kInitialRound);
  EXPECT_EQ(driver.job().workers, FirstWorkers(2));
  EXPECT_THAT(
      driver.job().shard_servers,
      ElementsAre(ShardServers{1, -1, false}, ShardServers{1, -1, false}));
  // The job waits for no member.
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());
}

TEST(CoordinatorBackupTest, NewServerBecomesTheBackupAndThenThePrimary) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  EXPECT_THAT(
      driver.job().shard_servers,
      ElementsAre(ShardServers{1, 0, false}, ShardServers{1, 0, false}));
  // First one backup becomes current, then both.
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Say(kShard1, WholeBeat(3, {1}))),
              SizeIs(4));
  ReportRest(driver, 7, {kShard1, kNewShard});
  EXPECT_THAT(driver.job().shard_servers,
              ElementsAre(ShardServers{1, 0, false}, ShardServers{1, 0, true}));
  driver.Say(kShard1, WholeBeat(4, {0, 1}));
  ReportRest(driver, 7, {kShard1, kNewShard});
  EXPECT_EQ(driver.job().shard_servers, FirstShardServers(2, true));
  EXPECT_EQ(driver.job().epoch, 5u);
  driver.Say(kNewShard, WholeBeat(5, {0}));
  driver.Say(kShard1, WholeBeat(5, {1}));
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).sent, IsEmpty());
}

TEST(CoordinatorBackupTest, CurrentBackupsOfAnotherEpochAreIgnored) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  for (const uint64_t epoch : {0, 1, 2, 4}) {
    EXPECT_THAT(driver.Say(kShard1, WholeBeat(epoch, {0, 1})).sent, IsEmpty());
  }
  // Heartbeats from the backup, from a worker, and about unknown shards are
  // ignored too.
  EXPECT_THAT(driver.Say(kNewShard, WholeBeat(3, {0, 1})).sent, IsEmpty());
  EXPECT_THAT(driver.Say(kWorker0, WholeBeat(3, {0, 1})).sent, IsEmpty());
  EXPECT_THAT(driver.Say(kShard1, WholeBeat(3, {-1, 2, 1 << 30})).sent,
              IsEmpty());
}

TEST(CoordinatorBackupTest, CurrentBackupIsIgnoredIfTheShardHasNoBackup) {
  CoordinatorDriver driver(BackupOptions());
  LoseServer0(driver);
  EXPECT_THAT(driver.Say(kShard1, WholeBeat(2, {0, 1})).sent, IsEmpty());
}

TEST(CoordinatorBackupTest, BackupThatIsNotCurrentDoesNotTakeOver) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_EQ(driver.state(), JobState::kLost);
  EXPECT_THAT(driver.coordinator().reason(),
              HasSubstr("there is no checkpoint to go on from"));
}

// The primary reports that its backups are current, and is lost before the
// epoch that records this.
TEST(CoordinatorBackupTest, BackupThatHasJustBecomeCurrentTakesOver) {
  for (const bool reported : {false, true}) {
    CoordinatorDriver driver(BackupOptions());
    ReplaceServer0(driver);
    driver.Say(kShard1, WholeBeat(3, {0, 1}));
    if (reported) driver.Report(kShard1, 7);
    driver.Break(kShard1);
    driver.Pass(absl::Seconds(1.5));
    ASSERT_EQ(driver.state(), JobState::kRunning);
    ReportRest(driver, 7, {kNewShard});
    EXPECT_EQ(driver.job().epoch, 4u);
    EXPECT_THAT(
        driver.job().shard_servers,
        ElementsAre(ShardServers{0, -1, false}, ShardServers{0, -1, false}));
  }
}

// The process that died was current; the process that rejoins has no values.
TEST(CoordinatorBackupTest, BackupThatDiesAndRejoinsIsNotCurrent) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  driver.Say(kShard1, WholeBeat(3, {0, 1}));
  driver.Break(kNewShard);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.Say(kNewShard + 1, Another(0));
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_EQ(driver.state(), JobState::kLost);
}

TEST(CoordinatorBackupTest, JobThatLosesBothServersFailsWithoutACheckpoint) {
  CoordinatorDriver driver(BackupOptions());
  driver.Gather();
  driver.Break(kShard0);
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_EQ(driver.state(), JobState::kLost);
}

TEST(CoordinatorBackupTest, JobThatLosesBothServersWaitsForOthersAndGoesBack) {
  CoordinatorDriver driver(BackupOptions(2, true));
  driver.Gather();
  driver.MakeCheckpoint(3);
  driver.Break(kShard0);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_THAT(driver.Status().reason, Not(HasSubstr("shard")));
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.ReportRest(5);
  driver.Say(kNewShard, Another(0, true));
  EXPECT_EQ(driver.job().epoch, 1u);
  driver.Say(kNewShard + 1, Another(1, true));
  driver.ReportRest(5);
  EXPECT_EQ(driver.job().history.base_round, 3);
  EXPECT_EQ(driver.job().shard_servers, FirstShardServers(2, true));
}

TEST(CoordinatorBackupTest, WithThreeServersTheNextServerIsTheBackup) {
  CoordinatorDriver driver(BackupOptions(3));
  driver.Gather();
  driver.Break(kShard0 + 2);
  driver.Pass(absl::Seconds(1.5));
  ReportRest(driver, 5, {kShard0, kShard1});
  EXPECT_THAT(driver.job().shard_servers,
              ElementsAre(ShardServers{0, 1, true}, ShardServers{1, -1, false},
                          ShardServers{0, -1, false}));
  // Server 2 was the backup of shard 1, so only server 1 has its values.
  driver.Break(kShard1);
  driver.Pass(absl::Seconds(1.5));
  EXPECT_EQ(driver.state(), JobState::kLost);
}

TEST(CoordinatorBackupTest, ServerThatIsOnlyABackupMayDie) {
  CoordinatorDriver driver(BackupOptions());
  ReplaceServer0(driver);
  driver.Break(kNewShard);
  const Reaction gone = driver.Pass(absl::Seconds(1.5));
  EXPECT_THAT(gone.announced, Contains(HasSubstr("shard 0")));
  // No backup has to take over.
  EXPECT_THAT(gone.announced, Not(Contains(HasSubstr("take over"))));
  ReportRest(driver, 7, {kShard1});
  EXPECT_THAT(
      driver.job().shard_servers,
      ElementsAre(ShardServers{1, -1, false}, ShardServers{1, -1, false}));
}

// Tests that restart the coordinator after the backup of shard 0 took over.
class BackupRestartTest : public testing::Test {
 protected:
  BackupRestartTest() : driver_(BackupOptions()) { driver_.Gather(); }
  // Loses server 0. Returns the state that is saved with epoch 2.
  CoordinatorState Lose() {
    driver_.Break(kShard0);
    driver_.Pass(absl::Seconds(1.5));
    MachineReport report;
    report.closed_rounds = {{0, 4}, {1, 4}};
    driver_.Report(kShard1, report);
    driver_.Report(kWorker0, 5);
    const Reaction on = driver_.Report(kWorker1, 5);
    EXPECT_THAT(on.saved, SizeIs(1));
    return on.saved.back();
  }
  void ResumeAll(const std::vector<SessionId>& members) {
    for (const SessionId member : members) {
      driver_.ResumeIn(kBack + member, member);
    }
  }
  CoordinatorDriver driver_;
};

TEST_F(BackupRestartTest, RestartedCoordinatorGoesOnWithoutTheLostServer) {
  const CoordinatorState saved = Lose();
  driver_.Restart(saved);
  ResumeAll({kShard1, kWorker0, kWorker1});
  ReportRest(driver_, 6, {kBack + kShard1});
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  EXPECT_EQ(driver_.job().epoch, 3u);
  EXPECT_EQ(driver_.job().history.base_round, kInitialRound);
  EXPECT_THAT(
      driver_.job().shard_servers,
      ElementsAre(ShardServers{1, -1, false}, ShardServers{1, -1, false}));
}

TEST_F(BackupRestartTest, LastServerWithAShardMustComeBack) {
  driver_.Restart(Lose());
  ResumeAll({kWorker0, kWorker1});
  driver_.Pass(absl::Seconds(10.5));
  EXPECT_EQ(driver_.state(), JobState::kLost);
}

TEST_F(BackupRestartTest, NewServerBecomesABackupAfterARestart) {
  CoordinatorState saved;
  saved = Lose();
  driver_.Restart(saved);
  ResumeAll({kShard1, kWorker0, kWorker1});
  driver_.Say(kNewShard, Another(0));
  ReportRest(driver_, 6, {kBack + kShard1});
  EXPECT_THAT(
      driver_.job().shard_servers,
      ElementsAre(ShardServers{1, 0, false}, ShardServers{1, 0, false}));
}

}  // namespace
}  // namespace nereus
