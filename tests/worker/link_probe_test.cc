#include "worker/measure/link_probe.h"

#include <gtest/gtest.h>

#include "common/protocol/frame.h"

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

}  // namespace
}  // namespace nereus
