#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

TEST(CoordinatorSessionTest, MemberThatResumesWithinTheGraceKeepsItsPlace) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1));
  const Reaction resumed = driver.ResumeIn(kNew, kWorker1);
  EXPECT_THAT(resumed.sent, IsEmpty());
  EXPECT_THAT(resumed.ended, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
  EXPECT_EQ(driver.job().epoch, 1u);
  // Messages in the new session count.
  driver.Beat(kNew, 8, 7);
  EXPECT_EQ(driver.Status().members[1].round, 7);
}

TEST(CoordinatorSessionTest, NewSessionEndsTheOldSession) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  EXPECT_THAT(driver.ResumeIn(kNew, kWorker1).ended, ElementsAre(kWorker1));
  // The end of the old session comes late, and does not end the new session.
  driver.Break(kWorker1);
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorSessionTest, MemberThatResumesHearsTheStartThatItMissed) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  driver.Break(kWorker2);
  driver.Pass(absl::Seconds(1.5));
  driver.Report(kWorker1, 4);
  driver.Break(kWorker1);
  EXPECT_THAT(HearersOf<EpochStart>(driver.ReportRest(4)),
              UnorderedElementsAre(kShard0, kWorker0));
  const Reaction resumed = driver.ResumeIn(kNew, kWorker1);
  EXPECT_THAT(resumed.sent, SizeIs(1));
  const EpochStart start = Heard<EpochStart>(resumed, kNew);
  EXPECT_EQ(start.self, PeerId::Worker(1));
  EXPECT_EQ(start.job, driver.coordinator().job());
  EXPECT_EQ(start.job->epoch, 2u);
  // A second resume brings no message.
  driver.Break(kNew);
  EXPECT_THAT(driver.ResumeIn(kNew + 1, kNew).sent, IsEmpty());
}

// No worker has its first values, so all workers start from the base round; the
// shard does not.
TEST(CoordinatorSessionTest, MissedStartTellsTheMemberToStartFromTheBaseRound) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  driver.Break(kWorker2);
  driver.Pass(absl::Seconds(1.5));
  MachineReport fetching;
  fetching.fetching = true;
  driver.Report(kWorker1, fetching);
  driver.Break(kWorker1);
  driver.Report(kShard0, -1);
  const Reaction on = driver.Report(kWorker0, fetching);
  EXPECT_TRUE(Heard<EpochStart>(on, kWorker0).from_base);
  EXPECT_FALSE(Heard<EpochStart>(on, kShard0).from_base);
  EXPECT_TRUE(
      Heard<EpochStart>(driver.ResumeIn(kNew, kWorker1), kNew).from_base);
}

TEST(CoordinatorSessionTest, MemberThatResumesInAChangeIsAskedForItsReport) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  driver.Break(kWorker1);
  EXPECT_THAT(HearersOf<PrepareEpoch>(driver.Say(kNew, WorkerRequest("new"))),
              UnorderedElementsAre(kShard0, kWorker0));
  EXPECT_THAT(driver.ReportRest(4).sent, IsEmpty());
  const Reaction resumed = driver.ResumeIn(kNew + 1, kWorker1);
  EXPECT_EQ(Heard<PrepareEpoch>(resumed, kNew + 1).target, 2u);
  EXPECT_THAT(resumed.sent, SizeIs(1));
  EXPECT_THAT(HearersOf<EpochStart>(driver.Report(kNew + 1, 4)),
              UnorderedElementsAre(kShard0, kWorker0, kNew, kNew + 1));
}

TEST(CoordinatorSessionTest, MissedStartComesBeforeTheNextPrepareEpoch) {
  CoordinatorOptions options = OptionsOf(2, 1, /*max_workers=*/4);
  options.join_share = 0;  // The second newcomer does not wait.
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.Say(kNew, WorkerRequest("new"));
  driver.Report(kWorker1, 4);
  driver.Break(kWorker1);
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().epoch, 2u);
  driver.Say(kNew + 1, WorkerRequest("newer"));
  const Reaction resumed = driver.ResumeIn(kNew + 2, kWorker1);
  ASSERT_THAT(resumed.sent, SizeIs(2));
  EXPECT_EQ(std::get<EpochStart>(resumed.sent[0].message).job->epoch, 2u);
  EXPECT_EQ(std::get<PrepareEpoch>(resumed.sent[1].message).target, 3u);
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().epoch, 3u);
}

TEST(CoordinatorSessionTest, OnlyMembersMayResume) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(kNew - 1, WorkerRequest("early"));
  const uint64_t incarnation = WorkerRequest("early").incarnation;
  EXPECT_EQ(RefusalIn(driver.Say(kNew - 2, Resume{kTestJobId, PeerId::Worker(0),
                                                  incarnation, 1}),
                      kNew - 2)
                .code(),
            absl::StatusCode::kCancelled);
  driver.Break(kNew - 1);
  driver.Gather();
  const Resume good = driver.ResumeOf(kWorker1);
  std::vector<Resume> wrong(4, good);
  wrong[0].job += 1;
  wrong[1].incarnation += 1;
  wrong[2].member = PeerId::Worker(0);
  wrong[3].member = PeerId::Shard(1);
  for (int i = 0; i < 4; ++i) {
    const Reaction refused = driver.Say(kNew + i, wrong[i]);
    const absl::Status why = RefusalIn(refused, kNew + i);
    // A process that counts as dead may join again (kCancelled). A process of
    // another job must not join this job.
    EXPECT_EQ(why.code(), i == 0 ? absl::StatusCode::kDataLoss
                                 : absl::StatusCode::kCancelled)
        << i;
    EXPECT_THAT(
        std::string(why.message()),
        HasSubstr(i == 0 ? "does not know the job" : "was counted as dead"));
    EXPECT_THAT(refused.sent, SizeIs(1));
  }
  // All members are still members, in their old sessions.
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

// A coordinator that was started again without the job's state has begun a new
// job with another id. A member that joined it would train from the beginning.
TEST(CoordinatorSessionTest, MemberOfAnotherJobHearsHowToStartAgain) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  Resume resume{kTestJobId + 1, PeerId::Worker(0),
                WorkerRequest("w0").incarnation, 7};
  const Reaction refused = driver.Say(kNew, resume);
  const absl::Status why = RefusalIn(refused, kNew);
  EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("does not know the job"),
                    HasSubstr("would begin job training anew"),
                    HasSubstr("--state=FILE"), HasSubstr("--restore=latest")));
  // A member of the other job in a newer epoch does not fail this job either.
  EXPECT_EQ(driver.state(), JobState::kWaiting);
  driver.Gather();
  resume.epoch = 2;
  EXPECT_EQ(RefusalIn(driver.Say(kNew + 1, resume), kNew + 1).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

// The coordinator was started again after the end of a job. One member has not
// heard of that end.
TEST(CoordinatorSessionTest, MemberOfAJobThatIsOverHearsItsEnd) {
  CoordinatorOptions options = OptionsOf(2, 1);
  options.past_job = PastJob{kTestJobId + 1, JobState::kFinished, "", 41};
  CoordinatorDriver driver(options);
  const Resume resume{kTestJobId + 1, PeerId::Worker(0),
                      WorkerRequest("w0").incarnation, 7};
  const JobOver over = Heard<JobOver>(driver.Say(kNew, resume), kNew);
  EXPECT_EQ(over.state, JobState::kFinished);
  EXPECT_EQ(over.saved_round, 41);
}

TEST(CoordinatorSessionTest, MemberThatCountsAsDeadMayNotResume) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(1.5));
  const absl::Status why = RefusalIn(driver.ResumeIn(kNew, kWorker1), kNew);
  EXPECT_EQ(why.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("this process was counted as dead"));
}

TEST(CoordinatorSessionTest, MemberThatResumesAfterTheEndHearsOfIt) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  EXPECT_THAT(HearersOf<JobOver>(driver.Fail("stopped by hand")),
              UnorderedElementsAre(kShard0, kWorker0));
  const Reaction resumed = driver.ResumeIn(kNew, kWorker1);
  EXPECT_EQ(Heard<JobOver>(resumed, kNew).state, JobState::kFailed);
  EXPECT_EQ(Heard<JobOver>(resumed, kNew).reason, "stopped by hand");
}

TEST(CoordinatorSessionTest, RefusedShardDoesNotTakeAPlace) {
  CoordinatorOptions options = OptionsOf(2, 1);
  options.has_checkpoints = true;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.MakeCheckpoint(3);
  driver.Break(kShard0);
  JoinRequest good = ShardRequest(0);
  good.incarnation = 99;
  good.has_checkpoints = true;
  std::vector<JoinRequest> wrong(5, good);
  wrong[0].protocol_version += 1;
  wrong[1].build = "no build";
  wrong[2].name = "";
  wrong[3].has_checkpoints = false;
  wrong[4].incarnation = 0;
  for (int i = 0; i < 5; ++i) {
    const Reaction refused = driver.Say(kNew + i, wrong[i]);
    EXPECT_FALSE(RefusalIn(refused, kNew + i).ok()) << i;
    EXPECT_THAT(refused.announced, SizeIs(1)) << refused.announced[0];
  }
  EXPECT_THAT(driver.ResumeIn(kNew + 5, kShard0).sent, IsEmpty());
  driver.Break(kNew + 5);
  EXPECT_TRUE(RefusalIn(driver.Say(kNew + 6, good), kNew + 6).ok());
  driver.ReportRest(5);
  EXPECT_EQ(driver.job().history.base_round, 3);
}

// A server that comes in place of a lost shard hears why it is refused.
TEST(CoordinatorSessionTest, ShardThatComesTooLateHearsThatTheJobHasFailed) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kShard0);
  JoinRequest another = ShardRequest(0);
  another.incarnation = 99;
  const absl::Status why = RefusalIn(driver.Say(kNew, another), kNew);
  EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("there is no checkpoint to go on from"));
}

// The coordinator's process was stopped, or its host slept. The members lived
// on, and their messages have not been read yet.
TEST(CoordinatorSessionTest, PauseOfTheCoordinatorIsNoMembersSilence) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Pass(absl::Seconds(5));
  driver.Break(kWorker1);
  driver.StandStill(absl::Minutes(2));
  EXPECT_THAT(driver.Tick().announced, IsEmpty());
  EXPECT_THAT(driver.ResumeIn(kNew, kWorker1).sent, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(20)).announced, IsEmpty());
  EXPECT_EQ(driver.job().epoch, 1u);
}

TEST(CoordinatorSessionTest, PauseThatAMessageEndsCountsOnce) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Pass(absl::Seconds(5));
  driver.StandStill(absl::Minutes(2));
  driver.Beat(kShard0, -1, -1);
  driver.Break(kWorker1);
  // The grace is not longer by the pause, which was over before the session
  // broke.
  driver.Pass(absl::Seconds(1));
  EXPECT_EQ(driver.Status().members.size(), 3u);
  EXPECT_THAT(driver.Pass(absl::Seconds(0.5)).announced,
              ElementsAre(HasSubstr("worker w1 (at w1:1) was removed")));
}

// The member is silent for half a lease before the pause, and for more than
// that after it.
TEST(CoordinatorSessionTest, SilenceBeforeAPauseStillCounts) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Pass(absl::Seconds(5), {kWorker1});
  driver.StandStill(absl::Minutes(2));
  EXPECT_THAT(driver.Pass(absl::Seconds(5), {kWorker1}).announced, IsEmpty());
  EXPECT_THAT(driver.Pass(absl::Seconds(1), {kWorker1}).announced,
              Contains(HasSubstr("worker w1 (at w1:1) was removed")));
}

}  // namespace
}  // namespace nereus
