// The contract of transport.h as tests, for each transport between processes.

#include "tests/common/transport_contract.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/testing/held_port.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_P(TransportContractTest, FramesOfEachSizeArriveWhole) {
  ASSERT_TRUE(Join());
  EXPECT_THAT(worker->connected, ElementsAre(kShard0));
  EXPECT_THAT(shard->connected, ElementsAre(kWorker0));

  const int64_t counts[] = {
      0, 1, 15, 16, 17, 4096, kFrameElementsMax - 1, kFrameElementsMax};
  uint32_t layer = 0;
  for (const int64_t count : counts) worker->SendTo(kShard0, ++layer, count);
  ASSERT_TRUE(Await([&] { return shard->heard.size() == layer; }));
  for (uint32_t i = 0; i < layer; ++i) {
    SCOPED_TRACE(counts[i]);
    EXPECT_EQ(shard->heard[i].from, kWorker0);
    EXPECT_EQ(shard->heard[i].header.layer, i + 1);
    EXPECT_EQ(shard->heard[i].header.payload_bytes, counts[i] * 4);
    EXPECT_TRUE(shard->heard[i].intact);
  }
}

TEST_P(TransportContractTest, EachHeaderFieldArrives) {
  ASSERT_TRUE(Join());
  Frame frame = TestFrame(kShard0, 4, TestPayload(4, 2));
  frame.header.kind = FrameKind::kResult;
  frame.header.chunk = 9;
  frame.header.round = -1;
  frame.header.offset = 65536;
  shard->transport().Send(kWorker0, frame);
  ASSERT_TRUE(Await([&] { return !worker->heard.empty(); }));
  FrameHeader expected = frame.header;
  expected.payload_crc = worker->heard[0].header.payload_crc;
  EXPECT_EQ(worker->heard[0].header, expected);
  EXPECT_EQ(expected.payload_crc != 0, GetParam().has_checksums);
}

TEST_P(TransportContractTest, ThousandFramesBothWaysAtOnceKeepTheirOrder) {
  ASSERT_TRUE(Join());
  constexpr uint32_t kFrames = 1000;
  for (uint32_t i = 0; i < kFrames; ++i) {
    const int64_t count = i % 50 == 0 ? kFrameElementsMax : (i * 37) % 3000;
    worker->SendTo(kShard0, i, count);
    shard->SendTo(kWorker0, i, count);
  }
  ASSERT_TRUE(Await([&] {
    return worker->heard.size() == kFrames && shard->heard.size() == kFrames;
  }));
  for (const auto* node : {worker.get(), shard.get()}) {
    for (uint32_t i = 0; i < kFrames; ++i) {
      ASSERT_EQ(node->heard[i].header.layer, i);
      ASSERT_TRUE(node->heard[i].intact) << i;
    }
  }
}

TEST_P(TransportContractTest, AnyThreadMaySend) {
  ASSERT_TRUE(Join());
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kFrames = 100;
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      for (uint32_t i = 0; i < kFrames; ++i) {
        worker->SendTo(kShard0, thread * kFrames + i, 100);
      }
    });
  }
  EXPECT_TRUE(Await([&] { return shard->heard.size() == kThreads * kFrames; }));
  for (std::thread& thread : threads) thread.join();
  // The frames of one thread keep their order.
  uint32_t next[kThreads] = {};
  for (const TestNode::Heard& heard : shard->heard) {
    const uint32_t thread = heard.header.layer / kFrames;
    EXPECT_EQ(heard.header.layer % kFrames, next[thread]++);
    EXPECT_TRUE(heard.intact);
  }
}

TEST_P(TransportContractTest, PayloadIsReleasedAfterItWasSent) {
  std::vector<float> values(kFrameElementsMax, 1.0f);
  std::atomic<bool> released{false};
  Frame frame = TestFrame(kWorker0, 1,
                          Buffer::Borrow(values.data(), kFramePayloadBytesMax,
                                         [&released] { released = true; }));
  worker->transport().Send(kShard0, frame);
  frame = Frame();
  EXPECT_FALSE(released) << "there is no connection yet";
  worker->Dial(*shard);
  ASSERT_TRUE(Await([&] { return shard->heard.size() == 1; }));
  EXPECT_TRUE(PollUntil({worker.get()}, [&] { return released.load(); }));
}

TEST_P(TransportContractTest, PayloadLandsAtTheHandlersPlace) {
  ASSERT_TRUE(Join());
  const Buffer place = Buffer::AllocateZeroed(1000 * 4);
  std::vector<uint32_t> announced;
  shard->landing = [&](PeerId, const FrameHeader& header) {
    announced.push_back(header.layer);
    if (header.layer == 1) return Landing::At(place.Slice(400, 2000));
    return header.layer == 2 ? Landing::Discard() : Landing::Scratch();
  };
  for (uint32_t layer = 1; layer <= 3; ++layer) {
    worker->SendTo(kShard0, layer, 500);
  }
  ASSERT_TRUE(Await([&] { return shard->heard.size() == 2; }));
  EXPECT_THAT(announced, ElementsAre(1, 2, 3));
  EXPECT_EQ(shard->heard[0].header.layer, 1u);
  EXPECT_EQ(shard->heard[1].header.layer, 3u) << "2 was discarded";
  EXPECT_TRUE(shard->heard[1].intact);
  EXPECT_TRUE(IsTestPayload(1, place.Slice(400, 2000)));
  EXPECT_EQ(place.floats()[99], 0.0f);
  EXPECT_EQ(place.floats()[600], 0.0f);
}

TEST_P(TransportContractTest, RefusedHeaderEndsOnlyItsConnection) {
  auto good = TestNode::Start(GetParam(), kWorker0);
  auto bad = TestNode::Start(GetParam(), kWorker1);
  ASSERT_TRUE(JoinNodes(*good, *shard));
  ASSERT_TRUE(JoinNodes(*bad, *shard));
  shard->landing = [](PeerId,
                      const FrameHeader& header) -> absl::StatusOr<Landing> {
    if (header.layer == 13) {
      return InvalidArgumentError("layer 13, there are 12");
    }
    return Landing::Scratch();
  };
  bad->SendTo(kShard0, 1, 10);
  bad->SendTo(kShard0, 13, 10);
  bad->SendTo(kShard0, 14, 10);
  ASSERT_TRUE(PollUntil({good.get(), bad.get(), shard.get()}, [&] {
    return shard->ended.size() == 1 && bad->ended.size() == 1;
  }));
  EXPECT_EQ(shard->ended[0].peer, kWorker1);
  EXPECT_EQ(shard->ended[0].reason,
            InvalidArgumentError("layer 13, there are 12"));
  // The peer that sent the frame learns the reason.
  EXPECT_EQ(bad->ended[0].peer, kShard0);
  EXPECT_EQ(bad->ended[0].reason,
            FailedPreconditionError("layer 13, there are 12"));
  ASSERT_EQ(shard->heard.size(), 1u) << "nothing behind the bad frame counts";

  good->SendTo(kShard0, 3, 10);
  shard->SendTo(kWorker0, 4, 10);
  ASSERT_TRUE(PollUntil({good.get(), shard.get()}, [&] {
    return shard->heard.size() == 2 && good->heard.size() == 1;
  }));
  EXPECT_TRUE(good->ended.empty());
  shard->transport().MeasureLinks();
  const ConnectionCounts counts = shard->transport().connections();
  EXPECT_EQ(counts.refused_peers, 1);
  EXPECT_EQ(counts.refused_strangers, 0);
  EXPECT_EQ(counts.sockets + counts.memories, 1);
  EXPECT_EQ(counts.sockets, GetParam().has_checksums ? 1 : 0);
}

TEST_P(TransportContractTest, WrongChecksumEndsTheConnection) {
  if (!GetParam().has_checksums) {
    GTEST_SKIP() << "this transport has no checksums";
  }
  ASSERT_TRUE(Join());
  Frame frame = TestFrame(kWorker0, 1, TestPayload(1, 100));
  frame.header.payload_crc = 0x1234;
  worker->transport().Send(kShard0, frame);
  ASSERT_TRUE(Await(
      [&] { return shard->ended.size() == 1 && worker->ended.size() == 1; }));
  EXPECT_TRUE(shard->heard.empty());
  EXPECT_THAT(std::string(shard->ended[0].reason.message()),
              HasSubstr("the header says 1234"));
  EXPECT_EQ(worker->ended[0].reason.code(),
            absl::StatusCode::kFailedPrecondition);
}

// Other differences: HelloMismatchTest.
TEST_P(TransportContractTest, WrongHelloIsRefusedWithTheReason) {
  Hello hello = TestHello(kWorker0);
  hello.job = 78;
  worker->transport().SetRoster(hello, TestRoster());
  worker->Dial(*shard);
  ASSERT_TRUE(Await([&] { return !worker->ended.empty(); }));
  const absl::Status reason = worker->ended[0].reason;
  EXPECT_EQ(reason.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(reason.message()),
              AllOf(HasSubstr("job differs: worker 0 (build test) has 78, "
                              "shard 0 (build test) has 77"),
                    HasSubstr(shard->address())));
  EXPECT_TRUE(shard->connected.empty());
  EXPECT_TRUE(worker->connected.empty());
}

TEST_P(TransportContractTest, AddressWithoutListenerIsGivenUpAtTheDeadline) {
  const HeldPort nowhere;
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(300);
  std::atomic<bool> released{false};
  float value = 1.0f;
  worker->transport().Send(
      kShard0,
      TestFrame(kWorker0, 1, Buffer::Borrow(&value, sizeof(value), [&released] {
                  released = true;
                })));
  worker->transport().Connect(kShard0, nowhere.address(), {deadline});
  ASSERT_TRUE(
      PollUntil({worker.get()}, [&] { return !worker->ended.empty(); }));
  EXPECT_GE(SteadyNow(), deadline);
  EXPECT_EQ(worker->ended[0].peer, kShard0);
  EXPECT_THAT(worker->ended[0].reason, IsUnavailable(nowhere.address()));
  EXPECT_TRUE(PollUntil({worker.get()}, [&] { return released.load(); }))
      << "frames for a peer that was given up are dropped";
}

TEST_P(TransportContractTest, PeerThatStartsLateIsReached) {
  const HeldPort port;
  worker->transport().Connect(kShard0, port.address(),
                              {SteadyNow() + kPatience});
  worker->transport().Poll(absl::Milliseconds(100), *worker);
  auto transport = GetParam().start(port.port());
  ASSERT_TRUE(transport.ok()) << transport.status();
  TestNode shard(*std::move(transport), kShard0);
  shard.transport().SetRoster(TestHello(kShard0), TestRoster());
  ASSERT_TRUE(PollUntil({worker.get(), &shard},
                        [&] { return !worker->connected.empty(); }));
  EXPECT_TRUE(worker->ended.empty());
}

TEST_P(TransportContractTest, PortInUseIsAnErrorWithThePort) {
  auto first = TestNode::Start(GetParam(), kWorker0);
  const auto second = GetParam().start(first->transport().port());
  EXPECT_THAT(second.status(), IsUnavailable(first->address()));
}

TEST_P(TransportContractTest, PeerMayComeBack) {
  for (size_t lives = 1; lives <= 3; ++lives) {
    worker = TestNode::Start(GetParam(), kWorker0);
    ASSERT_TRUE(Join());
    worker->SendTo(kShard0, 1, 10);
    ASSERT_TRUE(Await([&] { return shard->heard.size() == lives; }));
    worker->Stop();
    ASSERT_TRUE(Await([&] { return shard->ended.size() == lives; }));
  }
}

TEST_P(TransportContractTest, EachSideMayShutDownAndThePeerLearnsIt) {
  for (const bool dialler_ends : {false, true}) {
    SCOPED_TRACE(dialler_ends ? "the dialler" : "the dialled");
    NodePair pair(GetParam());
    ASSERT_TRUE(pair.Join());
    TestNode& leaves = dialler_ends ? *pair.worker : *pair.shard;
    TestNode& stays = dialler_ends ? *pair.shard : *pair.worker;
    for (uint32_t i = 0; i < 50; ++i) leaves.SendTo(stays.self(), i, 30000);
    std::thread shutdown([&leaves] { leaves.transport().Shutdown(kPatience); });
    EXPECT_TRUE(PollUntil({&stays}, [&] { return !stays.ended.empty(); }));
    shutdown.join();
    EXPECT_TRUE(stays.ended[0].reason.ok()) << stays.ended[0].reason;
    ASSERT_EQ(stays.heard.size(), 50u) << "Shutdown sends what is queued";
    for (uint32_t i = 0; i < 50; ++i) {
      EXPECT_EQ(stays.heard[i].header.layer, i);
      EXPECT_TRUE(stays.heard[i].intact);
    }
  }
}

TEST_P(TransportContractTest, ReceiverThatDoesNotPollHoldsTheSenderBack) {
  ASSERT_TRUE(Join());
  constexpr uint32_t kFrames = 512;  // 128 MiB.
  Flood(*worker, kShard0, kFrames);
  const auto sent = [&] { return worker->transport().traffic()[0].bytes_sent; };
  ASSERT_TRUE(PollUntilStill({worker.get()}, *worker));
  // No more bytes have left than the TCP buffers of both sides, or the shared
  // memory, can hold.
  EXPECT_LT(sent(), int64_t{32} << 20);
  ASSERT_TRUE(Await([&] { return shard->heard.size() == kFrames; }));
  EXPECT_EQ(sent(), kFrames * (kFramePayloadBytesMax + kFrameHeaderBytes));
}

// Frames that wait behind a slow peer leave by priority, lowest value first.
TEST_P(TransportContractTest, UrgentLayersOvertakeFramesThatWait) {
  ASSERT_TRUE(Join());
  constexpr uint32_t kFrames = 512;
  Flood(*worker, kShard0, kFrames);
  for (const uint32_t layer : {9, 3, 0, 3}) worker->SendTo(kShard0, layer, 10);
  ASSERT_TRUE(Await([&] { return shard->heard.size() == kFrames + 4; }));
  std::vector<uint32_t> order;
  for (const auto& heard : shard->heard) {
    const uint32_t layer = heard.header.layer;
    if (layer != 7 || order.empty() || order.back() != 7) {
      order.push_back(layer);
    }
  }
  // Some bytes of the large layer may have been in the sockets already.
  if (order.front() == 7) order.erase(order.begin());
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 3, 3, 7, 9}));
}

TEST_P(TransportContractTest, TrafficCountsHeadersAndPayloads) {
  ASSERT_TRUE(Join());
  worker->SendTo(kShard0, 1, 100);
  worker->SendTo(kShard0, 2, 0);
  shard->SendTo(kWorker0, 3, 5);
  ASSERT_TRUE(Await(
      [&] { return shard->heard.size() == 2 && worker->heard.size() == 1; }));
  const auto at_worker = worker->transport().traffic();
  const auto at_shard = shard->transport().traffic();
  ASSERT_EQ(at_worker.size(), 1u);
  ASSERT_EQ(at_shard.size(), 1u);
  EXPECT_EQ(at_worker[0].peer, kShard0);
  EXPECT_EQ(at_worker[0].bytes_sent, 2 * kFrameHeaderBytes + 400);
  EXPECT_EQ(at_worker[0].bytes_received, kFrameHeaderBytes + 20);
  EXPECT_EQ(at_shard[0].peer, kWorker0);
  EXPECT_EQ(at_shard[0].bytes_sent, kFrameHeaderBytes + 20);
  EXPECT_EQ(at_shard[0].bytes_received, 2 * kFrameHeaderBytes + 400);
}

TEST_P(TransportContractTest, WakeEndsPoll) {
  worker->transport().Wake();
  worker->transport().Poll(absl::InfiniteDuration(), *worker);
  std::thread waker([this] { worker->transport().Wake(); });
  worker->transport().Poll(absl::InfiniteDuration(), *worker);
  waker.join();
}

TEST_P(TransportContractTest, ClosingWhileSendingReleasesEveryPayload) {
  for (int round = 0; round < 5; ++round) {
    NodePair pair(GetParam());
    ASSERT_TRUE(pair.Join());
    std::vector<float> values(kFrameElementsMax, 1.0f);
    std::atomic<int> released{0};
    constexpr int kFrames = 200;
    for (int i = 0; i < kFrames; ++i) {
      pair.worker->transport().Send(
          kShard0,
          TestFrame(kWorker0, 1,
                    Buffer::Borrow(values.data(), kFramePayloadBytesMax,
                                   [&released] { ++released; })));
    }
    pair.worker
        ->Stop();  // Stops like Shutdown(0): most frames cannot have left.
    EXPECT_TRUE(PollUntil({pair.shard.get()},
                          [&] { return !pair.shard->ended.empty(); }));
    EXPECT_TRUE(
        PollUntil({pair.shard.get()}, [&] { return released == kFrames; }));
  }
}

TEST_P(TransportContractTest, PayloadReleaseMaySendAnotherFrame) {
  ASSERT_TRUE(Join());
  float value = 1.0f;
  worker->transport().Send(
      kShard0, TestFrame(kWorker0, 1, Buffer::Borrow(&value, 4, [this] {
                           worker->SendTo(kShard0, 2, 10);
                         })));
  ASSERT_TRUE(Await([&] { return shard->heard.size() == 2; }));
  EXPECT_EQ(shard->heard[1].header.layer, 2u);
}

// Connected nodes that end a connection after a silence of kSilence.
struct WatchedPair : NodePair {
  static constexpr absl::Duration kSilence = absl::Seconds(1);

  explicit WatchedPair(const TransportKind& kind) : NodePair(kind) {
    for (TestNode* const node : {worker.get(), shard.get()}) {
      node->transport().LimitSilence(kSilence);
    }
    EXPECT_TRUE(Join());
  }

  // Polls both for `time`.
  void PollFor(absl::Duration time) {
    const absl::Time until = SteadyNow() + time;
    EXPECT_TRUE(Await([&] { return SteadyNow() > until; }));
  }
  bool is_whole() const {
    return worker->ended.empty() && shard->ended.empty();
  }
};

TEST_P(TransportContractTest, ConnectionToAPeerThatStandsStillEnds) {
  WatchedPair pair(GetParam());
  const absl::Time begin = SteadyNow();
  ASSERT_TRUE(PollUntil({pair.worker.get()},
                        [&] { return !pair.worker->ended.empty(); }));
  EXPECT_GE(SteadyNow() - begin, pair.kSilence / 2);
  EXPECT_EQ(pair.worker->ended[0].peer, kShard0);
  EXPECT_THAT(pair.worker->ended[0].reason.message(),
              HasSubstr("nothing has arrived for 1"));
  // The peer hears why, once it looks.
  ASSERT_TRUE(pair.Await([&] { return !pair.shard->ended.empty(); }));
  EXPECT_THAT(pair.shard->ended[0].reason.message(),
              HasSubstr("nothing has arrived for 1"));
  // The two may connect again.
  ASSERT_TRUE(pair.Join());
}

TEST_P(TransportContractTest, ConnectionWithoutTrafficIsNotSilent) {
  WatchedPair pair(GetParam());
  pair.PollFor(3 * pair.kSilence);
  EXPECT_TRUE(pair.is_whole());
  EXPECT_EQ(pair.worker->heard.size() + pair.shard->heard.size(), 0u);
  // The frames that show this are not traffic.
  EXPECT_EQ(pair.worker->transport().traffic()[0].bytes_sent, 0);
  EXPECT_EQ(pair.worker->transport().traffic()[0].bytes_received, 0);
}

TEST_P(TransportContractTest, TimeInWhichAProcessDoesNotPollIsNotSilence) {
  WatchedPair pair(GetParam());
  pair.PollFor(pair.kSilence / 2);
  absl::SleepFor(3 * pair.kSilence);
  pair.PollFor(pair.kSilence / 2);
  EXPECT_TRUE(pair.is_whole());
}

TEST_P(TransportContractTest, PeerThatOnlyShowsThatItLivesIsNotSilent) {
  WatchedPair pair(GetParam());
  const absl::Time until = SteadyNow() + 3 * pair.kSilence;
  ASSERT_TRUE(PollUntil({pair.shard.get()}, [&] {
    pair.worker->transport().SendAlive();
    return SteadyNow() > until;
  }));
  pair.PollFor(pair.kSilence / 2);
  EXPECT_TRUE(pair.is_whole());
}

TEST_P(TransportContractTest, FrameThatMustWaitIsNotSilence) {
  WatchedPair pair(GetParam());
  Gate gate(*pair.shard, 0);
  pair.worker->SendTo(kShard0, /*layer=*/1, /*count=*/100);
  pair.PollFor(3 * pair.kSilence);
  EXPECT_TRUE(pair.is_whole());
  gate.open = true;
  ASSERT_TRUE(pair.Await([&] { return pair.shard->heard.size() == 1; }));
  EXPECT_TRUE(pair.shard->heard[0].intact);
}

TEST_P(TransportContractTest, AliveFrameWithAPayloadGoesToTheHandler) {
  WatchedPair pair(GetParam());
  std::vector<FrameKind> asked;
  pair.shard->landing =
      [&](PeerId, const FrameHeader& header) -> absl::StatusOr<Landing> {
    asked.push_back(header.kind);
    return InvalidArgumentError("unexpected");
  };
  Frame frame = TestFrame(kWorker0, 1, TestPayload(1, 10));
  frame.header.kind = FrameKind::kAlive;
  pair.worker->transport().Send(kShard0, frame);
  ASSERT_TRUE(pair.Await([&] { return !pair.shard->ended.empty(); }));
  EXPECT_THAT(asked, ElementsAre(FrameKind::kAlive));
}

}  // namespace
}  // namespace nereus
