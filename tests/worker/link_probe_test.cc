#include "worker/measure/link_probe.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/protocol/frame.h"
#include "tests/testing/machine_harness.h"
#include "worker/measure/meter.h"

namespace nereus {

namespace {

// Simulated link. The answer to a train of frames takes 2 * latency, plus a
// time for each frame but the first, plus a time for the bytes of the train,
// plus a disturbance.
class FakeLink {
 public:
  FakeLink(double rate, absl::Duration latency, absl::Duration message)
      : rate_(rate), latency_(latency), message_(message) {}

  // Offers the probe a quiet moment, `pause` after the last answer.
  bool Step(absl::Duration pause, absl::Duration meets = absl::ZeroDuration()) {
    now_ += pause;
    const auto train = probe_.Next(now_);
    if (!train.has_value()) return false;
    last_ = *train;
    now_ +=
        2 * latency_ + message_ * (train->frames - 1) + meets +
        absl::Seconds(
            static_cast<double>(train->frames * train->payload_bytes) / rate_);
    probe_.OnAnswer(train->id, now_);
    return true;
  }

  void set_rate(double rate) { rate_ = rate; }
  LinkProbe& probe() { return probe_; }
  const LinkProbe::Train& last() const { return last_; }
  absl::Time now() const { return now_; }

 private:
  double rate_;
  const absl::Duration latency_;
  const absl::Duration message_;
  absl::Time now_ = absl::UnixEpoch();
  LinkProbe probe_;
  LinkProbe::Train last_;
};

constexpr absl::Duration kLatency = absl::Microseconds(100);
constexpr absl::Duration kMessage = absl::Microseconds(20);

TEST(LinkProbeTest, MeasuresLatencyMessageTimeAndRate) {
  for (const double rate : {1e6, 125e6, 1.25e9, 1e11}) {
    SCOPED_TRACE(rate);
    FakeLink link(rate, kLatency, kMessage);
    for (int i = 0; i < 12; ++i) {
      EXPECT_FALSE(link.probe().speed().has_value());
      ASSERT_TRUE(link.Step(absl::Milliseconds(1)));
    }
    const auto speed = link.probe().speed();
    ASSERT_TRUE(speed.has_value());
    EXPECT_NEAR(speed->rate, rate, rate / 1000);
    EXPECT_NEAR(absl::FDivDuration(speed->latency, kLatency), 1, 1e-3);
    EXPECT_NEAR(absl::FDivDuration(speed->message_time, kMessage), 1, 1e-3);
  }
}

// A train's time includes that of each frame, and one way there and back.
TEST(LinkProbeTest, ThroughputCountsTheTimeOfEachFrame) {
  FakeLink link(/*rate=*/1e9, kLatency, kMessage);
  for (int i = 0; i < 12; ++i) {
    EXPECT_FALSE(link.probe().throughput().has_value());
    ASSERT_TRUE(link.Step(absl::Milliseconds(1)));
  }
  const double frame = static_cast<double>(kFramePayloadBytesMax);
  const double frames = link.last().frames;
  EXPECT_NEAR(*link.probe().throughput(),
              frames * frame /
                  (2 * 100e-6 + (frames - 1) * 20e-6 + frames * frame / 1e9),
              1);
}

TEST(LinkProbeTest, OccasionalDisturbancesDoNotCount) {
  FakeLink link(125e6, kLatency, kMessage);
  for (int i = 0; i < 60; ++i) {
    link.Step(absl::Seconds(1),
              i % 9 < 6 ? absl::Milliseconds(i) : absl::ZeroDuration());
  }
  EXPECT_NEAR(link.probe().speed()->rate, 125e6, 1e6);
  EXPECT_LT(link.probe().speed()->latency, kLatency * 1.01);
}

TEST(LinkProbeTest, FollowsTheNetwork) {
  FakeLink link(125e6, kLatency, kMessage);
  for (int i = 0; i < 40; ++i) link.Step(absl::Seconds(1));
  link.set_rate(10e6);
  for (int i = 0; i < 40; ++i) link.Step(absl::Seconds(1));
  EXPECT_NEAR(link.probe().speed()->rate, 10e6, 1e5);
}

TEST(LinkProbeTest, SendsOneTrainASecondOnceItHasAResult) {
  FakeLink link(125e6, kLatency, kMessage);
  for (int i = 0; i < 12; ++i) link.Step(absl::ZeroDuration());
  EXPECT_FALSE(link.Step(absl::Milliseconds(500)));
  EXPECT_TRUE(link.Step(absl::Milliseconds(500)));
  EXPECT_FALSE(link.Step(absl::Milliseconds(900)));
}

TEST(LinkProbeTest, TrainsAreLongerOnFasterLinks) {
  FakeLink slow(1e6, kLatency, kMessage);
  FakeLink fast(1e10, kLatency, kMessage);
  int slow_frames = 0;
  int fast_frames = 0;
  for (int i = 0; i < 30; ++i) {
    slow.Step(absl::Seconds(1));
    if (slow.last().payload_bytes > 0) slow_frames = slow.last().frames;
    fast.Step(absl::Seconds(1));
    if (fast.last().payload_bytes > 0) fast_frames = fast.last().frames;
    EXPECT_LE(fast.last().payload_bytes, kFramePayloadBytesMax);
  }
  EXPECT_EQ(slow_frames, 4);
  EXPECT_EQ(fast_frames, 32);
}

TEST(LinkProbeTest, LostAnswerIsGivenUp) {
  LinkProbe probe;
  const absl::Time start = absl::UnixEpoch();
  const auto lost = probe.Next(start);
  ASSERT_TRUE(lost.has_value());
  EXPECT_FALSE(probe.Next(start + absl::Seconds(9)).has_value());
  const auto next = probe.Next(start + absl::Seconds(10));
  ASSERT_TRUE(next.has_value());
  // The first answer is too late, the second belongs to a train that was never
  // sent.
  probe.OnAnswer(lost->id, start + absl::Seconds(11));
  probe.OnAnswer(99, start + absl::Seconds(11));
  EXPECT_FALSE(probe.Next(start + absl::Seconds(12)).has_value());
  probe.OnAnswer(next->id, start + absl::Seconds(12));
  EXPECT_TRUE(probe.Next(start + absl::Seconds(13)).has_value());
}

// Returns the beginning of an epoch in which worker i runs on the host
// worker_hosts[i], and server i on server_hosts[i].
EpochStart StartOn(const std::vector<int32_t>& worker_hosts,
                   const std::vector<int32_t>& server_hosts,
                   JobOptions options = {}) {
  const auto workers = static_cast<int>(worker_hosts.size());
  const JobPtr job = TestJob(workers, static_cast<int>(server_hosts.size()),
                             {VectorLayer("a", 2)}, options);
  EpochStart start;
  start.job = EpochAfter(*job, [&](Job& next) {
    for (int rank = 0; rank < workers; ++rank) {
      next.workers[rank].host = worker_hosts[rank];
    }
  });
  for (size_t rank = 0; rank < server_hosts.size(); ++rank) {
    EpochMember& server = start.epoch_members.emplace_back();
    server.id = PeerId::Shard(static_cast<int32_t>(rank));
    server.host = server_hosts[rank];
  }
  return start;
}

ProbePlan PlanOf(EpochStart start, int rank) {
  start.self = PeerId::Worker(rank);
  return PlanProbes(start);
}

TEST(ProbePlanTest, OneWorkerOfAHostMeasuresTheLinkAndAnotherOneTheMemory) {
  const EpochStart start = StartOn({0, 1, 0, 1, 0}, {0, 1});
  EXPECT_EQ(PlanOf(start, 0).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 0).target, PeerId::Shard(1));
  EXPECT_EQ(PlanOf(start, 1).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 1).target, PeerId::Shard(0));
  EXPECT_EQ(PlanOf(start, 2).probed, Probed::kMemory);
  EXPECT_EQ(PlanOf(start, 2).target, PeerId::Worker(0));
  EXPECT_EQ(PlanOf(start, 2).local_workers, 3);
  EXPECT_EQ(PlanOf(start, 3).probed, Probed::kMemory);
  EXPECT_EQ(PlanOf(start, 3).target, PeerId::Worker(1));
  EXPECT_EQ(PlanOf(start, 4).probed, Probed::kNothing);
}

TEST(ProbePlanTest, EveryWorkerAloneOnItsHostMeasuresItsLink) {
  // A host without a number belongs to one member only.
  const EpochStart start = StartOn({-1, -1, 3}, {-1, 3, 4});
  EXPECT_EQ(PlanOf(start, 0).target, PeerId::Shard(0));
  EXPECT_EQ(PlanOf(start, 1).target, PeerId::Shard(1));
  // The second of the servers 0 and 2, which are on other hosts, would be
  // server 2; host 2 of the line-up gets the first one.
  EXPECT_EQ(PlanOf(start, 2).target, PeerId::Shard(0));
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(PlanOf(start, rank).probed, Probed::kLink);
  }
}

TEST(ProbePlanTest, WithoutServersOnOtherHostsAServerOfTheHostIsProbed) {
  const EpochStart start = StartOn({0, 0}, {0});
  EXPECT_EQ(PlanOf(start, 0).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 0).target, PeerId::Shard(0));
}

TEST(ProbePlanTest, WorkersOfAJobWithPartialRoundsMeasureNoMemory) {
  JobOptions options;
  options.rounds.quorum = Quorum::kMajority;
  const EpochStart start = StartOn({0, 0}, {0}, options);
  EXPECT_EQ(PlanOf(start, 0).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 1).probed, Probed::kNothing);
}

TEST(ProbePlanTest, WorkerThatHasLeftMeasuresNothing) {
  EpochStart start = StartOn({0, 0}, {0});
  start.job =
      EpochAfter(*start.job, [](Job& next) { next.workers.pop_back(); });
  EXPECT_EQ(PlanOf(start, 1).probed, Probed::kNothing);
}

TEST(MemoryRateTest, TwoCoresCarryOneTransferAtATime) {
  EXPECT_EQ(MemoryRateOf(5e9, 4, 1), 5e9);
  EXPECT_EQ(MemoryRateOf(5e9, 4, 2), 5e9);
  EXPECT_EQ(MemoryRateOf(5e9, 4, 4), 10e9);
  EXPECT_EQ(MemoryRateOf(5e9, 4, 64), 20e9);
  // A measurement that was disturbed.
  EXPECT_EQ(MemoryRateOf(1e12, 16, 64), 1e12);
}

}  // namespace

}  // namespace nereus
