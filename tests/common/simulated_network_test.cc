// The simulated network: delays, repeats, breaks, and receivers that are not
// ready; the times of frames with rates of nodes and links (NetworkRatesTest);
// and the queue of events that carries it.

#include "common/network/simulated_network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/network/event_queue.h"
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
  EXPECT_EQ(recorder.network_.digest(), 2845914242344103446u);
}

TEST(SimulatedNetworkTest,
     DigestCoversEachHeaderFieldThePayloadAndTheReceiver) {
  const auto digest = [](const FrameHeader& header, float value = 1,
                         ProcessId to = kReceiver) {
    Recorder recorder(kOptions, 9);
    recorder.network_.Send(kSender, to, {header, FloatBuffer({value})});
    recorder.RunAll();
    return recorder.network_.digest();
  };
  FrameHeader plain;
  plain.kind = FrameKind::kContribution;
  const uint64_t known = digest(plain);
  EXPECT_EQ(digest(plain), known);
  EXPECT_NE(digest(plain, 2), known);
  EXPECT_NE(digest(plain, 1, kReceiver + 1), known);
  for (const auto change : std::vector<void (*)(FrameHeader&)>{
           [](FrameHeader& h) { h.round = 2; },
           [](FrameHeader& h) { h.layer = 1; },
           [](FrameHeader& h) { h.part = 1; },
           // The other role has the same rank.
           [](FrameHeader& h) { h.sender = PeerId::Shard(0); }}) {
    FrameHeader other = plain;
    change(other);
    EXPECT_NE(digest(other), known);
  }
}

constexpr double kRate = 1e9;  // Rate of each node, in bytes per second.
constexpr absl::Duration kLatency = absl::Microseconds(20);
// The network rounds the time of each frame to a quarter of a nanosecond.
constexpr double kRounding = 1e-6;

NetworkOptions Options() {
  NetworkOptions options;
  options.delay_min = options.delay_max = kLatency;
  return options;
}

// A network of nodes that all have the rate kRate in both directions. It
// records the arrivals.
class RatedNetwork {
 public:
  explicit RatedNetwork(const NetworkOptions& options = Options(),
                        uint64_t seed = 1)
      : network_(options, seed, &events_,
                 [this](ProcessId from, ProcessId to, const Frame& frame) {
                   if (!ready_) return false;
                   received_[{from, to}] +=
                       kFrameHeaderBytes + frame.payload.bytes();
                   last_[{from, to}] = Now();
                   order_[{from, to}].push_back(frame.header.round);
                   return true;
                 }) {
    for (NodeId node = 0; node < 64; ++node) {
      network_.SetRate(node, {kRate, kRate});
    }
  }

  double Now() const {
    return absl::ToDoubleSeconds(events_.now() - absl::UnixEpoch());
  }

  // Sends `count` frames, full ones unless `payload_bytes` is given. Returns
  // their bytes on the wire.
  double Send(ProcessId from, ProcessId to, int64_t count, uint32_t rank = 0,
              int64_t payload_bytes = kFramePayloadBytesMax,
              bool fused = false) {
    Frame frame;
    frame.priority = rank;
    frame.fused = fused;
    frame.payload = Buffer::SizeOnly(payload_bytes);
    frame.header.payload_bytes = static_cast<uint32_t>(payload_bytes);
    for (int64_t i = 0; i < count; ++i) {
      frame.header.round = i;
      network_.Send(from, to, frame);
    }
    return static_cast<double>(count * (payload_bytes + kFrameHeaderBytes));
  }

  void RunUntil(double seconds) {
    bool stopped = false;
    events_.At(absl::UnixEpoch() + absl::Seconds(seconds),
               [&] { stopped = true; });
    while (!stopped) events_.RunNext();
  }
  void RunAll() {
    while (events_.RunNext()) {
    }
  }

  EventQueue events_;
  bool ready_ = true;
  using Pair = std::pair<ProcessId, ProcessId>;
  std::map<Pair, int64_t> received_;  // Number of bytes received.
  std::map<Pair, double> last_;       // Time of the last arrival.
  std::map<Pair, std::vector<int64_t>> order_;
  SimulatedNetwork network_;
};

const double kFrameSeconds =
    static_cast<double>(kFramePayloadBytesMax + kFrameHeaderBytes) / kRate;
const double kLatencySeconds = absl::ToDoubleSeconds(kLatency);

// Two frames of lower priority values overtake all frames but the frame that is
// leaving, whenever they are sent.
TEST(NetworkRatesTest, LowerPriorityValuesOvertakeWaitingFrames) {
  for (const double at : {0.0, 10.5, 98.5}) {
    SCOPED_TRACE(at);
    RatedNetwork net;
    net.Send(0, 1, 100, /*rank=*/1);
    net.RunUntil(at * kFrameSeconds);
    net.Send(0, 1, 2, /*rank=*/0);
    net.Send(0, 1, 1, /*rank=*/2);
    net.RunAll();
    const std::vector<int64_t>& order = net.order_[{0, 1}];
    ASSERT_EQ(order.size(), 103u);
    const auto begun = static_cast<int64_t>(std::ceil(at + 0.1));
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 100; ++i) {
      if (i == begun) expected.insert(expected.end(), {0, 1});
      expected.push_back(i);
    }
    if (begun == 100) expected.insert(expected.end(), {0, 1});
    expected.push_back(0);
    EXPECT_EQ(order, expected);
    EXPECT_NEAR(net.Now(), 103 * kFrameSeconds + kLatencySeconds, kRounding);
  }
}

// Sends 1,000 frames of 100 bytes. Each message costs a millisecond at the
// sender and at the receiver. Messages overlap, so the receiver adds only one.
TEST(NetworkRatesTest, FusedFramesShareTheCostOfAMessage) {
  NetworkOptions options = Options();
  options.message_time = absl::Milliseconds(1);
  for (const bool fused : {false, true}) {
    RatedNetwork net(options);
    constexpr int kFrames = 1000;
    const double bytes = net.Send(0, 1, kFrames, 0, 100, fused);
    net.RunAll();
    // The first frame leaves at once, alone.
    const int messages = fused ? 2 : kFrames;
    EXPECT_NEAR(net.Now(),
                (messages + 1) * 0.001 + bytes / kRate + kLatencySeconds, 1e-4)
        << fused;
    ASSERT_EQ(static_cast<int>((net.order_[{0, 1}].size())), kFrames);
    for (int i = 0; i < kFrames; ++i) EXPECT_EQ((net.order_[{0, 1}][i]), i);
  }
}

// Full frames leave no room for others in their message.
TEST(NetworkRatesTest, MessageSizeIsLimited) {
  NetworkOptions options = Options();
  options.message_time = absl::Milliseconds(5);
  double seconds[2] = {};
  for (const bool fused : {false, true}) {
    RatedNetwork net(options);
    net.Send(0, 1, 20, 0, kFramePayloadBytesMax - 1, fused);
    net.RunAll();
    seconds[fused ? 1 : 0] = net.Now();
  }
  EXPECT_EQ(seconds[0], seconds[1]);
}

TEST(NetworkRatesTest, SlowerSideLimitsAFlow) {
  for (const NodeRate& rate :
       {NodeRate{kRate / 4, kRate}, NodeRate{kUnlimitedRate, kRate / 4}}) {
    RatedNetwork net;
    net.network_.SetRate(rate.egress < kRate ? 0 : 1, rate);
    const double bytes = net.Send(0, 1, 50);
    net.RunAll();
    EXPECT_NEAR(net.Now(), 4 * bytes / kRate + kLatencySeconds, kRounding);
  }
}

TEST(NetworkRatesTest, BothDirectionsAtOnceTakeNoLonger) {
  RatedNetwork net;
  const double bytes = net.Send(0, 1, 50);
  net.Send(1, 0, 50);
  net.RunAll();
  EXPECT_NEAR(net.Now(), bytes / kRate + kLatencySeconds, kRounding);
}

TEST(NetworkRatesTest, FlowsOfASenderShareItsRateFairly) {
  RatedNetwork net;
  const double small = net.Send(0, 1, 20);
  const double large = net.Send(0, 2, 60);
  net.RunAll();
  // The small flow has half of the rate until its end. The result depends by a
  // frame or two on which flow starts first.
  EXPECT_NEAR((net.last_[{0, 1}]), 2 * small / kRate + kLatencySeconds,
              2 * kFrameSeconds + kRounding);
  EXPECT_NEAR((net.last_[{0, 2}]), (small + large) / kRate + kLatencySeconds,
              kRounding);
}

TEST(NetworkRatesTest, SendersShareAReceiverFairly) {
  constexpr int kSenders = 16;
  RatedNetwork net;
  double bytes = 0;
  for (int sender = 1; sender <= kSenders; ++sender) {
    bytes = net.Send(sender, 0, 40);
  }
  const double half = kSenders * bytes / kRate / 2;
  net.RunUntil(half);
  for (const auto& [pair, received] : net.received_) {
    EXPECT_NEAR(static_cast<double>(received) / bytes, 0.5, 2.0 / 40)
        << pair.first;
  }
  net.RunAll();
  EXPECT_NEAR(net.Now(), 2 * half + kLatencySeconds, 2 * kFrameSeconds);
}

// Max-min fairness: a sender gives the rate that a congested receiver cannot
// take to its other flow. Without a window, half of its frames would go to the
// congested receiver.
TEST(NetworkRatesTest, CongestedReceiverDoesNotSlowOtherFlows) {
  constexpr int kOthers = 9;
  RatedNetwork net;
  for (int other = 1; other <= kOthers; ++other) net.Send(10 + other, 1, 500);
  net.Send(0, 1, 500);
  net.Send(0, 2, 500);
  const double seconds = 300 * kFrameSeconds;
  net.RunUntil(seconds);
  const double free = static_cast<double>(net.received_[{0, 2}]);
  const double congested = static_cast<double>(net.received_[{0, 1}]);
  EXPECT_NEAR(congested / (kRate * seconds), 0.1, 0.02);
  EXPECT_NEAR(free / (kRate * seconds), 0.9, 0.03);
}

TEST(NetworkRatesTest, WindowBoundsTheBytesUnderWay) {
  NetworkOptions options = Options();
  options.delay_min = options.delay_max = absl::Milliseconds(10);
  options.window_bytes = 4 * (kFramePayloadBytesMax + kFrameHeaderBytes);
  RatedNetwork net(options);
  net.Send(0, 1, 40);
  net.RunAll();
  // Ten windows run one after the other. The first frame of each window leaves
  // when the first frame of the previous window is accepted.
  EXPECT_NEAR(net.Now(), 10 * (0.010 + kFrameSeconds) + 3 * kFrameSeconds,
              kRounding);
}

TEST(NetworkRatesTest, FrameAboveTheWindowTravelsAlone) {
  NetworkOptions options = Options();
  options.window_bytes = 1;
  RatedNetwork net(options);
  net.Send(0, 1, 3);
  net.RunAll();
  EXPECT_NEAR(net.Now(), 3 * (kFrameSeconds + kLatencySeconds), kRounding);
}

TEST(NetworkRatesTest, UnacceptedFramesFillTheWindow) {
  NetworkOptions options = Options();
  options.window_bytes = 2 * (kFramePayloadBytesMax + kFrameHeaderBytes);
  RatedNetwork net(options);
  net.ready_ = false;
  net.Send(0, 1, 10);
  net.Send(0, 2, 10);
  net.RunAll();
  EXPECT_NEAR(net.Now(), 4 * kFrameSeconds + kLatencySeconds, kRounding);
  net.ready_ = true;
  net.network_.OfferAgain(1);
  net.network_.OfferAgain(2);
  net.RunAll();
  for (const ProcessId to : {1, 2}) {
    EXPECT_EQ((net.order_[{0, to}]),
              (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
}

TEST(NetworkRatesTest, FramesWithinANodeShareItsMemory) {
  RatedNetwork net;
  net.network_.SetMemoryRate(0, 4 * kRate);
  net.network_.Place(40, 0);
  net.network_.Place(41, 0);
  // Three pairs of one node take turns; other nodes' memory is free.
  const double bytes = net.Send(40, 41, 20);
  net.Send(0, 40, 20);
  net.Send(41, 0, 20);
  net.network_.Place(42, 7);
  net.Send(42, 7, 20);
  net.RunUntil(1e-9);
  EXPECT_EQ((net.order_[{42, 7}].size()), 20u);
  net.RunUntil(bytes / kRate / 4);
  for (const auto& [from, to] :
       {std::pair{40, 41}, std::pair{0, 40}, std::pair{41, 0}}) {
    EXPECT_NEAR(std::ssize(net.order_[{from, to}]), 20 / 3.0, 1);
  }
  net.RunAll();
  EXPECT_NEAR(net.Now(), 3 * bytes / kRate / 4, kRounding);
}

TEST(NetworkRatesTest, MemoryAndInterfaceOfANodeWorkAtTheSameTime) {
  NetworkOptions options = Options();
  options.message_time = absl::Microseconds(1);
  RatedNetwork net(options);
  net.network_.SetMemoryRate(0, kRate);
  net.network_.SetRateFactor(0, 0.5);
  net.network_.Place(40, 0);
  const double bytes = net.Send(0, 40, 20);
  net.Send(0, 1, 20);
  net.RunAll();
  // The memory has no message time and no factor.
  const auto last = net.last_[{0, 40}];
  EXPECT_NEAR(last, bytes / kRate, kRounding);
  EXPECT_GT((net.last_[{0, 1}]), 2 * last);
}

TEST(NetworkRatesTest, WindowBoundsTheBytesInMemory) {
  NetworkOptions options = Options();
  options.window_bytes = 4 * (kFramePayloadBytesMax + kFrameHeaderBytes);
  RatedNetwork net(options);
  net.network_.SetMemoryRate(0, kRate);
  net.network_.Place(40, 0);
  net.ready_ = false;
  net.Send(0, 40, 10);
  net.RunAll();
  EXPECT_NEAR(net.Now(), 4 * kFrameSeconds, kRounding);
  net.ready_ = true;
  net.network_.OfferAgain(40);
  net.RunAll();
  EXPECT_EQ((net.order_[{0, 40}]),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(NetworkRatesTest, UrgentFramesGoFirstThroughMemory) {
  RatedNetwork net;
  net.network_.SetMemoryRate(0, kRate);
  net.network_.Place(40, 0);
  net.Send(0, 40, 5, /*rank=*/9);
  net.Send(0, 40, 2, /*rank=*/1);
  net.RunAll();
  // The frame that has begun is not interrupted.
  EXPECT_EQ((net.order_[{0, 40}]), (std::vector<int64_t>{0, 0, 1, 1, 2, 3, 4}));
}

TEST(NetworkRatesTest, ProcessesOfANodeShareItsRate) {
  RatedNetwork net;
  net.network_.Place(40, 0);
  const double bytes = net.Send(40, 1, 20);
  net.Send(0, 2, 20);
  net.RunAll();
  EXPECT_NEAR(net.Now(), 2 * bytes / kRate + kLatencySeconds, kRounding);
}

TEST(NetworkRatesTest, SlowNodeIsSlowBothWaysUntilItRecovers) {
  for (const auto& [from, to] : {std::pair{0, 1}, std::pair{1, 0}}) {
    RatedNetwork net;
    net.network_.SetRateFactor(0, 0.1);
    const double bytes = net.Send(from, to, 10);
    net.RunAll();
    const double slow = 10 * bytes / kRate + kLatencySeconds;
    EXPECT_NEAR(net.Now(), slow, kRounding);
    net.network_.SetRateFactor(0, 1.0);
    net.Send(from, to, 10);
    net.RunAll();
    EXPECT_NEAR(net.Now() - slow, bytes / kRate + kLatencySeconds, kRounding);
  }
}

// A slow sender does not slow down other senders of the same receiver.
TEST(NetworkRatesTest, SlowSenderDoesNotSlowItsReceiver) {
  RatedNetwork net;
  net.network_.SetRateFactor(0, 0.01);
  net.Send(0, 2, 10);
  const double bytes = net.Send(1, 2, 100);
  net.RunAll();
  EXPECT_NEAR((net.last_[{1, 2}]), bytes / kRate + kLatencySeconds,
              3 * kFrameSeconds);
}

TEST(NetworkRatesTest, SlowLinkSlowsOnlyItsPair) {
  RatedNetwork net;
  net.network_.SetLink(1, 0, {kRate / 10, absl::Milliseconds(3)});
  const double bytes = net.Send(0, 1, 20);
  net.Send(0, 2, 20);
  net.RunAll();
  EXPECT_NEAR((net.last_[{0, 1}]), 10 * bytes / kRate + kLatencySeconds + 0.003,
              kRounding);
  EXPECT_LT((net.last_[{0, 2}]),
            2 * bytes / kRate + kLatencySeconds + kRounding);
}

TEST(NetworkRatesTest, BrokenConnectionFreesItsTurnsAndItsWindow) {
  RatedNetwork net;
  net.Send(0, 1, 50);
  net.Send(2, 1, 50);
  net.RunUntil(10 * kFrameSeconds);
  net.network_.Break(0, 1);
  const size_t before = net.order_[{0, 1}].size();
  net.RunUntil(20 * kFrameSeconds);
  net.network_.Connect(0, 1);
  net.Send(0, 1, 7);
  net.RunAll();
  EXPECT_EQ((net.order_[{0, 1}].size()), before + 7);
  EXPECT_EQ((net.order_[{2, 1}].size()), 50u);
}

// The frames of each pair keep their order with all rates, jitter and faults.
// Two runs with one seed are equal.
TEST(NetworkRatesTest, OrderIsKeptAndRunsReplay) {
  NetworkOptions options;
  options.delay_max = absl::Milliseconds(2);
  const auto run = [&](uint64_t seed) {
    RatedNetwork net(options, seed);
    net.network_.SetRateFactor(3, 0.3);
    net.network_.SetLink(0, 1, {kRate / 3, absl::Microseconds(70)});
    for (int from = 0; from < 5; ++from) {
      for (int to = 0; to < 5; ++to) {
        if (from != to) net.Send(from, to, 30);
      }
    }
    net.RunAll();
    EXPECT_EQ(net.order_.size(), 20u);
    for (const auto& [pair, numbers] : net.order_) {
      EXPECT_EQ(numbers.size(), 30u);
      for (size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_EQ(numbers[i], static_cast<int64_t>(i));
      }
    }
    return net.network_.digest();
  };
  for (const uint64_t seed : TestSeeds(5)) {
    SCOPED_TRACE(ReplayHint(seed));
    EXPECT_EQ(run(seed), run(seed));
    EXPECT_NE(run(seed), run(seed + 1));
  }
}

TEST(EventQueueTest, EventsRunInOrderOfTimeAndSetTheClock) {
  EventQueue queue;
  std::vector<int> order;
  EXPECT_FALSE(queue.RunNext());
  EXPECT_EQ(queue.now(), absl::UnixEpoch());
  const absl::Time start = queue.now();
  queue.After(absl::Seconds(3), [&] { order.push_back(3); });
  queue.After(absl::Seconds(1), [&] { order.push_back(1); });
  queue.At(start + absl::Seconds(2), [&] { order.push_back(2); });
  EXPECT_TRUE(queue.RunNext());
  EXPECT_EQ(queue.now(), start + absl::Seconds(1));
  EXPECT_EQ(order, std::vector<int>{1});
  while (queue.RunNext()) {
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(queue.now(), start + absl::Seconds(3));
  EXPECT_EQ(queue.events_run(), 3);
}

TEST(EventQueueTest, PastEventsRunNowAndTheClockNeverGoesBack) {
  EventQueue queue;
  std::vector<int> order;
  queue.After(absl::Seconds(5), [&] {
    queue.After(absl::ZeroDuration(), [&] { order.push_back(1); });
    queue.At(absl::UnixEpoch(), [&] { order.push_back(2); });
    queue.At(absl::InfinitePast(), [&] { order.push_back(3); });
  });
  absl::Time last = queue.now();
  while (queue.RunNext()) {
    EXPECT_GE(queue.now(), last);
    last = queue.now();
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(queue.now(), absl::UnixEpoch() + absl::Seconds(5));
}

TEST(EventQueueTest, EventIsDestroyedAfterItHasRun) {
  EventQueue queue;
  auto held = std::make_shared<int>(0);
  queue.After(absl::ZeroDuration(), [held] { ++*held; });
  EXPECT_EQ(held.use_count(), 2);
  queue.RunNext();
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
}

// Compares the queue with a stable sort.
TEST(EventQueueTest, OrderIsThatOfAStableSort) {
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    EventQueue queue;
    std::vector<std::pair<int64_t, int>> expected;
    std::vector<int> order;
    for (int i = 0; i < 300; ++i) {
      const auto delay = static_cast<int64_t>(random.Below(20));
      expected.emplace_back(delay, i);
      queue.After(absl::Nanoseconds(delay),
                  [&order, i] { order.push_back(i); });
    }
    absl::c_stable_sort(expected, [](const auto& a, const auto& b) {
      return a.first < b.first;
    });
    while (queue.RunNext()) {
    }
    ASSERT_EQ(order.size(), expected.size());
    for (size_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(order[i], expected[i].second);
    }
  }
}

TEST(EventQueueDeathTest, NegativeDelayEndsTheProcess) {
  EventQueue queue;
  EXPECT_DEATH(queue.After(-absl::Nanoseconds(1), [] {}), "-1ns");
}

}  // namespace
}  // namespace nereus
