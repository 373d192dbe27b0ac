// The simulated network without rates: delays, repeats, breaks, and receivers
// that are not ready. network_rates_test.cc tests the network with rates.

#include "common/network/simulated_network.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

constexpr NetworkOptions kOptions;

// Processes of the tests.
constexpr ProcessId kSender = 0;
constexpr ProcessId kReceiver = 5;

Frame Numbered(int64_t number) {
  Frame frame;
  frame.header.kind = FrameKind::kContribution;
  frame.header.round = number;
  return frame;
}

struct Arrival {
  ProcessId from;
  ProcessId to;
  int64_t number;
  absl::Time time;
};

// A network, and a record of its deliveries.
class Recorder {
 public:
  Recorder(const NetworkOptions& options, uint64_t seed)
      : network_(options, seed, &events_,
                 [this](ProcessId from, ProcessId to, const Frame& frame) {
                   ++offers_;
                   if (!ready_) return false;
                   arrivals_.push_back(
                       {from, to, frame.header.round, events_.now()});
                   payloads_.push_back(FloatsOf(frame.payload));
                   return true;
                 }) {}

  // Sends `count` frames from each of three processes to each of two others,
  // all at once.
  void SendMany(int64_t count) {
    for (int64_t number = 0; number < count; ++number) {
      for (const ProcessId from : {0, 1, 2}) {
        for (const ProcessId to : {5, 6}) {
          network_.Send(from, to, Numbered(number));
        }
      }
    }
  }

  void RunAll() {
    while (events_.RunNext()) {
    }
  }

  std::vector<int64_t> Numbers() const {
    std::vector<int64_t> numbers;
    for (const Arrival& arrival : arrivals_) numbers.push_back(arrival.number);
    return numbers;
  }

  EventQueue events_;
  bool ready_ = true;
  int64_t offers_ = 0;
  std::vector<Arrival> arrivals_;
  std::vector<std::vector<float>> payloads_;
  SimulatedNetwork network_;
};

TEST(SimulatedNetworkTest, EachFrameArrivesOnceInTheOrderOfItsPair) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    Recorder recorder(kOptions, seed);
    recorder.SendMany(100);
    recorder.RunAll();
    EXPECT_EQ(recorder.arrivals_.size(), 600u);
    EXPECT_EQ(recorder.network_.frames_delivered(), 600);
    std::map<std::pair<ProcessId, ProcessId>, int64_t> next;
    for (const Arrival& arrival : recorder.arrivals_) {
      const auto pair = std::make_pair(arrival.from, arrival.to);
      ASSERT_EQ(arrival.number, next[pair]++);
    }
  }
}

TEST(SimulatedNetworkTest, PairsOvertakeEachOther) {
  Recorder recorder(kOptions, 1);
  int overtaken = 0;
  for (int64_t i = 0; i < 100; ++i) {
    recorder.arrivals_.clear();
    recorder.network_.Send(kSender, 5, Numbered(2 * i));
    recorder.network_.Send(kSender, 6, Numbered(2 * i + 1));
    recorder.RunAll();
    ASSERT_EQ(recorder.arrivals_.size(), 2u);
    if (recorder.arrivals_[0].number == 2 * i + 1) ++overtaken;
  }
  // Half of the frames are expected, with a deviation of 5; the bound is 6
  // deviations.
  EXPECT_NEAR(overtaken, 50, 30);
}

TEST(SimulatedNetworkTest, DelaysAreInTheirRange) {
  NetworkOptions options;
  options.delay_min = absl::Milliseconds(2);
  options.delay_max = absl::Milliseconds(7);
  Recorder recorder(options, 2);
  absl::Duration shortest = absl::InfiniteDuration();
  absl::Duration longest = absl::ZeroDuration();
  for (int64_t i = 0; i < 1000; ++i) {
    const absl::Time sent = recorder.events_.now();
    recorder.network_.Send(kSender, kReceiver, Numbered(i));
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

TEST(SimulatedNetworkTest, FixedDelayIsKept) {
  NetworkOptions options;
  options.delay_min = options.delay_max = absl::Milliseconds(3);
  Recorder recorder(options, 3);
  recorder.SendMany(1);
  recorder.RunAll();
  for (const Arrival& arrival : recorder.arrivals_) {
    EXPECT_EQ(arrival.time, absl::UnixEpoch() + absl::Milliseconds(3));
  }
}

TEST(SimulatedNetworkTest, RepeatsArriveBetweenTheFrameAndLaterFrames) {
  NetworkOptions options;
  options.repeat_probability = 1.0;
  Recorder recorder(options, 4);
  recorder.SendMany(50);
  recorder.RunAll();
  EXPECT_EQ(recorder.network_.frames_delivered(), 600);
  std::map<std::pair<ProcessId, ProcessId>, int64_t> next;
  for (const Arrival& arrival : recorder.arrivals_) {
    const auto pair = std::make_pair(arrival.from, arrival.to);
    ASSERT_EQ(arrival.number, next[pair]++ / 2);
  }
}

TEST(SimulatedNetworkTest, RepeatsHaveTheGivenProbability) {
  NetworkOptions options;
  options.repeat_probability = 0.25;
  Recorder recorder(options, 5);
  recorder.SendMany(1000);
  recorder.RunAll();
  // 6000 / 4 repeats are expected, with a deviation of sqrt(6000 * 3/16) = 34;
  // the bound is 6 deviations.
  EXPECT_NEAR(recorder.network_.frames_delivered(), 7500, 204);
}

TEST(SimulatedNetworkTest, PayloadsAreReadOnArrival) {
  Recorder recorder(kOptions, 6);
  Frame frame = Numbered(0);
  frame.payload = FloatBuffer({1});
  recorder.network_.Send(kSender, kReceiver, frame);
  EXPECT_FALSE(frame.payload.unique());
  frame.payload.floats()[0] = 2;
  recorder.RunAll();
  ASSERT_EQ(recorder.payloads_.size(), 1u);
  EXPECT_EQ(recorder.payloads_[0], std::vector<float>{2});
  // The network keeps no reference after delivery.
  EXPECT_TRUE(frame.payload.unique());
}

TEST(SimulatedNetworkTest, BrokenConnectionLosesFramesUnderWay) {
  for (const bool backwards : {false, true}) {
    Recorder recorder(kOptions, 10);
    recorder.SendMany(10);
    if (backwards) {
      recorder.network_.Break(kReceiver, kSender);
    } else {
      recorder.network_.Break(kSender, kReceiver);
    }
    recorder.RunAll();
    // All other pairs have lost no frames.
    EXPECT_EQ(recorder.network_.frames_delivered(), 50);
    for (const Arrival& arrival : recorder.arrivals_) {
      EXPECT_FALSE(arrival.from == kSender && arrival.to == kReceiver);
    }
  }
}

TEST(SimulatedNetworkTest, EachEndSendsAfterItsOwnReconnect) {
  Recorder recorder(kOptions, 11);
  recorder.network_.Break(kSender, kReceiver);
  recorder.network_.Send(kSender, kReceiver, Numbered(0));
  recorder.network_.Send(kReceiver, kSender, Numbered(1));
  recorder.network_.Connect(kSender, kReceiver);
  recorder.network_.Send(kSender, kReceiver, Numbered(2));
  // This end has no new connection yet.
  recorder.network_.Send(kReceiver, kSender, Numbered(3));
  recorder.RunAll();
  EXPECT_EQ(recorder.Numbers(), std::vector<int64_t>{2});
  recorder.network_.Connect(kReceiver, kSender);
  recorder.network_.Send(kReceiver, kSender, Numbered(4));
  recorder.RunAll();
  EXPECT_EQ(recorder.Numbers(), (std::vector<int64_t>{2, 4}));
}

TEST(SimulatedNetworkTest, FramesOfANewConnectionSurviveTheOldBreak) {
  Recorder recorder(kOptions, 12);
  for (int64_t i = 0; i < 20; ++i) {
    recorder.network_.Send(kSender, kReceiver, Numbered(i));
  }
  recorder.network_.Break(kSender, kReceiver);
  recorder.network_.Connect(kSender, kReceiver);
  recorder.network_.Send(kSender, kReceiver, Numbered(20));
  recorder.RunAll();
  EXPECT_EQ(recorder.Numbers(), std::vector<int64_t>{20});
}

TEST(SimulatedNetworkTest, UnreadyReceiverGetsAllFramesInOrderLater) {
  Recorder recorder(kOptions, 13);
  recorder.ready_ = false;
  for (int64_t i = 0; i < 5; ++i) {
    recorder.network_.Send(kSender, kReceiver, Numbered(i));
  }
  recorder.RunAll();
  // The other frames wait behind the first one.
  EXPECT_EQ(recorder.offers_, 1);
  recorder.network_.OfferAgain(kReceiver);
  EXPECT_EQ(recorder.offers_, 2);
  recorder.ready_ = true;
  // The call for another receiver has no effect.
  recorder.network_.OfferAgain(kSender);
  EXPECT_TRUE(recorder.arrivals_.empty());
  // Later frames wait behind the others.
  recorder.network_.Send(kSender, kReceiver, Numbered(5));
  recorder.RunAll();
  EXPECT_TRUE(recorder.arrivals_.empty());
  recorder.network_.OfferAgain(kReceiver);
  EXPECT_EQ(recorder.Numbers(), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(recorder.network_.frames_delivered(), 6);
}

TEST(SimulatedNetworkTest, WaitingFramesAreLostWithTheirConnection) {
  Recorder recorder(kOptions, 14);
  recorder.ready_ = false;
  recorder.network_.Send(kSender, kReceiver, Numbered(0));
  recorder.RunAll();
  recorder.network_.Break(kSender, kReceiver);
  recorder.ready_ = true;
  recorder.network_.OfferAgain(kReceiver);
  EXPECT_TRUE(recorder.arrivals_.empty());
}

uint64_t DigestOf(uint64_t seed, int64_t frames) {
  Recorder recorder(kOptions, seed);
  recorder.SendMany(frames);
  recorder.RunAll();
  return recorder.network_.digest();
}

// The digest of a run without rates must never change: only delays decide.
// Frames carry the version of the protocol, so a new version changes the
// digest.
TEST(SimulatedNetworkTest, RunsWithoutRatesKeepTheirDigest) {
  NetworkOptions options;
  options.repeat_probability = 0.2;
  Recorder recorder(options, 7);
  recorder.SendMany(20);
  recorder.RunAll();
  recorder.SendMany(20);
  recorder.network_.Break(0, 5);
  recorder.ready_ = false;
  recorder.RunAll();
  recorder.ready_ = true;
  recorder.network_.OfferAgain(5);
  recorder.network_.OfferAgain(6);
  recorder.RunAll();
  EXPECT_EQ(recorder.network_.digest(), 16549311403750964466u);
}

TEST(SimulatedNetworkTest, DigestTellsRunsApart) {
  EXPECT_EQ(DigestOf(7, 20), DigestOf(7, 20));
  // The other seed gives other times.
  EXPECT_NE(DigestOf(7, 20), DigestOf(8, 20));
  // The second run has one more frame.
  EXPECT_NE(DigestOf(7, 20), DigestOf(7, 21));
}

TEST(SimulatedNetworkTest, DigestCoversEachHeaderFieldAndTheReceiver) {
  const auto digest = [](const FrameHeader& header, ProcessId to) {
    EventQueue events;
    SimulatedNetwork network(
        {}, 9, &events,
        [](ProcessId, ProcessId, const Frame&) { return true; });
    network.Send(kSender, to, {header, Buffer()});
    while (events.RunNext()) {
    }
    return network.digest();
  };
  FrameHeader plain;
  plain.kind = FrameKind::kContribution;
  const uint64_t known = digest(plain, kReceiver);
  EXPECT_EQ(digest(plain, kReceiver), known);
  EXPECT_NE(digest(plain, kReceiver + 1), known);
  FrameHeader other = plain;
  other.round = 2;
  EXPECT_NE(digest(other, kReceiver), known);
  other = plain;
  other.layer = 1;
  EXPECT_NE(digest(other, kReceiver), known);
  other = plain;
  other.part = 1;
  EXPECT_NE(digest(other, kReceiver), known);
  other = plain;
  other.sender = PeerId::Shard(0);  // The other role has the same rank.
  EXPECT_NE(digest(other, kReceiver), known);
}

TEST(SimulatedNetworkTest, DigestCoversThePayload) {
  const auto digest = [](float value) {
    EventQueue events;
    SimulatedNetwork network(
        {}, 9, &events,
        [](ProcessId, ProcessId, const Frame&) { return true; });
    network.Send(kSender, kReceiver, {FrameHeader(), FloatBuffer({value})});
    while (events.RunNext()) {
    }
    return network.digest();
  };
  EXPECT_NE(digest(1), digest(2));
}

}  // namespace
}  // namespace nereus
