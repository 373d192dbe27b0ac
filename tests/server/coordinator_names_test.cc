// Workers that join with the name of another worker: in the place of a dead
// one, or by mistake.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr SessionId kNew = 50;

// Request of another process with the name of worker `name`.
JoinRequest Another(const std::string& name, uint64_t incarnation = 99) {
  JoinRequest request = WorkerRequest(name);
  request.incarnation = incarnation;
  request.data_address = name + ":2";
  return request;
}

void ExpectHeld(const Reaction& reaction, SessionId session) {
  EXPECT_THAT(Heard<Waiting>(reaction, session).text,
              AllOf(HasSubstr("w1 is the name of a worker at w1:1; --name "
                              "gives each worker its own"),
                    HasSubstr("waiting to see if that process is dead")));
  EXPECT_THAT(HearersOf<Refusal>(reaction), IsEmpty());
  EXPECT_THAT(reaction.ended, IsEmpty());
}

void ExpectNameTaken(const Reaction& reaction, SessionId session) {
  const absl::Status why = RefusalIn(reaction, session);
  EXPECT_EQ(why.code(), absl::StatusCode::kAlreadyExists) << why;
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr("is the name of a worker at"),
                    HasSubstr("--name gives each worker its own")));
}

// The job has all its workers, and has room for the new one nevertheless.
TEST(CoordinatorNamesTest, WorkerWithoutASessionIsReplacedAtOnce) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  const Reaction joined = driver.Say(kNew, Another("w1"));
  EXPECT_THAT(joined.announced,
              Contains("worker w1 (at w1:1) was removed: another process takes "
                       "its place"));
  EXPECT_THAT(HearersOf<PrepareEpoch>(joined),
              UnorderedElementsAre(kShard0, kWorker0));
  const Reaction on = driver.ReportRest(4);
  // The new process gets a rank that no worker has had.
  EXPECT_EQ(Heard<EpochStart>(on, kNew).self, PeerId::Worker(2));
  EXPECT_THAT(driver.job().workers,
              ElementsAre(EpochWorker{0, 0}, EpochWorker{2, 5}));
  EXPECT_THAT(driver.job().crew.worker_names,
              UnorderedElementsAre(Pair(0, "w0"), Pair(2, "w1")));
  EXPECT_THAT(on.announced, Contains(HasSubstr("worker w1 is back")));
}

TEST(CoordinatorNamesTest, ReplacedWorkerMayNotResume) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Say(kNew, Another("w1"));
  const Reaction late = driver.ResumeIn(kNew + 1, kWorker1);
  EXPECT_EQ(RefusalIn(late, kNew + 1).code(), absl::StatusCode::kCancelled);
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().PositionOf(2), 1);
}

TEST(CoordinatorNamesTest, WorkerThatCountsAsDeadIsReplacedLater) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(2));
  driver.ReportRest(4);
  ASSERT_EQ(driver.job().worker_count(), 1);
  EXPECT_THAT(HearersOf<Waiting>(driver.Say(kNew, Another("w1"))), IsEmpty());
  const Reaction on = driver.ReportRest(6);
  EXPECT_EQ(Heard<EpochStart>(on, kNew).self, PeerId::Worker(2));
  EXPECT_EQ(driver.job().NameOf(PeerId::Worker(2)), "worker w1");
}

// A host that lost its power closes no session: the session stays open until
// the lease ends.
TEST(CoordinatorNamesTest,
     ClaimToTheNameOfASilentWorkerWaitsUntilThatWorkerIsDead) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  const Reaction waiting = driver.Pass(absl::Seconds(10), {kWorker1, kNew});
  EXPECT_THAT(HearersOf<Refusal>(waiting), IsEmpty());
  EXPECT_EQ(driver.job().epoch, 1u);
  const Reaction gone = driver.Pass(absl::Seconds(1), {kWorker1, kNew});
  EXPECT_THAT(gone.announced,
              Contains(HasSubstr("worker w1 (at w1:1) was removed: "
                                 "it sent nothing for")));
  EXPECT_EQ(Heard<EpochStart>(driver.ReportRest(4), kNew).self,
            PeerId::Worker(2));
}

TEST(CoordinatorNamesTest, ClaimToTheNameOfALiveWorkerIsRefused) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  // The worker may have sent these messages before the claim, and have died.
  EXPECT_THAT(HearersOf<Refusal>(driver.Pass(kHeartbeatInterval)), IsEmpty());
  ExpectNameTaken(driver.Pass(absl::Seconds(1)), kNew);
  // The job goes on in its epoch.
  EXPECT_EQ(driver.job().epoch, 1u);
  EXPECT_THAT(driver.Pass(absl::Seconds(5)).sent, IsEmpty());
}

TEST(CoordinatorNamesTest, NameIsTakenWhileWorkersGatherToo) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  driver.Say(kWorker1, WorkerRequest("w1"));
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  driver.Pass(absl::Seconds(2));
  ExpectNameTaken(driver.Say(kWorker1, Heartbeat()), kNew);
  EXPECT_THAT(driver.Status().members, SizeIs(1));
  // Another name is free.
  EXPECT_THAT(driver.Say(kNew + 1, WorkerRequest("w2")).sent, IsEmpty());
}

TEST(CoordinatorNamesTest, NameOfAWorkerThatGoesWhileWorkersGatherIsFree) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Say(kWorker1, WorkerRequest("w1"));
  ExpectHeld(driver.Say(kNew, Another("w1")), kNew);
  EXPECT_THAT(HearersOf<Refusal>(driver.Break(kWorker1)), IsEmpty());
  ASSERT_THAT(driver.Status().members, SizeIs(1));
  EXPECT_EQ(driver.Status().members[0].data_address, "w1:2");
}

TEST(CoordinatorNamesTest, ClaimEndsWithItsSession) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kNew, Another("w1"));
  driver.Break(kNew);
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(2));
  driver.ReportRest(4);
  EXPECT_EQ(driver.job().worker_count(), 1);
}

TEST(CoordinatorNamesTest, ProcessThatAsksAgainInANewSessionWaitsThere) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kNew, Another("w1"));
  const Reaction again = driver.Say(kNew + 1, Another("w1"));
  EXPECT_THAT(again.ended, ElementsAre(kNew));
  EXPECT_THAT(HearersOf<Waiting>(again), ElementsAre(kNew + 1));
  driver.Break(kWorker1);
  driver.Pass(absl::Seconds(2));
  EXPECT_EQ(HearersOf<EpochStart>(driver.ReportRest(4)),
            (std::vector<SessionId>{kShard0, kWorker0, kNew + 1}));
}

TEST(CoordinatorNamesTest, FirstOfTwoClaimsGetsADeadWorkersPlace) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kNew, Another("w1", 98));
  driver.Pass(absl::Milliseconds(500));
  driver.Say(kNew + 1, Another("w1", 99));
  driver.Break(kWorker1);
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(RefusalIn(on, kNew).code(), absl::StatusCode::kOk);
  EXPECT_EQ(Heard<EpochStart>(on, kNew).self, PeerId::Worker(2));
  ExpectNameTaken(driver.Pass(absl::Seconds(3)), kNew + 1);
}

// A process may die while it waits for the place.
TEST(CoordinatorNamesTest, GettingAPlaceDoesNotCountAsAMessage) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Say(kNew, Another("w1", 98));
  driver.Say(kNew + 1, Another("w1", 99));
  const Reaction gone = driver.Pass(absl::Seconds(11), {kWorker1});
  EXPECT_EQ(RefusalIn(gone, kWorker1).code(), absl::StatusCode::kCancelled);
  ASSERT_THAT(driver.Status().members, SizeIs(3));
  EXPECT_TRUE(RefusalIn(gone, kNew + 1).ok()) << RefusalIn(gone, kNew + 1);
  // The process that got the place is dead too. It was in no epoch, so its rank
  // is free.
  driver.Break(kNew);
  EXPECT_EQ(Heard<EpochStart>(driver.ReportRest(4), kNew + 1).self,
            PeerId::Worker(2));
}

// A worker that has left needs no place any more.
TEST(CoordinatorNamesTest, WorkerThatHasLeftLeavesItsName) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Beat(kWorker1, 3, 3);
  driver.Say(kWorker1, Leave{3});
  const Reaction joined = driver.Say(kNew, Another("w1"));
  EXPECT_THAT(HearersOf<Waiting>(joined), IsEmpty());
  EXPECT_TRUE(RefusalIn(joined, kNew).ok()) << RefusalIn(joined, kNew);
  const Reaction on = driver.ReportRest(4);
  EXPECT_EQ(Heard<EpochStart>(on, kNew).self, PeerId::Worker(2));
  EXPECT_EQ(driver.job().NameOf(PeerId::Worker(2)), "worker w1");
}

// Members are of two kinds: "worker s0" is not "shard 0".
TEST(CoordinatorNamesTest, WorkerMayHaveTheNameOfAServersProcess) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Say(kShard0, ShardRequest(0));
  const Reaction started = driver.Say(kWorker0, Another("s0"));
  EXPECT_THAT(HearersOf<Waiting>(started), IsEmpty());
  EXPECT_EQ(driver.state(), JobState::kRunning);
  EXPECT_EQ(driver.job().NameOf(PeerId::Worker(0)), "worker s0");
}

// A process that would be refused anyway does not cost a worker its place.
TEST(CoordinatorNamesTest, RefusedWorkerDoesNotTakeAPlace) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  driver.Gather();
  driver.Break(kWorker1);
  std::vector<JoinRequest> wrong(4, Another("w1"));
  wrong[0].protocol_version += 1;
  wrong[1].layers.pop_back();
  wrong[2].products = "gpu/fp32";
  wrong[3].caller.optimizer = OptimizerPlace::kWorker;
  for (size_t i = 0; i < wrong.size(); ++i) {
    const auto session = kNew + static_cast<SessionId>(i);
    const Reaction refused = driver.Say(session, wrong[i]);
    EXPECT_FALSE(RefusalIn(refused, session).ok()) << i;
    EXPECT_THAT(refused.announced,
                Not(Contains(HasSubstr("worker w1 (at w1:1) was removed"))));
  }
  EXPECT_THAT(driver.ResumeIn(kNew + 9, kWorker1).sent, IsEmpty());
  EXPECT_EQ(driver.job().epoch, 1u);
}

}  // namespace
}  // namespace nereus
