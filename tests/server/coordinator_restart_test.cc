// Tests of a coordinator that dies and is started again with its saved state.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::UnorderedElementsAre;

// kBack + n: new session of the member that had session n.
constexpr SessionId kBack = 100;

// Two workers and a shard, in epoch 1, with a checkpoint of round 3.
class CoordinatorRestartTest : public testing::Test {
 protected:
  CoordinatorRestartTest() : driver_(Options()) {
    Note(driver_.Gather());
    Note(driver_.MakeCheckpoint(3));
  }
  static CoordinatorOptions Options() {
    CoordinatorOptions options = OptionsOf(2, 1, /*max_workers=*/3);
    options.has_checkpoints = true;
    return options;
  }
  // Keeps the last state that was saved.
  Reaction Note(Reaction reaction) {
    if (!reaction.saved.empty()) saved_ = reaction.saved.back();
    return reaction;
  }
  Reaction ResumeAll(const std::vector<SessionId>& members) {
    Reaction last;
    for (const SessionId member : members) {
      last = driver_.ResumeIn(kBack + member, member);
    }
    return last;
  }
  CoordinatorDriver driver_;
  CoordinatorState saved_;
};

TEST_F(CoordinatorRestartTest, StateHasTheJob) {
  EXPECT_EQ(saved_.state, JobState::kRunning);
  EXPECT_EQ(saved_.epoch.job, driver_.coordinator().job());
  EXPECT_THAT(saved_.epoch.explanations, SizeIs(2));
  ASSERT_THAT(saved_.members, SizeIs(3));
  EXPECT_EQ(saved_.members[0].id, PeerId::Shard(0));
  EXPECT_EQ(saved_.members[2].id, PeerId::Worker(1));
  EXPECT_EQ(saved_.members[2].request.name, "w1");
  EXPECT_THAT(saved_.members[2].request.layers, IsEmpty());
  EXPECT_EQ(saved_.next_rank, 2);
  EXPECT_EQ(saved_.checkpoints.newest->round, 3);
}

// The members of the job count neither as joined nor as replacements.
TEST_F(CoordinatorRestartTest, CountsGoOnFromTheMembersOfTheState) {
  driver_.Restart(saved_);
  ResumeAll({kShard0, kWorker0, kWorker1});
  driver_.ReportRest(/*begun_step=*/4);
  const JobCounts counts = driver_.Status().counts;
  EXPECT_EQ(counts.epochs, 1);
  EXPECT_EQ(counts.epochs_by_reason.at("other"), 1);
  EXPECT_EQ(counts.epochs_by_reason.at("start"), 0);
  EXPECT_EQ(counts.workers_replaced.count(), 0);
}

// Otherwise a restarted coordinator might not know the epoch of its members.
TEST_F(CoordinatorRestartTest, EpochIsSavedBeforeAnyMemberHearsOfIt) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(1, ShardRequest(0));
  const Reaction first = driver.Say(2, WorkerRequest("a"));
  EXPECT_THAT(first.order, ElementsAre("save", "send", "send"));
}

TEST_F(CoordinatorRestartTest, MembersOfTheSavedEpochHearOfTheNextEpoch) {
  driver_.Restart(saved_);
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  const Reaction back = ResumeAll({kShard0, kWorker0, kWorker1});
  ASSERT_THAT(back.sent, SizeIs(1));
  EXPECT_EQ(Heard<PrepareEpoch>(back, kBack + kWorker1).target, 2u);
  const Reaction on = Note(driver_.ReportRest(5));
  EXPECT_THAT(HearersOf<EpochStart>(on),
              UnorderedElementsAre(kBack + kShard0, kBack + kWorker0,
                                   kBack + kWorker1));
  EXPECT_EQ(driver_.job().epoch, 2u);
  EXPECT_EQ(driver_.job().workers, FirstWorkers(2));
  EXPECT_EQ(driver_.job().history.base_round, kInitialRound);
  EXPECT_FALSE(Heard<EpochStart>(on, kBack + kWorker0).from_base);
  // No other change follows.
  EXPECT_THAT(driver_.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST_F(CoordinatorRestartTest, MemberThatMissedAnEpochHearsOfItFirst) {
  // The coordinator dies when it has saved epoch 2 and told no member.
  driver_.Say(50, WorkerRequest("new"));
  Note(driver_.ReportRest(5));
  ASSERT_EQ(saved_.epoch.job->epoch, 2u);
  driver_.Restart(saved_);
  Resume resume = driver_.ResumeOf(kWorker0);
  resume.epoch = 1;
  const Reaction back = driver_.Say(kBack, resume);
  EXPECT_EQ(Heard<EpochStart>(back, kBack).job->epoch, 2u);
  EXPECT_FALSE(Heard<EpochStart>(back, kBack).from_base);
  EXPECT_THAT(Heard<EpochStart>(back, kBack).epoch_members, SizeIs(4));
  EXPECT_EQ(Heard<PrepareEpoch>(back, kBack).target, 3u);
  // A process that had joined, and was told nothing, asks again to join.
  const Reaction joined = driver_.Say(kBack + 1, WorkerRequest("new"));
  EXPECT_EQ(Heard<EpochStart>(joined, kBack + 1).self, PeerId::Worker(2));
}

TEST_F(CoordinatorRestartTest, MemberThatMissedAnEpochHearsOfItsDeadMembers) {
  driver_.Say(50, WorkerRequest("new"));
  Note(driver_.ReportRest(5));
  driver_.Say(kWorker1, HeartbeatOf(INT64_MAX, 0));  // Drops the worker.
  Note(driver_.RequestCheckpoint());
  ASSERT_EQ(saved_.epoch.job->epoch, 2u);
  ASSERT_THAT(saved_.members, SizeIs(3));
  driver_.Restart(saved_);
  Resume resume = driver_.ResumeOf(kWorker0);
  resume.epoch = 1;
  const Reaction back = driver_.Say(kBack, resume);
  EXPECT_THAT(SeatsOf(Heard<EpochStart>(back, kBack)),
              UnorderedElementsAre(PeerId::Shard(0), PeerId::Worker(0),
                                   PeerId::Worker(1), PeerId::Worker(2)));
}

TEST_F(CoordinatorRestartTest, MemberThatDoesNotResumeWithinTheLeaseIsDead) {
  driver_.Restart(saved_);
  ResumeAll({kShard0, kWorker0});
  driver_.ReportRest(5);
  EXPECT_THAT(driver_.Pass(absl::Seconds(9)).announced, IsEmpty());
  const Reaction gone = driver_.Pass(absl::Seconds(1.5));
  EXPECT_THAT(gone.announced,
              Contains(HasSubstr("worker w1 (at w1:1) was removed")));
  EXPECT_EQ(driver_.job().epoch, 2u);
  EXPECT_THAT(driver_.job().workers, ElementsAre(EpochWorker{0, 0}));
  // The worker comes too late.
  const Reaction late = driver_.ResumeIn(kBack + kWorker1, kWorker1);
  EXPECT_EQ(RefusalIn(late, kBack + kWorker1).code(),
            absl::StatusCode::kCancelled);
}

TEST_F(CoordinatorRestartTest, ShardThatDoesNotComeBackIsLost) {
  driver_.Restart(saved_);
  ResumeAll({kWorker0, kWorker1});
  driver_.ReportRest(7);
  driver_.Pass(absl::Seconds(10.5));
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  JoinRequest another = ShardRequest(0);
  another.incarnation = 99;
  another.has_checkpoints = true;
  driver_.Say(50, another);
  EXPECT_EQ(driver_.job().history.base_round, 3);
  EXPECT_EQ(driver_.job().history.contributions_before, 8);
}

// The shard is dropped, the state is saved with a request for a checkpoint, and
// only then does the coordinator die.
TEST_F(CoordinatorRestartTest, ShardThatWasLostBeforeIsLostStill) {
  driver_.Break(kShard0);
  driver_.Pass(absl::Seconds(1.5));
  Note(driver_.RequestCheckpoint());
  ASSERT_THAT(saved_.members, SizeIs(2));
  driver_.Restart(saved_);
  ResumeAll({kWorker0, kWorker1});
  JoinRequest another = ShardRequest(0);
  another.incarnation = 99;
  another.has_checkpoints = true;
  driver_.Say(50, another);
  driver_.ReportRest(7);
  EXPECT_EQ(driver_.job().history.base_round, 3);
}

TEST_F(CoordinatorRestartTest, AnotherShardTakesThePlaceOfAMissingShardAtOnce) {
  driver_.Restart(saved_);
  ResumeAll({kWorker0, kWorker1});
  JoinRequest another = ShardRequest(0);
  another.incarnation = 99;
  another.has_checkpoints = true;
  driver_.Say(50, another);
  driver_.ReportRest(7);
  EXPECT_EQ(driver_.job().history.base_round, 3);
}

TEST_F(CoordinatorRestartTest, RanksAndEpochsGoOnAscending) {
  for (uint64_t life = 0; life < 3; ++life) {
    driver_.Restart(saved_);
    ResumeAll({kShard0 + static_cast<SessionId>(life) * kBack,
               kWorker0 + static_cast<SessionId>(life) * kBack});
    driver_.Pass(absl::Seconds(9));
    const SessionId joins = 2000 + static_cast<SessionId>(life);
    driver_.Say(joins, WorkerRequest("new" + std::to_string(life)));
    Note(driver_.ReportRest(static_cast<int64_t>(5 + life)));
    Note(driver_.Pass(absl::Seconds(1.5)));
    EXPECT_EQ(driver_.job().epoch, 2 + life);
    EXPECT_EQ(driver_.job().workers.back().rank, static_cast<int>(2 + life));
  }
}

TEST_F(CoordinatorRestartTest, LeaverHasLeftAfterARestartToo) {
  driver_.Beat(kWorker1, 5, 5);
  const Reaction left = Note(driver_.Say(kWorker1, Leave{5}));
  ASSERT_THAT(left.saved, SizeIs(1));
  EXPECT_TRUE(saved_.members[2].left);
  EXPECT_EQ(saved_.members[2].last_step, 5);
  driver_.Restart(saved_);
  ResumeAll({kShard0, kWorker0, kWorker1});
  driver_.ReportRest(5);
  EXPECT_THAT(driver_.job().workers, ElementsAre(EpochWorker{0, 0}));
  EXPECT_THAT(driver_.job().crew.left_workers, ElementsAre(1));
}

TEST_F(CoordinatorRestartTest, MembersThatResumeAfterTheEndAreToldOfIt) {
  driver_.Say(kWorker0, Leave{5});
  Note(driver_.Say(kWorker1, Leave{5}));
  Note(driver_.MakeCheckpoint(5));
  ASSERT_EQ(saved_.state, JobState::kFinished);
  driver_.Restart(saved_);
  EXPECT_FALSE(driver_.coordinator().everyone_knows());
  const Reaction back = ResumeAll({kShard0, kWorker0, kWorker1});
  EXPECT_EQ(Heard<JobOver>(back, kBack + kWorker1).state, JobState::kFinished);
  driver_.Break(kBack + kShard0);
  driver_.Break(kBack + kWorker0);
  driver_.Break(kBack + kWorker1);
  EXPECT_TRUE(driver_.coordinator().everyone_knows());
}

TEST_F(CoordinatorRestartTest, ReasonOfAFailureIsKeptOverARestart) {
  Note(driver_.Fail("the reason"));
  driver_.Restart(saved_);
  const Reaction back = ResumeAll({kWorker0});
  EXPECT_EQ(Heard<JobOver>(back, kBack + kWorker0).reason, "the reason");
}

TEST_F(CoordinatorRestartTest, CheckpointThatWasAskedForStillComes) {
  EXPECT_FALSE(saved_.checkpoint_wanted);
  const Reaction asked = Note(driver_.RequestCheckpoint());
  ASSERT_THAT(asked.saved, SizeIs(1));
  EXPECT_EQ(asked.order[0], "save");
  EXPECT_TRUE(saved_.checkpoint_wanted);
  // The coordinator dies once before an epoch has planned the checkpoint, and
  // once after.
  for (const int64_t step : {5, 9}) {
    driver_.Restart(saved_);
    EXPECT_TRUE(driver_.coordinator().checkpoints().wanted());
    const SessionId back = step == 5 ? kBack : 2 * kBack;
    driver_.ResumeIn(back, step == 5 ? kShard0 : kBack);
    driver_.ResumeIn(back + 10, step == 5 ? kWorker0 : kBack + 10);
    driver_.ResumeIn(back + 11, step == 5 ? kWorker1 : kBack + 11);
    Note(driver_.ReportRest(step));
    EXPECT_EQ(driver_.job().checkpoint_round, step + 1);
    EXPECT_TRUE(saved_.checkpoint_wanted);
  }
  driver_.Say(2 * kBack, PartOf(0, 10, driver_.job().epoch));
  Note(driver_.Checkpoint(10, absl::OkStatus()));
  EXPECT_FALSE(saved_.checkpoint_wanted);
}

TEST_F(CoordinatorRestartTest, CheckpointThatFailedIsNotWantedAnyMore) {
  Note(driver_.RequestCheckpoint());
  Note(driver_.ReportRest(5));
  CheckpointPart failed = PartOf(0, 6, driver_.job().epoch);
  failed.error = "no space";
  Note(driver_.Say(kShard0, failed));
  EXPECT_FALSE(driver_.coordinator().checkpoints().wanted());
  EXPECT_FALSE(saved_.checkpoint_wanted);
}

// Members that heard of the epoch before the restart start from the base round,
// so all others must do so too.
TEST_F(CoordinatorRestartTest, EpochFromTheBaseRoundIsSoForLateMembersToo) {
  driver_.Break(kShard0);
  JoinRequest another = ShardRequest(0);
  another.incarnation = 99;
  another.has_checkpoints = true;
  driver_.Say(50, another);
  Note(driver_.ReportRest(7));
  ASSERT_EQ(saved_.epoch.job->history.base_round, 3);
  EXPECT_TRUE(saved_.epoch.all_from_base);
  driver_.Restart(saved_);
  Resume resume = driver_.ResumeOf(kWorker0);
  resume.epoch = 1;
  EXPECT_TRUE(Heard<EpochStart>(driver_.Say(kBack, resume), kBack).from_base);
  Resume shard = driver_.ResumeOf(50);
  shard.epoch = 1;
  EXPECT_TRUE(
      Heard<EpochStart>(driver_.Say(kBack + 1, shard), kBack + 1).from_base);
}

// The coordinator was started with an older state than the last one.
TEST_F(CoordinatorRestartTest, MemberOfANewerEpochHearsThatTheJobHasFailed) {
  const CoordinatorState old = saved_;
  driver_.Say(50, WorkerRequest("new"));
  Note(driver_.ReportRest(5));
  driver_.Restart(old);
  const Reaction back = driver_.ResumeIn(kBack + kWorker0, kWorker0);
  EXPECT_EQ(HearersOf<JobOver>(back),
            (std::vector<SessionId>{kBack + kWorker0}));
  const Reaction next = driver_.ResumeIn(kBack + kWorker1, kWorker1);
  EXPECT_EQ(HearersOf<JobOver>(next),
            (std::vector<SessionId>{kBack + kWorker1}));
}

TEST_F(CoordinatorRestartTest, MemberOfANewerEpochFailsTheJob) {
  const CoordinatorState old = saved_;
  driver_.Say(50, WorkerRequest("new"));
  Note(driver_.ReportRest(5));
  ASSERT_EQ(saved_.epoch.job->epoch, 2u);
  driver_.Restart(old);
  // A member that has missed epoch 2 does not know of it.
  Resume resume = driver_.ResumeOf(kWorker1);
  resume.epoch = 1;
  driver_.Say(kBack + kWorker1, resume);
  EXPECT_EQ(driver_.state(), JobState::kRunning);
  const Reaction back = driver_.ResumeIn(kBack + kWorker0, kWorker0);
  EXPECT_EQ(driver_.state(), JobState::kLost);
  EXPECT_THAT(Heard<JobOver>(back, kBack + kWorker1).reason,
              AllOf(HasSubstr("a state of epoch 1, and a member is in epoch 2"),
                    HasSubstr("the --state file is older than the job"),
                    HasSubstr("with --restore=latest")));
  ASSERT_THAT(back.saved, SizeIs(1));
  EXPECT_EQ(back.saved[0].state, JobState::kLost);
}

// Returns the contributions with which a job begins whose checkpoint was made
// after 31 batches of 14 rows.
int64_t ContributionsWithRows(int64_t rows) {
  CoordinatorOptions options = OptionsOf(1, 1);
  options.has_checkpoints = true;
  options.start_checkpoint = CheckpointRecord{8, 31, {{"file", 5, 7}}};
  JoinRequest worker = WorkerRequest("w");
  for (LayerSpec& layer : worker.layers) layer.rows = 14;
  options.restored_layers = worker.layers;
  for (LayerSpec& layer : worker.layers) layer.rows = rows;
  CoordinatorDriver driver(options);
  JoinRequest shard = ShardRequest(0);
  shard.has_checkpoints = true;
  driver.Say(kShard0, shard);
  driver.Say(kWorker0, worker);
  EXPECT_EQ(driver.job().history.base_round, 8);
  EXPECT_EQ(driver.job().history.contributions_before,
            driver.Status().checkpoint.contributions);
  return driver.job().history.contributions_before;
}

// Otherwise batches of twice the size would count as twice the examples.
TEST(CoordinatorRestoreTest, JobWithOtherBatchesGoesOnAtTheSameExample) {
  EXPECT_EQ(ContributionsWithRows(14), 31);
  EXPECT_EQ(ContributionsWithRows(7), 62);
  EXPECT_EQ(ContributionsWithRows(28), 15);
}

// Starts a job of a checkpoint whose workers had `before`, with a worker that
// has `now`.
Reaction RestoreWith(std::vector<Setting> before, std::vector<Setting> now) {
  CoordinatorOptions options = OptionsOf(1, 1);
  options.has_checkpoints = true;
  options.start_checkpoint = CheckpointRecord{8, 31, {{"file", 5, 7}}};
  options.restored_layers = WorkerRequest("w").layers;
  options.restored_settings = std::move(before);
  CoordinatorDriver driver(options);
  JoinRequest shard = ShardRequest(0);
  shard.has_checkpoints = true;
  driver.Say(kShard0, shard);
  JoinRequest worker = WorkerRequest("w");
  worker.settings = std::move(now);
  return driver.Say(kWorker0, worker);
}

TEST(CoordinatorRestoreTest, OtherSettingsThanThoseOfTheCheckpointAreWarnedOf) {
  const Reaction reaction =
      RestoreWith({{"--seed", "1"}, {"--limit", "2000"}, {"--epochs", "3"}},
                  {{"--limit", "4000"}, {"--epochs", "3"}, {"--model", "m"}});
  EXPECT_THAT(
      reaction.announced,
      Contains(
          AllOf(HasSubstr("those that made the checkpoint of round 8: "
                          "--limit is 4000, was 2000; --model is m, was none; "
                          "--seed is none, was 1. If the order"),
                Not(HasSubstr("--epochs")))));
}

TEST(CoordinatorRestoreTest, EqualOrUnknownSettingsAreNoReasonToWarn) {
  const std::vector<Setting> settings = {{"--seed", "1"}, {"--limit", "2000"}};
  for (const auto& before : {settings, std::vector<Setting>()}) {
    EXPECT_THAT(RestoreWith(before, settings).announced,
                Each(Not(HasSubstr("made the checkpoint"))));
  }
}

TEST(CoordinatorRestoreTest, CheckpointHasTheSettingsOfItsWorkers) {
  CoordinatorOptions options = OptionsOf(1, 1);
  options.has_checkpoints = true;
  CoordinatorDriver driver(options);
  JoinRequest shard = ShardRequest(0);
  shard.has_checkpoints = true;
  driver.Say(kShard0, shard);
  JoinRequest worker = WorkerRequest("w");
  worker.settings = {{"--seed", "1"}};
  driver.Say(kWorker0, worker);
  const Reaction made = driver.Say(kShard0, PartOf(0, 0, 1));
  ASSERT_THAT(made.completed, SizeIs(1));
  EXPECT_THAT(made.completed[0].worker_settings,
              ElementsAre(Setting{"--seed", "1"}));
}

}  // namespace
}  // namespace nereus
