#include "server/coordinator/paces.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

namespace nereus {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(100);

PeerId Worker(int rank) { return PeerId::Worker(rank); }
PeerId Server(int rank) { return PeerId::Shard(rank); }

// A job whose steps take kStep, and whose members send a heartbeat a second.
class PacesTest : public testing::Test {
 protected:
  // Sets what a worker computes in each step. The rest of a step it waits.
  void Compute(PeerId worker, absl::Duration computing) {
    computing_[worker] = computing;
  }
  // Sets the busiest link of a member, and the share of its other links.
  void Slow(PeerId member, PeerId peer, double share,
            std::optional<double> others) {
    links_[member] = BusyLink{peer, share, others};
  }

  void Run(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      steps_ += absl::Seconds(1) / kStep;
      for (const auto& [worker, computing] : computing_) {
        Activity activity;
        activity.steps = steps_;
        activity.times.forward = steps_ * computing / 2;
        activity.times.backward = steps_ * computing / 2;
        activity.times.waiting = steps_ * (kStep - computing);
        Note(worker, activity);
      }
      Note(Server(0), Activity());
      Note(Server(1), Activity());
      paces_.Update(now_);
    }
  }

  LateCause CauseOf(PeerId member) {
    const std::optional<Pace> pace = paces_.PaceOf(member);
    return pace.has_value() ? pace->cause : LateCause::kNone;
  }

  // Expects that of four workers only `late` is late. -1: none is.
  void ExpectLate(int late, LateCause cause) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(CauseOf(Worker(rank)), rank == late ? cause : LateCause::kNone)
          << rank;
    }
  }

  Paces paces_;

 private:
  void Note(PeerId member, Activity activity) {
    if (const auto link = links_.find(member); link != links_.end()) {
      activity.busiest = link->second;
    }
    paces_.Note(member, /*process=*/1, activity, now_);
  }

  absl::Time now_ = absl::UnixEpoch();
  int64_t steps_ = 0;
  std::map<PeerId, absl::Duration> computing_;
  std::map<PeerId, BusyLink> links_;
};

TEST_F(PacesTest, NobodyIsLateIfAllComputeAlike) {
  for (int rank = 0; rank < 4; ++rank) Compute(Worker(rank), 0.6 * kStep);
  Compute(Worker(3), 0.65 * kStep);
  Run(8);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(CauseOf(Worker(rank)), LateCause::kNone) << rank;
    EXPECT_EQ(paces_.PaceOf(Worker(rank))->step.total(), kStep);
  }
}

TEST_F(PacesTest, NamesTheWorkerWhoseProgramComputesLonger) {
  for (int rank = 0; rank < 4; ++rank) Compute(Worker(rank), 0.5 * kStep);
  Compute(Worker(2), 0.9 * kStep);
  Run(8);
  ExpectLate(2, LateCause::kComputing);
  EXPECT_EQ(paces_.PaceOf(Worker(2))->late, 0.4 * kStep);
  // 0.4 of each of the three seconds before an update with a pace, which is
  // known after five seconds.
  EXPECT_NEAR(absl::ToDoubleSeconds(paces_.LateTotal(Worker(2))), 0.4 * 3,
              0.01);
  EXPECT_EQ(paces_.LateTotal(Worker(1)), absl::ZeroDuration());
}

// All links of the slow machine are slow, so it sees them all alike.
TEST_F(PacesTest, NamesTheWorkerWhoseOwnLinksAreSlow) {
  for (int rank = 0; rank < 4; ++rank) {
    Compute(Worker(rank), 0.3 * kStep);
    Slow(Worker(rank), Server(0), 0.1, 0.1);
  }
  Slow(Worker(1), Server(0), 0.8, 0.75);
  Run(8);
  ExpectLate(1, LateCause::kLink);
  EXPECT_EQ(CauseOf(Server(0)), LateCause::kNone);
}

// The workers have a link each, to one server. The server's other links are
// fast.
TEST_F(PacesTest, NamesTheWorkerToWhichTheServersLinkIsSlow) {
  for (int rank = 0; rank < 4; ++rank) {
    Compute(Worker(rank), 0.3 * kStep);
    Slow(Worker(rank), Server(0), rank == 3 ? 0.9 : 0.05, std::nullopt);
  }
  Slow(Server(0), Worker(3), 0.9, 0.1);
  Run(8);
  ExpectLate(3, LateCause::kLink);
}

// The other server tells that its links are fast.
TEST_F(PacesTest, NamesTheServerWhoseLinksAreSlow) {
  for (int rank = 0; rank < 4; ++rank) {
    Compute(Worker(rank), 0.3 * kStep);
    Slow(Worker(rank), Server(1), 0.8, 0.05);
  }
  Slow(Server(0), Worker(1), 0.1, 0.05);
  Slow(Server(1), Worker(2), 0.8, 0.75);
  Run(8);
  EXPECT_EQ(CauseOf(Server(1)), LateCause::kLink);
  EXPECT_EQ(CauseOf(Server(0)), LateCause::kNone);
  ExpectLate(-1, LateCause::kNone);
}

// On a ring, each worker sends to the next one alone. Both links of worker 2
// are slow.
TEST_F(PacesTest, NamesTheWorkerOnARingThatHasTwoSlowLinks) {
  for (int rank = 0; rank < 4; ++rank) {
    Compute(Worker(rank), 0.3 * kStep);
    Slow(Worker(rank), Worker((rank + 1) % 4),
         rank == 1 || rank == 2 ? 0.7 : 0.1, std::nullopt);
  }
  Run(8);
  // The neighbours have one slow link each.
  ExpectLate(2, LateCause::kLink);
}

TEST_F(PacesTest, NobodyIsLateIfAllLinksAreBusy) {
  for (int rank = 0; rank < 4; ++rank) {
    Compute(Worker(rank), 0.3 * kStep);
    Slow(Worker(rank), Server(0), 0.7, 0.65);
  }
  Slow(Server(0), Worker(0), 0.7, 0.65);
  Slow(Server(1), Worker(0), 0.7, 0.65);
  Run(8);
  ExpectLate(-1, LateCause::kNone);
  EXPECT_EQ(CauseOf(Server(0)), LateCause::kNone);
}

// All workers send to one server, whose link then holds them up. What the
// server sends waits for what it gets, and never for the link.
TEST_F(PacesTest, NobodyIsLateIfTheLinkOfTheOnlyServerIsBusy) {
  for (int rank = 0; rank < 4; ++rank) Compute(Worker(rank), 0.3 * kStep);
  for (int rank = 1; rank < 4; ++rank) {
    Slow(Worker(rank), Server(0), 0.33, std::nullopt);
  }
  Slow(Server(0), Worker(1), 0.001, 0.001);
  Run(8);
  ExpectLate(-1, LateCause::kNone);
  EXPECT_EQ(CauseOf(Server(0)), LateCause::kNone);
}

// The network is slow, but done before the computing is.
TEST_F(PacesTest, ASlowLinkThatIsHiddenBehindComputingIsNotLate) {
  for (int rank = 0; rank < 4; ++rank) Compute(Worker(rank), 0.95 * kStep);
  Slow(Worker(1), Server(0), 0.8, 0.75);
  Run(8);
  EXPECT_EQ(CauseOf(Worker(1)), LateCause::kNone);
}

TEST_F(PacesTest, ForgetsWhatIsOlderThanTheWindow) {
  for (int rank = 0; rank < 3; ++rank) Compute(Worker(rank), 0.5 * kStep);
  Compute(Worker(1), 0.9 * kStep);
  Run(8);
  ASSERT_EQ(CauseOf(Worker(1)), LateCause::kComputing);
  Compute(Worker(1), 0.5 * kStep);
  Run(static_cast<int>(kRateWindow / absl::Seconds(1)) + 2);
  EXPECT_EQ(CauseOf(Worker(1)), LateCause::kNone);
}

TEST_F(PacesTest, HeartbeatThatComesTooSoonIsNotKept) {
  Activity activity;
  const absl::Time start = absl::UnixEpoch();
  for (int i = 0; i <= 6; ++i) {
    activity.steps = 10 * i;
    activity.times.forward = activity.steps * kStep;
    paces_.Note(Worker(0), 1, activity, start + absl::Seconds(i));
  }
  activity.times.forward = absl::Hours(1);
  paces_.Note(Worker(0), 1, activity, start + absl::Seconds(6.01));
  paces_.Update(start + absl::Seconds(6.01));
  EXPECT_EQ(paces_.PaceOf(Worker(0))->step.forward, kStep);
}

TEST_F(PacesTest, AnotherProcessOfAMemberBeginsAnew) {
  Activity activity;
  activity.steps = 1000;
  const absl::Time start = absl::UnixEpoch();
  paces_.Note(Worker(0), 1, activity, start);
  activity.steps = 5;
  paces_.Note(Worker(0), 2, activity, start + absl::Seconds(1));
  paces_.Update(start + absl::Seconds(1));
  EXPECT_FALSE(paces_.PaceOf(Worker(0)).has_value());
}

TEST_F(PacesTest, AMemberThatIsGoneHasNoPace) {
  for (int rank = 0; rank < 3; ++rank) Compute(Worker(rank), 0.5 * kStep);
  Run(8);
  ASSERT_TRUE(paces_.PaceOf(Worker(2)).has_value());
  paces_.Forget(Worker(2));
  EXPECT_FALSE(paces_.PaceOf(Worker(2)).has_value());
}

}  // namespace
}  // namespace nereus
