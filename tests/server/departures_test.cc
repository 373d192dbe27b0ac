// Tests of members that leave a job that goes on: workers that leave early, and
// servers that ask to leave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

Leave Early(int64_t last_step) {
  return {last_step, /*epoch=*/1, /*early=*/true};
}

CoordinatorOptions BackupOptions() {
  CoordinatorOptions options = OptionsOf(/*workers=*/2, /*shards=*/2);
  options.spec.options.backup = true;
  return options;
}

TEST(EarlyLeaveTest, JobGoesOnAtOnceWithoutTheWorker) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const Reaction left = driver.Say(kWorker1, Early(7));
  EXPECT_THAT(left.announced,
              Contains(HasSubstr("worker w1 left early, after step 7")));
  EXPECT_THAT(HearersOf<PrepareEpoch>(left),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  driver.ReportRest(8);
  EXPECT_EQ(driver.job().worker_count(), 1);
  // The other worker has done round 7, and needs nothing more from it.
  EXPECT_THAT(HearersOf<JobOver>(driver.Beat(kWorker0, 8, 7)),
              ElementsAre(kWorker1));
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

TEST(EarlyLeaveTest, JobIsStoppedWhenAllWorkersHaveLeftEarly) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kWorker1, Early(7));
  const Reaction over = driver.Say(kWorker0, Early(7));
  EXPECT_EQ(driver.state(), JobState::kStopped);
  EXPECT_EQ(Heard<JobOver>(over, kShard0).state, JobState::kStopped);
  EXPECT_THAT(driver.coordinator().reason(),
              HasSubstr("was stopped after step 7, as all workers left early; "
                        "its parameters are not saved"));
  EXPECT_EQ(over.saved.back().state, JobState::kStopped);
  const absl::Status late =
      RefusalIn(driver.Say(kNew, WorkerRequest("new")), kNew);
  EXPECT_EQ(late.code(), absl::StatusCode::kDataLoss);
}

TEST(EarlyLeaveTest, JobWithAFolderMakesItsLastCheckpointBeforeItIsStopped) {
  CoordinatorOptions options = OptionsOf(1, 1);
  options.has_checkpoints = true;
  CoordinatorDriver driver(options);
  driver.Gather();
  const Reaction left = driver.Say(kWorker0, Early(3));
  EXPECT_EQ(Heard<SaveLast>(left, kShard0), (SaveLast{1, 3, 0}));
  driver.Say(kShard0, PartOf(0, 3, 1));
  const Reaction over = driver.Checkpoint(3, absl::OkStatus());
  EXPECT_EQ(driver.state(), JobState::kStopped);
  EXPECT_EQ(Heard<JobOver>(over, kWorker0).saved_round, 3);
  EXPECT_THAT(driver.coordinator().reason(),
              HasSubstr("in the checkpoint of round 3, and --restore=latest"));
  EXPECT_FALSE(driver.coordinator().lacks_last_checkpoint());
}

// A worker that does not leave early has done all steps of the job.
TEST(EarlyLeaveTest, JobIsFinishedIfNotAllLeftEarly) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kWorker1, Early(7));
  driver.Say(kWorker0, Leave{7});
  EXPECT_EQ(driver.state(), JobState::kFinished);
}

TEST(EarlyLeaveTest, RestartedCoordinatorKnowsWhoLeftEarly) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const Reaction left = driver.Say(kWorker1, Early(7));
  ASSERT_THAT(left.saved, Not(IsEmpty()));
  driver.Restart(left.saved.back());
  driver.ResumeIn(kNew, kShard0);
  driver.ResumeIn(kNew + 1, kWorker0);
  driver.ResumeIn(kNew + 2, kWorker1);
  driver.Say(kNew + 1, Early(7));
  EXPECT_EQ(driver.state(), JobState::kStopped);
}

TEST(ServerLeaveTest, ServerIsReleasedWhileItsBackupIsWhole) {
  CoordinatorDriver driver(BackupOptions());
  driver.Gather();
  const Reaction left = driver.Say(kShard0, Early(kInitialRound));
  EXPECT_EQ(Heard<JobOver>(left, kShard0).state, JobState::kFinished);
  EXPECT_THAT(HearersOf<PrepareEpoch>(left),
              UnorderedElementsAre(kShard1, kWorker0, kWorker1));
  EXPECT_THAT(left.ended, ElementsAre(kShard0));
}

// Server 1 has no backup until server 0 has been replaced.
TEST(ServerLeaveTest, LastServerWithTheValuesStays) {
  CoordinatorDriver driver(BackupOptions());
  driver.Gather();
  driver.Say(kShard0, Early(kInitialRound));
  MachineReport report;
  report.closed_rounds = {{0, 4}, {1, 4}};
  driver.Report(kShard1, report);
  driver.ReportRest(5);
  ASSERT_EQ(driver.job().epoch, 2u);
  const Reaction asked =
      driver.Say(kShard1, Leave{kInitialRound, /*epoch=*/2, /*early=*/true});
  EXPECT_THAT(asked.announced,
              Contains(HasSubstr("shard 1 asks to leave the job")));
  EXPECT_THAT(HearersOf<JobOver>(driver.Pass(absl::Seconds(3))), IsEmpty());
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

TEST(ServerLeaveTest, ServerWithoutABackupStays) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Gather();
  driver.Say(kShard0, Early(kInitialRound));
  EXPECT_THAT(HearersOf<JobOver>(driver.Pass(absl::Seconds(3))), IsEmpty());
  // At the end of the job it hears of that.
  EXPECT_EQ(Heard<JobOver>(driver.Say(kWorker0, Leave{7}), kShard0).state,
            JobState::kFinished);
}

TEST(ServerLeaveTest, ProcessThatIsNoMemberYetMayNotLeave) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(kShard0, ShardRequest(0));
  const Reaction left = driver.Say(kShard0, Early(kInitialRound));
  EXPECT_THAT(left.announced,
              Contains(HasSubstr("only members of the job may send")));
}

absl::Status Drain(const CoordinatorDriver& driver, const std::string& name,
                   CoordinatorOutbox& out) {
  return driver.coordinator().Drain(name, out);
}

TEST(DrainTest, MemberIsAskedByItsName) {
  CoordinatorDriver driver(BackupOptions());
  driver.Gather();
  for (const auto& [name, session] :
       {std::pair("w1", kWorker1), std::pair("worker w0", kWorker0),
        std::pair("shard 1", kShard1)}) {
    CoordinatorOutbox out;
    EXPECT_TRUE(Drain(driver, name, out).ok()) << name;
    ASSERT_FALSE(out.empty());
    const auto* send = std::get_if<SendToMember>(&out.front());
    ASSERT_NE(send, nullptr);
    EXPECT_EQ(send->session, session);
    EXPECT_TRUE(std::holds_alternative<AskToLeave>(send->message));
  }
}

TEST(DrainTest, WorkerThatHasLeftIsNoLongerThere) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const Coordinator& coordinator = driver.coordinator();
  EXPECT_TRUE(coordinator.HasMember("w1"));
  EXPECT_TRUE(coordinator.HasMember("worker w1"));
  EXPECT_TRUE(coordinator.HasMember("shard 0"));
  EXPECT_FALSE(coordinator.HasMember("w2"));
  driver.Say(kWorker1, Early(7));
  EXPECT_FALSE(coordinator.HasMember("w1"));
  EXPECT_TRUE(coordinator.HasMember("w0"));
}

TEST(DrainTest, MemberThatCannotLeaveIsNotAsked) {
  CoordinatorOptions options = OptionsOf(2, 2);
  options.own_shard = 0;
  CoordinatorDriver driver(options);
  CoordinatorOutbox out;
  EXPECT_THAT(std::string(Drain(driver, "w0", out).message()),
              HasSubstr("the job is waiting, not running"));
  driver.Gather();
  const absl::Status unknown = Drain(driver, "w7", out);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(unknown.message(),
            "the job has no member \"w7\"; its members are shard 0, shard 1, "
            "w0, w1");
  EXPECT_THAT(std::string(Drain(driver, "shard 0", out).message()),
              HasSubstr("is in the process of the coordinator"));
  EXPECT_THAT(std::string(Drain(driver, "shard 1", out).message()),
              HasSubstr("shard 1 has no backup (--backup=1)"));
  driver.Break(kWorker1);
  EXPECT_EQ(Drain(driver, "w1", out).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(out, IsEmpty());
}

}  // namespace
}  // namespace nereus
