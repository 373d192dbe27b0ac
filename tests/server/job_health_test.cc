#include "server/report/job_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A job of four workers and a server that computes for 90 ms in a step of
// 100 ms.
JobStatus Running() {
  JobStatus status;
  status.job = "training";
  status.epoch = 1;
  status.state = JobState::kRunning;
  status.steps.begun = 812;
  status.steps.per_second = 10;
  status.steps.predicted = absl::Milliseconds(98);
  status.workers = 4;
  status.shards = 1;
  for (int rank = 0; rank < 4; ++rank) {
    JobStatus::Member& worker = status.members.emplace_back();
    worker.id = PeerId::Worker(rank);
    worker.name = std::string(1, static_cast<char>('a' + rank));
    worker.data_address = "10.0.0." + std::to_string(rank) + ":7001";
    worker.pace.emplace();
    worker.pace->step = {absl::Milliseconds(30), absl::Milliseconds(60),
                         absl::ZeroDuration(), absl::Milliseconds(10)};
  }
  JobStatus::Member& server = status.members.emplace_back();
  server.id = PeerId::Shard(0);
  server.data_address = "10.0.0.9:7001";
  return status;
}

TEST(JobHealthTest, AJobThatComputesIsGood) {
  const JobHealth health = Judge(Running());
  EXPECT_EQ(health.kind, Health::kGood);
  EXPECT_EQ(health.text,
            "The job runs: step 812, 100ms a step (98ms predicted). Computing "
            "limits the speed: 10 % of a step is waiting for the network.");
}

TEST(JobHealthTest, SaysThatTheNetworkLimitsTheSpeed) {
  JobStatus status = Running();
  for (JobStatus::Member& member : status.members) {
    if (member.pace.has_value()) {
      member.pace->step.waiting = absl::Milliseconds(210);
    }
  }
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kGood);
  EXPECT_THAT(health.text,
              AllOf(HasSubstr("The network limits the speed: 70 %"),
                    HasSubstr("longer than the plan predicts")));
}

TEST(JobHealthTest, SaysHowLongAJobWaitsForASharedDevice) {
  JobStatus status = Running();
  const auto wait = [&status](absl::Duration time) {
    for (JobStatus::Member& member : status.members) {
      if (member.pace.has_value()) member.pace->step.turn = time;
    }
    return Judge(status).text;
  };
  // The plan predicts a step without this wait.
  EXPECT_THAT(wait(absl::Milliseconds(50)),
              AllOf(HasSubstr("The shared device limits the speed"),
                    HasSubstr("7 % of a step is waiting for the network, and "
                              "33 % for the device, which other jobs use"),
                    Not(HasSubstr("longer than the plan predicts"))));
  EXPECT_THAT(wait(absl::ZeroDuration()),
              HasSubstr("Computing limits the speed"));
}

TEST(JobHealthTest, NamesTheWorkerThatIsLateAndWhy) {
  JobStatus status = Running();
  status.members[1].pace->late = absl::Milliseconds(11);
  status.members[1].pace->cause = LateCause::kComputing;
  status.members[2].pace->late = absl::Milliseconds(40);
  status.members[2].pace->cause = LateCause::kLink;
  status.members[2].pace->link_share = 0.83;
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kSlow);
  EXPECT_THAT(health.text,
              AllOf(HasSubstr("the others wait 40ms of each step for worker c "
                              "(10.0.0.2:7001), whose link is slow"),
                    HasSubstr("83 %"), Not(HasSubstr("worker b"))));
}

TEST(JobHealthTest, ASlowJobAlsoSaysWhatALossWouldCost) {
  JobStatus status = Running();
  status.members[1].pace->late = absl::Milliseconds(11);
  status.members[1].pace->cause = LateCause::kComputing;
  status.shard_servers = {{0, -1, false}, {1, -1, false}};
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kSlow);
  EXPECT_THAT(health.text,
              AllOf(HasSubstr("worker b"),
                    HasSubstr(" Also, shards 0, 1 have no current backup")));
}

TEST(JobHealthTest, NamesTheMemberThatIsSilentAndWhoWaitsForIt) {
  JobStatus status = Running();
  status.members[3].since_heartbeat = absl::Seconds(41);
  status.members[0].stall = Stall{0, 811, "the result", absl::Seconds(12)};
  status.members[0].stalled_layer = "fc";
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kBad);
  EXPECT_THAT(health.text,
              AllOf(HasSubstr("worker d (10.0.0.3:7001) has sent nothing for "
                              "41s"),
                    HasSubstr("worker a has waited 12s for the result in round "
                              "811 of layer fc")));
}

TEST(JobHealthTest, SaysWhatAnotherLossWouldCost) {
  JobStatus status = Running();
  status.shard_servers = {{0, -1, false}};
  JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kAtRisk);
  EXPECT_THAT(health.text, HasSubstr("shard 0 has no current backup"));
  status.shard_servers = {{0, 1, true}};
  status.checkpoint.failure = "the disk is full";
  health = Judge(status);
  EXPECT_EQ(health.kind, Health::kAtRisk);
  EXPECT_THAT(health.text, HasSubstr("the disk is full"));
  status.checkpoint.damage = "that of round 40: shard-0 is torn";
  health = Judge(status);
  EXPECT_EQ(health.kind, Health::kAtRisk);
  EXPECT_THAT(health.text, HasSubstr("that of round 40: shard-0 is torn"));
}

TEST(JobHealthTest, AJobThatHasNotBegunSaysWhoIsMissing) {
  JobStatus status = Running();
  status.state = JobState::kWaiting;
  status.waiting = "2 more workers (4 needed)";
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kStarting);
  EXPECT_THAT(health.text, HasSubstr("2 more workers (4 needed)"));
}

TEST(JobHealthTest, AJobThatIsOverSaysWhyAndWhatIsKept) {
  JobStatus status = Running();
  status.state = JobState::kFailed;
  status.reason = "worker a has a NaN in layer fc";
  status.checkpoint.round = 800;
  // A member that was silent at the end does not matter any more.
  status.members[3].since_heartbeat = absl::Seconds(41);
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kOver);
  EXPECT_THAT(health.text, AllOf(HasSubstr("worker a has a NaN in layer fc"),
                                 HasSubstr("round 800"),
                                 Not(HasSubstr("has sent nothing"))));
}

TEST(JobHealthTest, TimesHaveThreeDigits) {
  EXPECT_EQ(ShortTime(absl::Microseconds(131234)), "131ms");
  EXPECT_EQ(ShortTime(absl::Milliseconds(4251)), "4.25s");
  EXPECT_EQ(ShortTime(absl::Seconds(4251.5)), "1h10m51s");
}

// Times of `steps` steps of each worker since it joined.
void SetActivity(JobStatus& status, int64_t steps, absl::Duration step) {
  for (JobStatus::Member& member : status.members) {
    if (member.id.role != Role::kWorker) continue;
    member.activity.steps = steps;
    member.activity.times.forward = static_cast<double>(steps) * step;
  }
}

TEST(JobHealthTest, AJobWhoseStepIsOlderThanTenStepsAndALeaseIsNotGood) {
  JobStatus status = Running();
  status.lease = absl::Seconds(10);
  SetActivity(status, 800, absl::Milliseconds(100));
  status.steps.since_begun = absl::Seconds(9);  // Less than a lease.
  EXPECT_EQ(Judge(status).kind, Health::kGood);
  status.steps.since_begun = absl::Seconds(39);
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kBad);
  EXPECT_THAT(health.text,
              HasSubstr("at step 812: no worker has begun a step for 39s"));
  SetActivity(status, 800, absl::Seconds(5));  // Ten steps take longer.
  EXPECT_EQ(Judge(status).kind, Health::kGood);
}

// The time of a step is not known before the first one is done.
TEST(JobHealthTest, AFirstStepMayTakeAnyTime) {
  JobStatus status = Running();
  SetActivity(status, 0, absl::ZeroDuration());
  status.steps.since_begun = absl::Minutes(5);
  EXPECT_EQ(Judge(status).kind, Health::kGood);
}

TEST(JobHealthTest, SaysHowFarARestoreIs) {
  JobStatus status = Running();
  status.members[4].work =
      LongWork{LongWork::Kind::kRestore, 3'000'000'000, 40'000'000'000};
  const JobHealth health = Judge(status);
  EXPECT_EQ(health.kind, Health::kBad);
  EXPECT_THAT(health.text, HasSubstr("shard 0 restores, 3.0 of 40.0 GB"));
}

// A worker may multiply factors in each step.
TEST(JobHealthTest, AWorkerThatMultipliesIsNotWaitedFor) {
  JobStatus status = Running();
  status.members[1].work = LongWork{LongWork::Kind::kMultiply, 100, 4096};
  EXPECT_EQ(Judge(status).kind, Health::kGood);
}

}  // namespace
}  // namespace nereus
