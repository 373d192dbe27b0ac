// The contract of transport.h as tests: the change from one epoch to the next.
// The owner ends connections, and frames come too early.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "absl/algorithm/container.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/common/transport_contract.h"
#include "tests/testing/held_port.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::Gt;
using testing::IsEmpty;

Hello HelloOfEpoch(PeerId self, uint64_t epoch) {
  Hello hello = TestHello(self);
  hello.epoch = epoch;
  return hello;
}

std::vector<uint32_t> LayersHeard(const TestNode& node) {
  std::vector<uint32_t> layers;
  for (const TestNode::Heard& heard : node.heard) {
    layers.push_back(heard.header.layer);
  }
  return layers;
}

// Polls for some time, in which an event must not happen. On a busy machine,
// some time may be a single turn, so turns are counted too.
void PollForAWhile(std::initializer_list<TestNode*> nodes) {
  constexpr int kTurnsMin = 50;
  const absl::Time until = SteadyNow() + absl::Milliseconds(200);
  int turns = 0;
  ASSERT_TRUE(PollUntil(
      nodes, [&] { return ++turns > kTurnsMin && SteadyNow() > until; }));
}

TEST_P(TransportContractTest, PeerInOtherEpochIsDialledAgain) {
  for (const uint64_t worker_epoch : {4, 6}) {
    NodePair pair(GetParam());
    pair.worker->transport().SetRoster(HelloOfEpoch(kWorker0, worker_epoch),
                                       TestRoster());
    pair.worker->Dial(*pair.shard);
    PollForAWhile({pair.worker.get(), pair.shard.get()});
    EXPECT_THAT(pair.worker->connected, IsEmpty());
    EXPECT_THAT(pair.worker->ended, IsEmpty());
    EXPECT_THAT(pair.shard->connected, IsEmpty());
    EXPECT_THAT(pair.shard->ended, IsEmpty());

    // The side with the older epoch follows.
    TestNode& late = worker_epoch < 5 ? *pair.worker : *pair.shard;
    late.transport().SetRoster(
        HelloOfEpoch(late.self(), std::max<uint64_t>(worker_epoch, 5)),
        TestRoster());
    ASSERT_TRUE(pair.Await([&] {
      return !pair.worker->connected.empty() && !pair.shard->connected.empty();
    }));
    EXPECT_THAT(pair.worker->ended, IsEmpty());
  }
}

TEST_P(TransportContractTest, ConnectionOutlivesTheEpoch) {
  ASSERT_TRUE(Join());
  Roster without_worker1 = TestRoster();
  without_worker1.erase(kWorker1);
  shard->transport().SetRoster(HelloOfEpoch(kShard0, 6), without_worker1);
  worker->SendTo(kShard0, 1, 10);
  worker->transport().SetRoster(HelloOfEpoch(kWorker0, 6), without_worker1);
  worker->Dial(*shard);  // Dial has no effect, because there is a connection.
  worker->SendTo(kShard0, 2, 10);
  shard->SendTo(kWorker0, 3, 10);
  ASSERT_TRUE(Await(
      [&] { return shard->heard.size() == 2 && worker->heard.size() == 1; }));
  EXPECT_THAT(worker->connected, ElementsAre(kShard0));
  EXPECT_THAT(worker->ended, IsEmpty());
  EXPECT_THAT(shard->ended, IsEmpty());

  // A worker that is no member of the new epoch is refused.
  auto former = TestNode::Start(GetParam(), kWorker1);
  former->transport().SetRoster(HelloOfEpoch(kWorker1, 6), TestRoster());
  former->Dial(*shard);
  ASSERT_TRUE(PollUntil({former.get(), shard.get()},
                        [&] { return !former->ended.empty(); }));
  EXPECT_EQ(former->ended[0].reason.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_P(TransportContractTest, DisconnectIsReportedOnlyToThePeer) {
  for (const bool dialler_ends : {false, true}) {
    SCOPED_TRACE(dialler_ends ? "the dialler" : "the dialled");
    NodePair pair(GetParam());
    ASSERT_TRUE(pair.Join());
    TestNode& ends = dialler_ends ? *pair.worker : *pair.shard;
    TestNode& other = dialler_ends ? *pair.shard : *pair.worker;
    // The frames exceed the buffers of a connection, so some of them are
    // queued.
    constexpr int kFrames = 200;
    std::vector<float> values(kFrameElementsMax, 1.0f);
    std::atomic<int> released{0};
    for (int i = 0; i < kFrames; ++i) {
      ends.transport().Send(
          other.self(),
          TestFrame(ends.self(), 1,
                    Buffer::Borrow(values.data(), kFramePayloadBytesMax,
                                   [&released] { ++released; })));
    }
    ends.transport().Disconnect(other.self());
    ASSERT_TRUE(PollUntil({&ends, &other}, [&] {
      return released == kFrames && !other.ended.empty();
    }));
    EXPECT_EQ(other.ended[0].peer, ends.self());
    EXPECT_FALSE(other.ended[0].reason.ok()) << "that was no goodbye";
    EXPECT_LT(other.heard.size(), size_t{kFrames});
    PollForAWhile({&ends, &other});
    EXPECT_THAT(ends.ended, IsEmpty());
    EXPECT_EQ(other.ended.size(), 1u);
  }
}

TEST_P(TransportContractTest, NewConnectionAfterDisconnectHasOnlyNewFrames) {
  enum Side { kDialler, kDialled, kBoth };
  for (const Side side : {kDialler, kDialled, kBoth}) {
    SCOPED_TRACE(side);
    NodePair pair(GetParam());
    for (uint32_t life = 1; life <= 3; ++life) {
      ASSERT_TRUE(pair.Join()) << "life " << life;
      pair.worker->heard.clear();
      pair.shard->heard.clear();
      pair.worker->SendTo(kShard0, life, 1000);
      pair.shard->SendTo(kWorker0, life, 1000);
      // Later frames may arrive in this round of the loop, or not.
      for (int i = 0; i < 30; ++i) {
        pair.worker->SendTo(kShard0, life, 30000);
        pair.shard->SendTo(kWorker0, life, 30000);
      }
      ASSERT_TRUE(pair.Await([&] {
        return !pair.worker->heard.empty() && !pair.shard->heard.empty();
      }));
      for (const TestNode* node : {pair.worker.get(), pair.shard.get()}) {
        for (const TestNode::Heard& heard : node->heard) {
          EXPECT_EQ(heard.header.layer, life);
          EXPECT_TRUE(heard.intact);
        }
      }
      if (side != kDialled) pair.worker->transport().Disconnect(kShard0);
      if (side != kDialler) pair.shard->transport().Disconnect(kWorker0);
      if (side == kBoth) continue;
      TestNode& other = side == kDialler ? *pair.shard : *pair.worker;
      ASSERT_TRUE(pair.Await([&] { return other.ended.size() == life; }));
    }
    EXPECT_EQ(pair.worker->connected.size(), 3u);
    EXPECT_EQ(pair.shard->connected.size(), 3u);
    EXPECT_EQ(pair.worker->ended.size(), side == kDialled ? 3u : 0u);
    EXPECT_EQ(pair.shard->ended.size(), side == kDialler ? 3u : 0u);
  }
}

TEST_P(TransportContractTest, DisconnectByTheHandlerStopsItsFrames) {
  ASSERT_TRUE(Join());
  shard->then = [&](const FrameHeader& header) {
    if (header.layer == 2) shard->transport().Disconnect(kWorker0);
  };
  for (uint32_t layer = 1; layer <= 4; ++layer) {
    worker->SendTo(kShard0, layer, 10);
  }
  ASSERT_TRUE(Await([&] { return !worker->ended.empty(); }));
  EXPECT_THAT(LayersHeard(*shard), ElementsAre(1, 2));
  EXPECT_THAT(shard->ended, IsEmpty());
}

TEST_P(TransportContractTest, DisconnectEndsAnAttempt) {
  const HeldPort nowhere;
  std::atomic<int> released{0};
  float value = 1.0f;
  const auto send = [&] {
    worker->transport().Send(
        kShard0, TestFrame(kWorker0, 1,
                           Buffer::Borrow(&value, sizeof(value),
                                          [&released] { ++released; })));
  };
  worker->transport().Disconnect(kShard0);  // No link to it exists yet.

  // Disconnect ends an attempt under way.
  send();
  worker->transport().Connect(kShard0, nowhere.address(),
                              {SteadyNow() + absl::Milliseconds(100)});
  worker->transport().Disconnect(kShard0);
  EXPECT_TRUE(PollUntil({worker.get()}, [&] { return released == 1; }));
  PollForAWhile({worker.get()});  // Polls beyond the deadline of the attempt.
  EXPECT_THAT(worker->ended, IsEmpty());
}

TEST_P(TransportContractTest, EarlyFrameWaitsWithAllLaterFrames) {
  auto early = TestNode::Start(GetParam(), kWorker0);
  auto other = TestNode::Start(GetParam(), kWorker1);
  ASSERT_TRUE(JoinNodes(*early, *shard));
  ASSERT_TRUE(JoinNodes(*other, *shard));
  bool open = false;
  std::vector<uint32_t> announced;
  shard->landing = [&](PeerId from, const FrameHeader& header) {
    if (from == kWorker0) announced.push_back(header.layer);
    const bool waits = from == kWorker0 && header.layer == 2 && !open;
    return waits ? Landing::Wait() : Landing::Scratch();
  };
  for (uint32_t layer = 1; layer <= 3; ++layer) {
    early->SendTo(kShard0, layer, 1000);
  }
  ASSERT_TRUE(PollUntil({early.get(), other.get(), shard.get()},
                        [&] { return announced.size() >= 10; }));
  EXPECT_EQ(announced[0], 1u);
  EXPECT_EQ(absl::c_count(announced, 2u), std::ssize(announced) - 1);
  EXPECT_THAT(LayersHeard(*shard), ElementsAre(1));

  // No other peer waits, and neither do the frames in the other direction.
  for (uint32_t layer = 100; layer < 120; ++layer) {
    other->SendTo(kShard0, layer, 1000);
    shard->SendTo(kWorker0, layer, 1000);
  }
  ASSERT_TRUE(PollUntil({early.get(), other.get(), shard.get()}, [&] {
    return shard->heard.size() == 21 && early->heard.size() == 20;
  }));

  open = true;
  ASSERT_TRUE(PollUntil({early.get(), other.get(), shard.get()},
                        [&] { return shard->heard.size() == 23; }));
  EXPECT_EQ(shard->heard[21].header.layer, 2u);
  EXPECT_EQ(shard->heard[22].header.layer, 3u);
  for (const TestNode::Heard& heard : shard->heard) EXPECT_TRUE(heard.intact);
  EXPECT_EQ(shard->transport().traffic()[0].bytes_received,
            3 * (kFrameHeaderBytes + 4000))
      << "each counts once";
}

// Frames that were sent before there is a connection leave together, fused into
// one message. Frames of the message that have been delivered must not be
// delivered again.
TEST_P(TransportContractTest, FramesThatLeftTogetherMayWaitApart) {
  for (const uint32_t layer : {1, 2, 4, 5}) {
    ASSERT_TRUE(TestFrame(kWorker0, layer, Buffer()).fused);
    worker->SendTo(kShard0, layer, 10);
  }
  Gate gate(*shard, 4);
  ASSERT_TRUE(Join());
  ASSERT_TRUE(Await([&] { return !gate.announced.empty(); }));
  PollForAWhile({worker.get(), shard.get()});
  EXPECT_THAT(LayersHeard(*shard), ElementsAre(1, 2));
  gate.open = true;
  ASSERT_TRUE(Await([&] { return shard->heard.size() >= 4; }));
  EXPECT_THAT(LayersHeard(*shard), ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(shard->transport().traffic()[0].bytes_received,
            4 * (kFrameHeaderBytes + 40));
}

TEST_P(TransportContractTest, PollDeliversFramesThatWaitedWithoutSleeping) {
  ASSERT_TRUE(Join());
  Gate gate(*shard, 1);
  worker->SendTo(kShard0, 1, 10);
  ASSERT_TRUE(Await([&] { return !gate.announced.empty(); }));
  gate.open = true;
  shard->transport().Poll(absl::InfiniteDuration(), *shard);
  EXPECT_THAT(LayersHeard(*shard), ElementsAre(1));
}

TEST_P(TransportContractTest, WaitingFramesHoldTheSenderBack) {
  ASSERT_TRUE(Join());
  Gate gate(*shard, 0);
  constexpr uint32_t kFrames = 512;  // 128 MiB.
  Flood(*worker, kShard0, kFrames);
  ASSERT_TRUE(PollUntilStill({worker.get(), shard.get()}, *worker));
  // No more bytes than the sockets and windows of both sides hold.
  EXPECT_LT(worker->transport().traffic()[0].bytes_sent, int64_t{32} << 20);
  EXPECT_THAT(shard->heard, IsEmpty());
  EXPECT_THAT(gate.announced.size(), Gt(1u));

  gate.open = true;
  ASSERT_TRUE(Await([&] { return shard->heard.size() == kFrames; }));
  for (uint32_t i = 0; i < kFrames; ++i) {
    ASSERT_EQ(shard->heard[i].header.chunk, i);
    ASSERT_TRUE(shard->heard[i].intact);
  }
}

TEST_P(TransportContractTest, EndOfTheConnectionComesAfterFramesThatWait) {
  ASSERT_TRUE(Join());
  Gate gate(*shard, 1);
  worker->SendTo(kShard0, 1, 10);
  worker->SendTo(kShard0, 2, 10);
  ASSERT_TRUE(Await([&] { return !gate.announced.empty(); }));
  worker->transport().Shutdown(absl::Seconds(1));
  worker->Stop();
  PollForAWhile({shard.get()});
  EXPECT_THAT(shard->ended, IsEmpty());
  gate.open = true;
  ASSERT_TRUE(PollUntil({shard.get()}, [&] { return !shard->ended.empty(); }));
  EXPECT_THAT(LayersHeard(*shard), ElementsAre(1, 2));
}

TEST_P(TransportContractTest, FrameMayBeRefusedAfterItHasWaited) {
  ASSERT_TRUE(Join());
  int announced = 0;
  shard->landing = [&](PeerId, const FrameHeader&) -> absl::StatusOr<Landing> {
    if (++announced < 5) return Landing::Wait();
    return InvalidArgumentError("no such layer");
  };
  worker->SendTo(kShard0, 1, 10);
  worker->SendTo(kShard0, 2, 10);
  ASSERT_TRUE(
      Await([&] { return !worker->ended.empty() && !shard->ended.empty(); }));
  EXPECT_EQ(announced, 5) << "nothing behind the bad frame counts";
  EXPECT_EQ(shard->ended[0].reason, InvalidArgumentError("no such layer"));
  EXPECT_EQ(worker->ended[0].reason, FailedPreconditionError("no such layer"));
}

TEST_P(TransportContractTest, DisconnectDropsFramesThatWait) {
  ASSERT_TRUE(Join());
  Gate gate(*shard, 1);
  for (uint32_t layer = 1; layer <= 9; ++layer) {
    worker->SendTo(kShard0, layer, 10);
  }
  ASSERT_TRUE(Await([&] { return !gate.announced.empty(); }));
  shard->transport().Disconnect(kWorker0);
  gate.open = true;
  ASSERT_TRUE(Await([&] { return !worker->ended.empty(); }));
  EXPECT_THAT(shard->heard, IsEmpty());

  ASSERT_TRUE(Join());
  worker->SendTo(kShard0, 50, 10);
  ASSERT_TRUE(Await([&] { return !shard->heard.empty(); }));
  EXPECT_THAT(LayersHeard(*shard), ElementsAre(50));
  EXPECT_THAT(shard->ended, IsEmpty());
}

// The handler disconnects the peer of the frame that the transport is
// delivering.
TEST_P(TransportContractTest, FrameThatHasWaitedMayCauseADisconnect) {
  auto first = TestNode::Start(GetParam(), kWorker0);
  auto second = TestNode::Start(GetParam(), kWorker1);
  ASSERT_TRUE(JoinNodes(*first, *shard));
  ASSERT_TRUE(JoinNodes(*second, *shard));
  Gate gate(*shard, 0);
  for (uint32_t layer = 1; layer <= 3; ++layer) {
    first->SendTo(kShard0, layer, 10);
    second->SendTo(kShard0, layer + 100, 10);
  }
  const auto announced = [&](uint32_t layer) {
    return absl::c_count(gate.announced, layer) > 0;
  };
  ASSERT_TRUE(PollUntil({first.get(), second.get(), shard.get()},
                        [&] { return announced(1) && announced(101); }));
  shard->then = [&](const FrameHeader&) {
    shard->transport().Disconnect(kWorker0);
    shard->transport().Disconnect(kWorker1);
  };
  gate.open = true;
  ASSERT_TRUE(PollUntil({first.get(), second.get(), shard.get()}, [&] {
    return !first->ended.empty() && !second->ended.empty();
  }));
  EXPECT_EQ(shard->heard.size(), 1u);
  EXPECT_THAT(shard->ended, IsEmpty());
}

}  // namespace
}  // namespace nereus
