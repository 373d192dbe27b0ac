// Tests of a coordinator and the checksums of its workers' replicas.
// replica_check_test.cc tests the comparison.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/replica_check.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

// Reports checksums of layers "scale" and "fc", in the job's epoch.
Reaction Report(CoordinatorDriver& driver, SessionId session, int64_t round,
                std::vector<uint32_t> layers) {
  return driver.Say(
      session, ReplicaChecksums{driver.job().epoch, round, std::move(layers)});
}

TEST(CoordinatorReplicaTest, EqualReplicasChangeNothing) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  for (const SessionId session : {kWorker1, kWorker0}) {
    const Reaction reaction = Report(driver, session, 3, {1, 2});
    EXPECT_THAT(reaction.sent, IsEmpty());
    EXPECT_THAT(reaction.announced, IsEmpty());
  }
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

TEST(CoordinatorReplicaTest, DifferentReplicasEndTheJobWithBothNames) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  Report(driver, kWorker1, 3, {1, 2});
  const Reaction failed = Report(driver, kWorker0, 3, {1, 0xabc});
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(HearersOf<JobOver>(failed),
              UnorderedElementsAre(kShard0, kWorker0, kWorker1));
  EXPECT_THAT(Heard<JobOver>(failed, kShard0).reason,
              HasSubstr("replicas differ after step 3: the parameters of layer "
                        "fc have checksum 00000002 on worker w1 and 00000abc "
                        "on worker w0"));
  EXPECT_EQ(Heard<JobOver>(failed, kShard0).state, JobState::kFailed);
}

Reaction Sample(CoordinatorDriver& driver, SessionId session, int64_t round,
                std::vector<uint32_t> layers) {
  return driver.Say(session, ReplicaChecksums{driver.job().epoch, round,
                                              std::move(layers), true});
}

TEST(CoordinatorReplicaTest, SampleNamesTheWorkerThatDeviates) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  Sample(driver, kWorker2, 512, {1, 7});
  Sample(driver, kWorker0, 512, {1, 2});
  EXPECT_EQ(driver.state(), JobState::kRunning);
  const Reaction failed = Sample(driver, kWorker1, 512, {1, 2});
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(Heard<JobOver>(failed, kShard0).reason,
              AllOf(HasSubstr("after step 512: sampled parameters of layer fc"),
                    HasSubstr(": worker w2 deviates from the other workers")));
}

TEST(CoordinatorReplicaTest, DifferenceWaitsTwoSecondsForASilentWorker) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  Sample(driver, kWorker2, 512, {1, 7});
  Sample(driver, kWorker0, 512, {1, 2});
  driver.Pass(absl::Milliseconds(1500));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.Pass(absl::Seconds(1));
  EXPECT_EQ(driver.state(), JobState::kFailed);
}

TEST(CoordinatorReplicaTest, DifferenceCountsThoughAnEpochBegins) {
  CoordinatorDriver driver(OptionsOf(3, 1, /*max_workers=*/4));
  driver.Gather();
  Sample(driver, kWorker2, 512, {1, 7});
  Sample(driver, kWorker0, 512, {1, 2});
  driver.Say(kNew, WorkerRequest("new"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.ReportRest(513);
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(driver.coordinator().reason(), HasSubstr("replicas differ"));
}

TEST(CoordinatorReplicaTest, DifferenceCountsThoughAllWorkersLeave) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Gather();
  Report(driver, kWorker2, 9, {1, 7});
  Report(driver, kWorker0, 9, {1, 2});
  for (const SessionId session : {kWorker0, kWorker1, kWorker2}) {
    EXPECT_EQ(driver.state(), JobState::kRunning);
    driver.Say(session, Leave{9});
  }
  EXPECT_EQ(driver.state(), JobState::kFailed);
}

TEST(CoordinatorReplicaTest, ReportThatDoesNotFitTheModelRemovesOnlyItsSender) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  const Reaction refused = Report(driver, kWorker1, 3, {1, 2, 3});
  const absl::Status why = RefusalIn(refused, kWorker1);
  EXPECT_EQ(why.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("worker w1 reports 3 checksums as of round 3, the "
                        "model has 2 layers"));
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().worker_count(), 1);
}

TEST(CoordinatorReplicaTest, ReportsOfAnotherEpochAreNotCompared) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  Report(driver, kWorker0, 3, {1, 2});
  for (const uint64_t epoch : {0, 2}) {
    driver.Say(kWorker1, ReplicaChecksums{epoch, 3, {7, 8}});
  }
  EXPECT_EQ(driver.state(), JobState::kRunning);
}

// A shard has no replica. A process that is not admitted yet has no replica of
// this job.
TEST(CoordinatorReplicaTest, OnlyWorkersOfTheEpochHaveReplicas) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  Report(driver, kWorker0, 3, {1, 2});
  Report(driver, kShard0, 3, {7, 8});
  driver.Say(kNew, WorkerRequest("new"));
  Report(driver, kNew, 3, {7, 8});
  EXPECT_EQ(driver.state(), JobState::kRunning);
  driver.ReportRest(5);
  EXPECT_EQ(driver.job().epoch, 2u);
}

// The round may be done again, with other contributors.
TEST(CoordinatorReplicaTest, ReportsOfAnEarlierEpochAreNotCompared) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Gather();
  Report(driver, kWorker0, 3, {1, 2});
  driver.Say(kNew, WorkerRequest("new"));
  driver.ReportRest(5);
  ASSERT_EQ(driver.job().epoch, 2u);
  Report(driver, kWorker1, 3, {1, 9});
  EXPECT_EQ(driver.state(), JobState::kRunning)
      << driver.coordinator().reason();
  Report(driver, kWorker0, 3, {1, 2});
  driver.Pass(ReplicaCheck::kOthersWait + absl::Seconds(1));
  EXPECT_EQ(driver.state(), JobState::kFailed);
}

// These rounds are done again. Their sums may differ, because the order of
// additions is not fixed.
TEST(CoordinatorReplicaTest, RoundsBeforeTheJobWentBackAreNotCompared) {
  CoordinatorOptions options = OptionsOf(2, 1);
  options.has_checkpoints = true;
  CoordinatorDriver driver(options);
  driver.Gather();
  driver.MakeCheckpoint(3);
  Report(driver, kWorker0, 5, {1, 2});
  driver.Break(kShard0);
  JoinRequest another = ShardRequest(0);
  another.incarnation = 99;
  another.has_checkpoints = true;
  driver.Say(kNew, another);
  driver.ReportRest(7);
  ASSERT_EQ(driver.job().history.base_round, 3);
  Report(driver, kWorker1, 5, {7, 8});
  EXPECT_EQ(driver.state(), JobState::kRunning)
      << driver.coordinator().reason();
  Report(driver, kWorker0, 5, {1, 2});
  EXPECT_EQ(driver.state(), JobState::kFailed);
}

// A worker that leaves reports its last round.
TEST(CoordinatorReplicaTest, LastRoundIsComparedThoughAWorkerHasLeft) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  Report(driver, kWorker0, 9, {1, 2});
  driver.Say(kWorker0, Leave{9});
  ASSERT_EQ(driver.state(), JobState::kRunning);
  const Reaction failed = Report(driver, kWorker1, 9, {1, 3});
  EXPECT_EQ(driver.state(), JobState::kFailed);
  EXPECT_THAT(Heard<JobOver>(failed, kWorker0).reason,
              AllOf(HasSubstr("after step 9"), HasSubstr("worker w0"),
                    HasSubstr("worker w1")));
}

}  // namespace
}  // namespace nereus
