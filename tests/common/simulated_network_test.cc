#include "common/simulation/simulated_network.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr NetworkOptions kOptions;

Frame Numbered(PeerId from, int64_t number) {
  Frame frame;
  frame.header.kind = FrameKind::kContribution;
  frame.header.sender = from;
  frame.header.round = number;
  return frame;
}

struct Arrival {
  PeerId from;
  PeerId to;
  int64_t number;
  absl::Time time;
};

// A network and what came out of it.
class Recorder {
 public:
  Recorder(const NetworkOptions& options, uint64_t seed)
      : network_(options, seed, &events_,
                 [this](PeerId from, PeerId to, const Frame& frame) {
                   arrivals_.push_back(
                       {from, to, frame.header.round, events_.now()});
                   payloads_.push_back(FloatsOf(frame.payload));
                 }) {}

  // `count` frames from each of three workers to each of two shards, all at
  // once.
  void SendMany(int64_t count) {
    for (int64_t number = 0; number < count; ++number) {
      for (int worker = 0; worker < 3; ++worker) {
        for (int shard = 0; shard < 2; ++shard) {
          const PeerId from = PeerId::Worker(worker);
          network_.Send(from, PeerId::Shard(shard), Numbered(from, number));
        }
      }
    }
  }

  void RunAll() {
    while (events_.RunNext()) {
    }
  }

  EventQueue events_;
  std::vector<Arrival> arrivals_;
  std::vector<std::vector<float>> payloads_;
  SimulatedNetwork network_;
};

TEST(SimulatedNetworkTest, EveryFrameArrivesOnceInTheOrderOfItsPair) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    Recorder recorder(kOptions, seed);
    recorder.SendMany(100);
    recorder.RunAll();
    EXPECT_EQ(recorder.arrivals_.size(), 600u);
    EXPECT_EQ(recorder.network_.frames_delivered(), 600);
    std::map<std::pair<PeerId, PeerId>, int64_t> next;
    for (const Arrival& arrival : recorder.arrivals_) {
      const auto pair = std::make_pair(arrival.from, arrival.to);
      ASSERT_EQ(arrival.number, next[pair]++);
    }
  }
}

TEST(SimulatedNetworkTest, PairsOvertakeEachOther) {
  Recorder recorder(kOptions, 1);
  const PeerId from = PeerId::Worker(0);
  int overtaken = 0;
  for (int64_t i = 0; i < 100; ++i) {
    recorder.arrivals_.clear();
    recorder.network_.Send(from, PeerId::Shard(0), Numbered(from, 2 * i));
    recorder.network_.Send(from, PeerId::Shard(1), Numbered(from, 2 * i + 1));
    recorder.RunAll();
    ASSERT_EQ(recorder.arrivals_.size(), 2u);
    if (recorder.arrivals_[0].number == 2 * i + 1) ++overtaken;
  }
  // Half of them, with a deviation of 5; 6 of those.
  EXPECT_NEAR(overtaken, 50, 30);
}

TEST(SimulatedNetworkTest, DelaysAreInTheRange) {
  NetworkOptions options;
  options.delay_min = absl::Milliseconds(2);
  options.delay_max = absl::Milliseconds(7);
  Recorder recorder(options, 2);
  const PeerId from = PeerId::Worker(0);
  absl::Duration shortest = absl::InfiniteDuration();
  absl::Duration longest = absl::ZeroDuration();
  for (int64_t i = 0; i < 1000; ++i) {
    const absl::Time sent = recorder.events_.now();
    recorder.network_.Send(from, PeerId::Shard(0), Numbered(from, i));
    recorder.RunAll();
    const absl::Duration delay = recorder.arrivals_.back().time - sent;
    ASSERT_GE(delay, options.delay_min);
    ASSERT_LE(delay, options.delay_max);
    shortest = std::min(shortest, delay);
    longest = std::max(longest, delay);
  }
  EXPECT_LT(shortest, absl::Milliseconds(2.1));
  EXPECT_GT(longest, absl::Milliseconds(6.9));
}

TEST(SimulatedNetworkTest, AFixedDelayIsKept) {
  NetworkOptions options;
  options.delay_min = options.delay_max = absl::Milliseconds(3);
  Recorder recorder(options, 3);
  recorder.SendMany(1);
  recorder.RunAll();
  for (const Arrival& arrival : recorder.arrivals_) {
    EXPECT_EQ(arrival.time, absl::UnixEpoch() + absl::Milliseconds(3));
  }
}

TEST(SimulatedNetworkTest, RepeatsComeAfterTheFirstAndBeforeWhatIsSentLater) {
  NetworkOptions options;
  options.repeat_probability = 1.0;
  Recorder recorder(options, 4);
  recorder.SendMany(50);
  recorder.RunAll();
  EXPECT_EQ(recorder.network_.frames_delivered(), 600);
  std::map<std::pair<PeerId, PeerId>, int64_t> next;
  for (const Arrival& arrival : recorder.arrivals_) {
    const auto pair = std::make_pair(arrival.from, arrival.to);
    ASSERT_EQ(arrival.number, next[pair]++ / 2);
  }
}

TEST(SimulatedNetworkTest, RepeatsAreAsFrequentAsAsked) {
  NetworkOptions options;
  options.repeat_probability = 0.25;
  Recorder recorder(options, 5);
  recorder.SendMany(1000);
  recorder.RunAll();
  // 6000 / 4 repeats, with a deviation of sqrt(6000 * 3/16) = 34; 6 of those.
  EXPECT_NEAR(recorder.network_.frames_delivered(), 7500, 204);
}

TEST(SimulatedNetworkTest, PayloadsAreReadOnArrival) {
  Recorder recorder(kOptions, 6);
  Frame frame = Numbered(PeerId::Worker(0), 0);
  frame.payload = FloatBuffer({1});
  recorder.network_.Send(PeerId::Worker(0), PeerId::Shard(0), frame);
  EXPECT_FALSE(frame.payload.unique());
  frame.payload.floats()[0] = 2;
  recorder.RunAll();
  ASSERT_EQ(recorder.payloads_.size(), 1u);
  EXPECT_EQ(recorder.payloads_[0], std::vector<float>{2});
  EXPECT_TRUE(frame.payload.unique());  // Delivered: held no longer.
}

uint64_t DigestOf(uint64_t seed, int64_t frames) {
  Recorder recorder(kOptions, seed);
  recorder.SendMany(frames);
  recorder.RunAll();
  return recorder.network_.digest();
}

TEST(SimulatedNetworkTest, DigestTellsRunsApart) {
  EXPECT_EQ(DigestOf(7, 20), DigestOf(7, 20));
  EXPECT_NE(DigestOf(7, 20), DigestOf(8, 20));  // Other times.
  EXPECT_NE(DigestOf(7, 20), DigestOf(7, 21));  // One more frame.
}

TEST(SimulatedNetworkTest, DigestSeesEveryHeaderFieldAndTheReceiver) {
  const auto digest = [](const FrameHeader& header, PeerId to) {
    EventQueue events;
    SimulatedNetwork network({}, 9, &events,
                             [](PeerId, PeerId, const Frame&) {});
    network.Send(PeerId::Worker(0), to, {header, Buffer()});
    while (events.RunNext()) {
    }
    return network.digest();
  };
  FrameHeader plain;
  plain.kind = FrameKind::kContribution;
  const uint64_t known = digest(plain, PeerId::Shard(0));
  EXPECT_EQ(digest(plain, PeerId::Shard(0)), known);
  EXPECT_NE(digest(plain, PeerId::Shard(1)), known);
  EXPECT_NE(digest(plain, PeerId::Worker(0)), known);  // Role.
  FrameHeader other = plain;
  other.round = 2;
  EXPECT_NE(digest(other, PeerId::Shard(0)), known);
  other = plain;
  other.layer = 1;
  EXPECT_NE(digest(other, PeerId::Shard(0)), known);
}

TEST(SimulatedNetworkTest, DigestSeesThePayload) {
  const auto digest = [](float value) {
    EventQueue events;
    SimulatedNetwork network({}, 9, &events,
                             [](PeerId, PeerId, const Frame&) {});
    network.Send(PeerId::Worker(0), PeerId::Shard(0),
                 {FrameHeader(), FloatBuffer({value})});
    while (events.RunNext()) {
    }
    return network.digest();
  };
  EXPECT_NE(digest(1), digest(2));
}

}  // namespace
}  // namespace nereus
