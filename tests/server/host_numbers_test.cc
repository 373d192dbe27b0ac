// Numbers of hosts, and ranks of workers by host, as a coordinator gives them.
// host_table_test.cc has the rules of the numbers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

constexpr SessionId kNew = 20;

// Returns `request` of a process on `machine`.
JoinRequest On(const std::string& machine, JoinRequest request,
               const std::string& node = "") {
  request.host = {node, machine};
  return request;
}

// Returns the hosts in the status, by name of the member.
std::map<std::string, int32_t> HostsInStatus(const CoordinatorDriver& driver) {
  std::map<std::string, int32_t> hosts;
  for (const JobStatus::Member& member : driver.Status().members) {
    hosts[member.name] = member.host;
  }
  return hosts;
}

// Returns the hosts that members see, by identifier.
std::map<PeerId, int32_t> HostsIn(const EpochStart& start) {
  std::map<PeerId, int32_t> hosts;
  for (const EpochMember& each : start.epoch_members) {
    hosts[each.id] = each.host;
  }
  return hosts;
}

// A job with shard 0 on machine "y", and workers on machines "x", "y", "x" and
// on an unknown one.
class HostNumbersTest : public testing::Test {
 protected:
  HostNumbersTest() {
    driver_.Say(kShard0, On("y", ShardRequest(0)));
    driver_.Say(kWorker0, On("x", WorkerRequest("w0")));
    driver_.Say(kWorker1, On("y", WorkerRequest("w1")));
    driver_.Say(kWorker2, On("x", WorkerRequest("w2")));
    begins_ = driver_.Say(kWorker2 + 1, On("", WorkerRequest("w3")));
  }

  CoordinatorDriver driver_{OptionsOf(4, 1, /*max_workers=*/6)};
  Reaction begins_;  // Begin of the job.
};

TEST_F(HostNumbersTest, WorkersGetRanksHostByHost) {
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker0).self, PeerId::Worker(0));
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker2).self, PeerId::Worker(1));
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker1).self, PeerId::Worker(2));
  EXPECT_EQ(Heard<EpochStart>(begins_, kWorker2 + 1).self, PeerId::Worker(3));
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 0, 0}, EpochWorker{1, 0, 0},
                          EpochWorker{2, 0, 1}, EpochWorker{3, 0, -1}));
  EXPECT_EQ(driver_.job().NameOf(PeerId::Worker(1)), "worker w2");
}

TEST_F(HostNumbersTest, MembersAndTheStatusHaveTheNumbers) {
  EXPECT_THAT(
      HostsIn(Heard<EpochStart>(begins_, kShard0)),
      ElementsAre(Pair(PeerId::Worker(0), 0), Pair(PeerId::Worker(1), 0),
                  Pair(PeerId::Worker(2), 1), Pair(PeerId::Worker(3), -1),
                  Pair(PeerId::Shard(0), 1)));
  EXPECT_THAT(HostsInStatus(driver_),
              ElementsAre(Pair("s0", 1), Pair("w0", 0), Pair("w1", 1),
                          Pair("w2", 0), Pair("w3", -1)));
}

TEST_F(HostNumbersTest, JoinersGetTheNextRanksAndTheNumbersOfTheirHosts) {
  driver_.Say(kNew, On("y", WorkerRequest("w4")));
  driver_.Say(kNew + 1, On("z", WorkerRequest("w5")));
  driver_.ReportRest(4);
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 0, 0}, EpochWorker{1, 0, 0},
                          EpochWorker{2, 0, 1}, EpochWorker{3, 0, -1},
                          EpochWorker{4, 5, 1}, EpochWorker{5, 5, 2}));
  EXPECT_THAT(HostsInStatus(driver_), Contains(Pair("w5", 2)));
}

TEST_F(HostNumbersTest, RestartedCoordinatorKeepsTheNumbers) {
  CoordinatorState state = begins_.saved.back();
  driver_.Restart(state);
  EXPECT_THAT(HostsInStatus(driver_), Contains(Pair("w1", 1)));
  driver_.Say(kNew, On("z", WorkerRequest("w4")));
  driver_.ResumeIn(kNew + kShard0 + 1, kShard0);
  for (SessionId worker = kWorker0; worker <= kWorker2 + 1; ++worker) {
    driver_.ResumeIn(kNew + worker, worker);
  }
  driver_.ReportRest(4);
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 0, 0}, EpochWorker{1, 0, 0},
                          EpochWorker{2, 0, 1}, EpochWorker{3, 0, -1},
                          EpochWorker{4, 5, 2}));
}

// Two workers of one host that have never been connected, beside a third one
// elsewhere.
class HostSplitTest : public HostNumbersTest {
 protected:
  // Worker 1 (w2), or the worker of `session`, reports that it has never
  // reached `peer`, or has lost it.
  Reaction Lose(SessionId session, PeerId peer, bool reached) {
    return driver_.Say(session,
                       LostPeer{driver_.job().epoch, peer, "refused", reached});
  }
  int32_t HostOfWorker(int rank) { return driver_.job().workers[rank].host; }
};

TEST_F(HostSplitTest, MatesThatCannotConnectAreTwoHosts) {
  const Reaction asked = Lose(kWorker2, PeerId::Worker(0), /*reached=*/false);
  EXPECT_THAT(asked.announced,
              ElementsAre(HasSubstr("worker w2 and worker w0 cannot connect")));
  EXPECT_THAT(HearersOf<PrepareEpoch>(asked), SizeIs(5));
  // The report may be repeated in another session, and by the other end.
  EXPECT_THAT(Lose(kWorker2, PeerId::Worker(0), false).announced, IsEmpty());
  EXPECT_THAT(Lose(kWorker0, PeerId::Worker(1), false).announced, IsEmpty());
  const Reaction on = driver_.ReportRest(4);
  EXPECT_THAT(driver_.job().workers,
              ElementsAre(EpochWorker{0, 0, 0}, EpochWorker{1, 0, -1},
                          EpochWorker{2, 0, 1}, EpochWorker{3, 0, -1}));
  EXPECT_THAT(on.announced, Contains(HasSubstr("worker w0 and worker w2 could "
                                               "not connect, and are two")));
  const EpochStart start = Heard<EpochStart>(on, kWorker0);
  EXPECT_THAT(HostsIn(start), Contains(Pair(PeerId::Worker(1), -1)));
  EXPECT_THAT(start.broken_links,
              ElementsAre(Pair(PeerId::Worker(0), PeerId::Worker(1))));
  for (const JobStatus::Member& member : driver_.Status().members) {
    EXPECT_EQ(member.split, member.name == "w2") << member.name;
  }
}

TEST_F(HostSplitTest, SplitIsForLifeAndSaved) {
  Lose(kWorker2, PeerId::Worker(0), /*reached=*/false);
  const Reaction on = driver_.ReportRest(4);
  EXPECT_THAT(on.saved.back().hosts.split, SizeIs(1));
  driver_.Restart(on.saved.back());
  driver_.ResumeIn(kNew + kShard0 + 1, kShard0);
  for (SessionId worker = kWorker0; worker <= kWorker2 + 1; ++worker) {
    driver_.ResumeIn(kNew + worker, worker);
  }
  driver_.ReportRest(4);
  EXPECT_EQ(HostOfWorker(0), 0);
  EXPECT_EQ(HostOfWorker(1), -1);
  // A process that is gone does not come back.
  driver_.Break(kNew + kWorker2);
  driver_.Pass(absl::Seconds(2));
  EXPECT_THAT(driver_.ReportRest(4).saved.back().hosts.split, IsEmpty());
}

// No link is lost often enough for a member to go: there was none.
TEST_F(HostSplitTest, SplitWorkersStayMembers) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    Lose(kWorker2, PeerId::Worker(0), /*reached=*/false);
    driver_.ReportRest(4);
  }
  EXPECT_EQ(driver_.job().worker_count(), 4);
}

TEST_F(HostSplitTest, MatesThatWereConnectedStayOneHost) {
  EXPECT_THAT(Lose(kWorker2, PeerId::Worker(0), /*reached=*/true).announced,
              ElementsAre(HasSubstr("lost its connection")));
  driver_.ReportRest(4);
  EXPECT_EQ(HostOfWorker(1), 0);
}

TEST_F(HostSplitTest, WorkersOfDifferentHostsStayAsTheyAre) {
  Lose(kWorker1, PeerId::Worker(0), /*reached=*/false);
  driver_.ReportRest(4);
  EXPECT_EQ(HostOfWorker(0), 0);
  EXPECT_EQ(HostOfWorker(2), 1);
}

// The mate may have died, and the coordinator will hear so soon.
TEST_F(HostSplitTest, MateWithoutASessionIsNotSplit) {
  driver_.Break(kWorker0);
  Lose(kWorker2, PeerId::Worker(0), /*reached=*/false);
  driver_.ResumeIn(kNew, kWorker0);
  driver_.ReportRest(4);
  EXPECT_EQ(HostOfWorker(1), 0);
}

TEST(HostNewsTest, TwoMachinesWithOneNodeAreAnnounced) {
  CoordinatorDriver driver(OptionsOf(2, 1, /*max_workers=*/3));
  driver.Say(kShard0, On("x", ShardRequest(0), "n"));
  driver.Say(kWorker0, On("x", WorkerRequest("a"), "n"));
  EXPECT_THAT(driver.Say(kWorker1, On("y", WorkerRequest("b"), "n")).announced,
              Contains(HasSubstr("a and b both say --node=n")));
  driver.Say(kNew, On("z", WorkerRequest("c"), "n"));
  EXPECT_THAT(driver.ReportRest(4).announced,
              Not(Contains(HasSubstr("--node"))));
}

// Such processes may be anywhere.
TEST(HostNewsTest, WithoutClaimsRanksFollowTheOrderOfJoining) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  const Reaction begins = driver.Gather();
  EXPECT_THAT(
      driver.job().workers,
      ElementsAre(EpochWorker{0, 0}, EpochWorker{1, 0}, EpochWorker{2, 0}));
  EXPECT_EQ(Heard<EpochStart>(begins, kWorker2).self, PeerId::Worker(2));
  EXPECT_THAT(begins.saved.back().hosts.hosts, IsEmpty());
}

}  // namespace
}  // namespace nereus
