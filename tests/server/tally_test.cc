#include "server/coordinator/tally.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace nereus {

namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// A job of one layer by servers.
class TallyTest : public testing::Test {
 protected:
  TallyTest() { job_.routes = {Route()}; }

  void Enter(const std::vector<int>& workers, double seconds) {
    job_.workers.clear();
    for (const int rank : workers) job_.workers.push_back({.rank = rank});
    tally_.OnEpoch(job_, At(seconds));
  }
  // The coordinator heard last from the member at `seconds`.
  void Lose(PeerId id, double seconds) {
    MemberRecord member;
    member.id = id;
    member.times.last_message_at = At(seconds);
    tally_.OnDead(member);
  }
  JobCounts Counts() {
    JobStatus status;
    tally_.Fill(status, At(1000));
    return status.counts;
  }

  Job job_;
  Tally tally_{nullptr};
};

TEST_F(TallyTest, EachEpochHasTheFirstReasonThatHolds) {
  Enter({0, 1}, 1);
  Lose(PeerId::Worker(1), 2);
  job_.routes[0].scheme = Scheme::kRing;  // A loss counts more than the plan.
  Enter({0}, 3);
  Enter({0, 2, 3}, 4);
  Enter({0, 3}, 5);
  job_.routes[0].scheme = Scheme::kServer;
  Enter({0, 3}, 6);
  job_.checkpoint_round = 7;
  Enter({0, 3}, 7);
  Enter({0, 3}, 8);
  EXPECT_EQ(Counts().epochs, 7);
  EXPECT_EQ(Counts().plan_changes, 2);
  EXPECT_THAT(
      Counts().epochs_by_reason,
      UnorderedElementsAre(Pair("start", 1), Pair("lost", 1), Pair("join", 1),
                           Pair("leave", 1), Pair("plan", 1),
                           Pair("checkpoint", 1), Pair("other", 1)));
}

TEST_F(TallyTest, AReplacementTakesFromTheLastMessageToTheEpoch) {
  Enter({0, 1}, 1);
  EXPECT_EQ(Counts().workers_replaced.count(), 0) << "the first are no such";
  Lose(PeerId::Worker(1), 2);
  Lose(PeerId::Worker(0), 3);
  Enter({2}, 10);
  EXPECT_EQ(Counts().workers_replaced.count(), 1);
  EXPECT_EQ(Counts().workers_replaced.sum(), absl::Seconds(8));
  Enter({2, 3, 4}, 13);
  EXPECT_EQ(Counts().workers_replaced.count(), 2);
  EXPECT_EQ(Counts().workers_replaced.sum(), absl::Seconds(8 + 10));
  EXPECT_EQ(Counts().servers_replaced.count(), 0);
}

// A server keeps its number.
TEST_F(TallyTest, AServerThatIsBackInTheNextEpochIsReplaced) {
  job_.shard_servers = {{0, 1, true}, {1, 0, true}};
  Enter({0}, 1);
  Lose(PeerId::Shard(1), 2);
  Enter({0}, 4);
  EXPECT_EQ(Counts().servers_replaced.sum(), absl::Seconds(2));
  EXPECT_EQ(Counts().servers_replaced.count(), 1);
  EXPECT_EQ(Counts().servers_lost, 1);
}

// The members of a restarted coordinator's job have not joined anew.
TEST_F(TallyTest, ARestartedCoordinatorKnowsTheMembers) {
  job_.workers = {{.rank = 0}, {.rank = 1}};
  tally_ = Tally(&job_);
  Lose(PeerId::Worker(1), 2);
  Enter({0}, 3);
  EXPECT_EQ(Counts().epochs_by_reason.at("lost"), 1);
  EXPECT_EQ(Counts().epochs_by_reason.at("start"), 0);
  EXPECT_EQ(Counts().workers_replaced.count(), 0);
}

TEST_F(TallyTest, ALeaverThatDiesIsNotReplaced) {
  Enter({0, 1}, 1);
  MemberRecord leaver;
  leaver.id = PeerId::Worker(1);
  leaver.last_step = 4;
  tally_.OnDead(leaver);
  Enter({0, 2}, 3);
  EXPECT_EQ(Counts().workers_lost, 1);
  EXPECT_EQ(Counts().workers_replaced.count(), 0);
}

TEST_F(TallyTest, SyncTimesAreMediansOverTheWorkersThatHaveOne) {
  const auto of = [&](int32_t index) {
    JobStatus status;
    status.plan.layers.emplace_back().index = index;
    tally_.Fill(status, At(1000));
    return status.plan.layers[0].sync_time;
  };
  EXPECT_EQ(of(0), std::nullopt);
  const auto ms = [](int time) { return absl::Milliseconds(time); };
  tally_.OnMeasured(PeerId::Worker(0), {ms(9), ms(0)});
  tally_.OnMeasured(PeerId::Worker(1), {ms(2), ms(0)});
  tally_.OnMeasured(PeerId::Worker(2), {ms(3), ms(7)});
  tally_.OnMeasured(PeerId::Worker(3), {});
  EXPECT_EQ(of(0), ms(3));
  EXPECT_EQ(of(1), ms(7));
  EXPECT_EQ(of(2), std::nullopt) << "no such layer";
  tally_.OnMeasured(PeerId::Worker(0), {ms(1), ms(0)});
  EXPECT_EQ(of(0), ms(2)) << "the last report counts";
  tally_.OnMeasured(PeerId::Shard(1), {ms(1), ms(1)});
  EXPECT_EQ(of(0), ms(2)) << "servers push nothing";
  tally_.OnGone(PeerId::Worker(1));
  EXPECT_EQ(of(0), ms(1)) << "of two, the shorter one";
}

const absl::Time kStart = absl::UnixEpoch();

TEST(StepRateTest, RateIsOfTheLastTenSeconds) {
  StepRate rate;
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Note(kStart, 0);
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Note(kStart + absl::Seconds(10), 50);
  EXPECT_EQ(rate.PerSecond(), 5);
  rate.Note(kStart + absl::Seconds(20), 60);
  EXPECT_EQ(rate.PerSecond(), 1);
}

TEST(StepRateTest, JobThatGoesBackToACheckpointIsMeasuredFromScratch) {
  StepRate rate;
  rate.Note(kStart, 0);
  rate.Note(kStart + absl::Seconds(1), 100);
  rate.Note(kStart + absl::Seconds(2), 40);
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Note(kStart + absl::Seconds(3), 42);
  EXPECT_EQ(rate.PerSecond(), 2);
}

// No time has passed, so no rate is known. Division by zero seconds would give
// infinity.
TEST(StepRateTest, TwoNotesAtOnceHaveNoRate) {
  StepRate rate;
  rate.Note(kStart, 0);
  rate.Note(kStart, 3);
  EXPECT_EQ(rate.PerSecond(), 0);
}

}  // namespace

}  // namespace nereus
