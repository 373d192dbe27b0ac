// Shared memory between peers on one host: the memory, the connections that use
// it, and the ring of frames in it.

#include "common/transport/memory/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/transport/handshake.h"
#include "common/transport/memory/frame_ring.h"
#include "tests/common/socket_peers.h"
#include "tests/common/transport_contract.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

INSTANTIATE_TEST_SUITE_P(SharedMemory, TransportContractTest,
                         testing::Values(SharedMemoryKind()),
                         [](const auto& info) { return info.param.name; });

TEST(SharedMemoryTest, BothMappingsShareTheirBytes) {
  auto own = SharedMemory::Create(100'000);
  ASSERT_TRUE(own.ok()) << own.status();
  auto theirs = SharedMemory::Open(own->offer(), 100'000);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_EQ(theirs->data()[99'999], 0);
  own->data()[99'999] = 7;
  EXPECT_EQ(theirs->data()[99'999], 7);
  // Each mapping may end before the other.
  own->Settle();
  SharedMemory(*std::move(own));
  EXPECT_EQ(theirs->data()[99'999], 7);
}

TEST(SharedMemoryTest, OnlyTheOfferedMemoryIsOpened) {
  auto own = SharedMemory::Create(4096);
  ASSERT_TRUE(own.ok()) << own.status();
  SharedMemoryOffer offer = own->offer();
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Open(offer, 8192).status()))
      << "another length";
  offer.token ^= 1;
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Open(offer, 4096).status()))
      << "another token";
  offer = own->offer();
  for (const int32_t descriptor : {0, 1, 2, 100'000}) {
    offer.descriptor = descriptor;
    EXPECT_TRUE(absl::IsUnavailable(SharedMemory::Open(offer, 4096).status()));
  }
  offer = own->offer();
  offer.process = 1 << 30;
  EXPECT_TRUE(absl::IsUnavailable(SharedMemory::Open(offer, 4096).status()));
  offer = own->offer();
  own->Settle();
  EXPECT_FALSE(SharedMemory::Open(offer, 4096).ok()) << "it has been taken";
}

TEST(SharedMemoryTest, OtherProcessMayOpenTheMemoryAndDie) {
  auto own = SharedMemory::Create(4096);
  ASSERT_TRUE(own.ok()) << own.status();
  const pid_t child = fork();
  if (child == 0) {
    auto theirs = SharedMemory::Open(own->offer(), 4096);
    if (theirs.ok()) theirs->data()[0] = 42;
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(own->data()[0], 42);
}

// Exchanges a few frames between two nodes. Returns true if the frames went
// through sockets, which fill in checksums.
bool WentThroughSockets(NodePair& pair) {
  EXPECT_TRUE(pair.Join());
  for (uint32_t layer = 1; layer <= 20; ++layer) {
    pair.worker->SendTo(kShard0, layer, 40'000);
    pair.shard->SendTo(kWorker0, layer, 40'000);
  }
  EXPECT_TRUE(pair.Await([&] {
    return pair.worker->heard.size() == 20 && pair.shard->heard.size() == 20;
  }));
  for (const TestNode* node : {pair.worker.get(), pair.shard.get()}) {
    for (const auto& heard : node->heard) EXPECT_TRUE(heard.intact);
  }
  return pair.shard->heard.back().header.payload_crc != 0;
}

class MemoryChannelTest : public testing::Test, protected NodePair {
 protected:
  MemoryChannelTest() : NodePair(SharedMemoryKind()) {}
};

TEST_F(MemoryChannelTest, MemoryIsUsedIfBothSidesAllowIt) {
  for (const bool dialling : {false, true}) {
    for (const bool answering : {false, true}) {
      const auto kind = [](bool willing) {
        return willing ? SharedMemoryKind() : SocketKind();
      };
      NodePair pair(kind(dialling), kind(answering));
      EXPECT_EQ(WentThroughSockets(pair), !(dialling && answering));
    }
  }
}

// The shard ends before the worker has read the admission.
TEST_F(MemoryChannelTest, FramesArriveThoughTheSenderHasGone) {
  worker->Dial(*shard);
  // The shard polls last, so the worker cannot have read its admission.
  ASSERT_TRUE(Await([&] { return !shard->connected.empty(); }));
  for (uint32_t layer = 1; layer <= 3; ++layer) {
    shard->SendTo(kWorker0, layer, 1000);
  }
  shard->transport().Shutdown(absl::Milliseconds(300));
  ASSERT_TRUE(
      PollUntil({worker.get()}, [&] { return !worker->ended.empty(); }));
  EXPECT_THAT(worker->heard, SizeIs(3));
  EXPECT_TRUE(worker->ended[0].reason.ok()) << worker->ended[0].reason;
}

// A frame that is passed on through a socket gets a checksum there.
TEST_F(MemoryChannelTest, ChecksumThatWasNotComparedIsNotPassedOn) {
  ASSERT_TRUE(Join());
  Frame frame = TestFrame(kWorker0, 1, TestPayload(1, 9));
  frame.header.payload_crc = 0x1234;
  worker->transport().Send(kShard0, frame);
  ASSERT_TRUE(Await([&] { return !shard->heard.empty(); }));
  EXPECT_EQ(shard->heard[0].header.payload_crc, 0u);
}

TEST_F(MemoryChannelTest, ShutdownDoesNotWaitForAPeerThatHasGone) {
  ASSERT_TRUE(Join());
  Gate gate(*shard, 0);
  worker->SendTo(kShard0, 1, 1000);
  ASSERT_TRUE(Await([&] { return !gate.announced.empty(); }));
  worker->transport().Shutdown(absl::ZeroDuration());
  worker->Stop();
  for (int i = 0; i < 20; ++i) {
    shard->transport().Poll(absl::Milliseconds(1), *shard);
  }
  const absl::Time start = SteadyNow();
  shard->transport().Shutdown(kPatience);
  EXPECT_LT(SteadyNow() - start, kPatience / 2);
}

std::set<std::string> NamesIn(const char* folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

TEST_F(MemoryChannelTest, OpenMemoryHasNoNameAndNoDescriptor) {
  const std::set<std::string> before = NamesIn("/dev/shm");
  NodePair pair(SharedMemoryKind());
  const size_t descriptors = NamesIn("/proc/self/fd").size();
  EXPECT_FALSE(WentThroughSockets(pair));
  EXPECT_EQ(NamesIn("/dev/shm"), before);
  // Each of the two connections keeps one descriptor, its socket.
  EXPECT_EQ(NamesIn("/proc/self/fd").size(), descriptors + 2);
}

// A peer on the same host. The test makes the peer's half of the memory.
class SharedPeerTest : public testing::Test {
 protected:
  SharedPeerTest()
      : shard_(TestNode::Start(SharedMemoryKind(), kShard0)),
        peer_(shard_->address()),
        memory_(*SharedMemory::Create(MemoryChannel::kBytes)) {}

  void Greet(const SharedMemoryOffer& offer) {
    Hello hello = TestHello(kWorker0);
    hello.intended = kShard0;
    hello.shared_memory = offer;
    peer_.Write(PreambleTo(kShard0, TestRoster().at(kShard0)) +
                FrameBytes(HelloFrame(hello)));
    ASSERT_TRUE(
        PollUntil({shard_.get()}, [&] { return !shard_->connected.empty(); }));
  }
  std::optional<SharedMemoryOffer> Answer() {
    std::string answer;
    EXPECT_TRUE(PollUntil({shard_.get()}, [&] {
      peer_.Read(answer);
      return answer.size() > kFrameHeaderBytes;
    }));
    Frame frame;
    const auto* bytes = reinterpret_cast<const uint8_t*>(answer.data());
    frame.header = *DecodeFrameHeader({bytes, kFrameHeaderBytes});
    frame.payload = Buffer::View(answer.data() + kFrameHeaderBytes,
                                 frame.header.payload_bytes);
    return ReadHello(frame)->shared_memory;
  }
  void Turn() {
    for (int i = 0; i < 10; ++i) {
      shard_->transport().Poll(absl::Milliseconds(1), *shard_);
    }
  }
  FrameRing::Control& control() {
    return *reinterpret_cast<FrameRing::Control*>(memory_.data());
  }
  uint8_t* data() { return memory_.data() + sizeof(FrameRing::Control); }
  void ExpectRefused(const char* why) {
    ASSERT_TRUE(
        PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
    EXPECT_THAT(std::string(shard_->ended[0].reason.message()), HasSubstr(why));
    EXPECT_THAT(shard_->heard, IsEmpty());
  }

  std::unique_ptr<TestNode> shard_;
  RawSocket peer_;
  SharedMemory memory_;
};

TEST_F(SharedPeerTest, SocketIsUsedIfTheMemoryCannotBeOpened) {
  SharedMemoryOffer wrong = memory_.offer();
  wrong.token ^= 1;
  Greet(wrong);
  EXPECT_EQ(Answer(), std::nullopt);
  peer_.Write(FrameBytes(Checked(TestFrame(kWorker0, 1, TestPayload(1, 9)))));
  EXPECT_TRUE(
      PollUntil({shard_.get()}, [&] { return shard_->heard.size() == 1; }));
}

TEST_F(SharedPeerTest, FramesInMemoryAreDeliveredThoughThePeerHasGone) {
  Greet(memory_.offer());
  EXPECT_EQ(Answer(), memory_.offer());
  FrameRingWriter writer(memory_.data());
  for (uint32_t layer = 1; layer <= 3; ++layer) {
    const Frame frame = TestFrame(kWorker0, layer, TestPayload(layer, 65536));
    EXPECT_TRUE(*writer.Push(frame.header, frame.payload));
  }
  peer_.HangUp();
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  ASSERT_THAT(shard_->heard, SizeIs(3));
  for (const auto& heard : shard_->heard) EXPECT_TRUE(heard.intact);
  EXPECT_THAT(std::string(shard_->ended[0].reason.message()),
              HasSubstr("the peer closed it without a reason"));
}

// A peer that closes a socket with unread bytes resets the connection.
TEST_F(SharedPeerTest, FramesInMemoryAreDeliveredThoughTheSocketIsReset) {
  Greet(memory_.offer());
  FrameRingWriter writer(memory_.data());
  const Frame frame = TestFrame(kWorker0, 1, TestPayload(1, 9));
  EXPECT_TRUE(*writer.Push(frame.header, frame.payload));
  peer_.Reset();
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  EXPECT_THAT(shard_->heard, SizeIs(1));
}

TEST_F(SharedPeerTest, NonsenseInMemoryEndsTheConnection) {
  Greet(memory_.offer());
  data()[0] = 1;
  control().head = 64;
  ExpectRefused("frame header");
}

// The transport must never read the frames that the peer has left in the
// memory.
TEST_F(SharedPeerTest, MemoryOfARefusedPeerIsNotWatched) {
  Greet(memory_.offer());
  Turn();
  // After a short sleep, Poll looks at the memory before it sleeps again.
  peer_.Write("x");
  shard_->transport().Poll(absl::Milliseconds(100), *shard_);
  Frame hello = TestFrame(kWorker0, 1, TestPayload(1, 1));
  hello.header.kind = FrameKind::kHello;
  FrameRingWriter writer(memory_.data());
  ASSERT_TRUE(*writer.Push(hello.header, hello.payload));
  shard_->transport().Poll(absl::Milliseconds(100), *shard_);
  ExpectRefused("a second hello");
  // Late events of the socket may end a sleep early, but not each of them.
  const absl::Time deadline = SteadyNow() + kPatience;
  absl::Duration slept;
  while (slept < absl::Milliseconds(50) && SteadyNow() < deadline) {
    const absl::Time start = SteadyNow();
    shard_->transport().Poll(absl::Milliseconds(100), *shard_);
    slept = SteadyNow() - start;
  }
  EXPECT_GE(slept, absl::Milliseconds(50));
}

TEST_F(SharedPeerTest, MoreBytesThanTheRingHasAreRefused) {
  Greet(memory_.offer());
  control().head = 2 * FrameRing::kCapacity;
  ExpectRefused("and the reader at byte 0 of a ring");
}

TEST_F(SharedPeerTest, IncompleteFrameIsRefused) {
  Greet(memory_.offer());
  const Frame frame = TestFrame(kWorker0, 1, TestPayload(1, 100));
  FrameRingWriter writer(memory_.data());
  ASSERT_TRUE(*writer.Push(frame.header, frame.payload));
  control().head = 64;
  ExpectRefused("the ring has only 64 bytes of it");
}

TEST_F(SharedPeerTest, TailOfThePeerIsCheckedBeforeAWrite) {
  Greet(memory_.offer());
  auto& theirs = *reinterpret_cast<FrameRing::Control*>(memory_.data() +
                                                        FrameRing::kBytes);
  theirs.tail = 64;
  shard_->SendTo(kWorker0, 1, 10);
  ExpectRefused("and the reader at byte 64 of a ring");
}

TEST_F(SharedPeerTest, RefusalIsCopiedBeforeItIsRead) {
  Greet(memory_.offer());
  const Frame refusal = RefusalFrame(kWorker0, "no\x1b[2Jmore");
  FrameRingWriter writer(memory_.data());
  ASSERT_TRUE(*writer.Push(refusal.header, refusal.payload));
  ExpectRefused("no?[2Jmore");
}

// The memory of a ring and its two ends.
class FrameRingTest : public testing::Test {
 protected:
  FrameRingTest()
      : memory_(Buffer::AllocateZeroed(FrameRing::kBytes)),
        writer_(memory_.data()),
        reader_(memory_.data()) {}

  static Frame FrameOf(uint32_t layer, int64_t bytes) {
    Frame frame;
    frame.header.kind = FrameKind::kContribution;
    frame.header.layer = layer;
    frame.header.payload_bytes = static_cast<uint32_t>(bytes);
    frame.payload = Buffer::Allocate(bytes);
    std::memset(frame.payload.data(), static_cast<int>(layer % 251 + 1),
                static_cast<size_t>(bytes));
    return frame;
  }
  bool Push(const Frame& frame) {
    const auto pushed = writer_.Push(frame.header, frame.payload);
    EXPECT_TRUE(pushed.ok()) << pushed.status();
    return pushed.ok() && *pushed;
  }
  // Returns the layer of the front frame, which must be as FrameOf made it; -1
  // if the ring is empty.
  int64_t Next() {
    FrameHeader header;
    Buffer payload;
    const auto found = reader_.Front(header, payload);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok() || !*found) return -1;
    EXPECT_EQ(payload.bytes(), header.payload_bytes);
    const auto expected = static_cast<uint8_t>(header.layer % 251 + 1);
    EXPECT_TRUE(std::all_of(payload.data(), payload.data() + payload.bytes(),
                            [&](uint8_t byte) { return byte == expected; }))
        << header.layer;
    return header.layer;
  }

  const Buffer memory_;
  FrameRingWriter writer_;
  FrameRingReader reader_;
};

TEST_F(FrameRingTest, FramesComeOutInOrderAndStayUntilPop) {
  EXPECT_TRUE(reader_.empty());
  EXPECT_EQ(Next(), -1);
  EXPECT_TRUE(Push(FrameOf(1, 100)));
  EXPECT_TRUE(Push(FrameOf(2, 0)));
  EXPECT_EQ(Next(), 1);
  EXPECT_EQ(Next(), 1);
  reader_.Pop();
  EXPECT_EQ(Next(), 2);
  EXPECT_FALSE(reader_.empty());
  reader_.Pop();
  EXPECT_TRUE(reader_.empty());
}

TEST_F(FrameRingTest, FourLargestFramesFit) {
  const Frame largest = FrameOf(1, kFramePayloadBytesMax);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(Push(largest));
    EXPECT_FALSE(Push(FrameOf(2, 0)));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(Next(), 1);
      reader_.Pop();
    }
  }
}

TEST_F(FrameRingTest, EachFrameFitsAfterEnoughIsRead) {
  for (const uint64_t seed : TestSeeds(20)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    uint32_t pushed = 0;
    uint32_t popped = 0;
    const auto draw = [&] {
      return FrameOf(pushed, static_cast<int64_t>(
                                 random.Chance(0.3)
                                     ? random.Below(kFramePayloadBytesMax + 1)
                                     : random.Below(5000)));
    };
    Frame waiting = draw();
    while (pushed < 300) {
      if (random.Chance(0.5) && Push(waiting)) {
        ++pushed;
        waiting = draw();
      }
      if (random.Chance(0.5) && Next() >= 0) {
        EXPECT_EQ(Next(), popped++);
        reader_.Pop();
      }
    }
    for (; popped < pushed; ++popped) {
      ASSERT_EQ(Next(), popped);
      reader_.Pop();
    }
    EXPECT_TRUE(Push(waiting)) << "an empty ring has room";
    reader_.empty();
    Next();
    reader_.Pop();
  }
}

TEST_F(FrameRingTest, SleepingSideIsWokenOnceAndOnlyForWork) {
  EXPECT_FALSE(writer_.TakeSleeper());
  EXPECT_TRUE(reader_.MaySleep());
  Push(FrameOf(1, 10));
  EXPECT_TRUE(writer_.TakeSleeper());
  EXPECT_FALSE(writer_.TakeSleeper());
  EXPECT_FALSE(reader_.MaySleep());
  Push(FrameOf(2, 10));
  EXPECT_FALSE(writer_.TakeSleeper()) << "it does not sleep";

  while (Push(FrameOf(3, kFramePayloadBytesMax))) {
  }
  EXPECT_TRUE(writer_.MaySleep());
  Next();
  reader_.Pop();
  EXPECT_FALSE(reader_.TakeSleeper()) << "not room enough";
  while (Next() >= 0) reader_.Pop();
  EXPECT_TRUE(reader_.TakeSleeper());
  EXPECT_FALSE(reader_.TakeSleeper());
  EXPECT_FALSE(writer_.MaySleep()) << "there is room";
}

// Each side sleeps until the other side wakes it. If a wake-up were lost, this
// test would hang.
TEST_F(FrameRingTest, NoSideSleepsForEver) {
  constexpr uint32_t kFrames = 20000;
  std::atomic<int> reader_woken{0};
  std::atomic<int> writer_woken{0};
  const auto sleep = [](std::atomic<int>& woken) {
    while (woken.exchange(0) == 0) std::this_thread::yield();
  };
  std::thread writing([&] {
    Random random(1);
    for (uint32_t i = 0; i < kFrames;) {
      const int64_t bytes = random.Chance(0.05)
                                ? kFramePayloadBytesMax
                                : static_cast<int64_t>(random.Below(300));
      const Frame frame = FrameOf(i, bytes);
      while (!Push(frame)) {
        if (writer_.MaySleep()) sleep(writer_woken);
        writer_.Awake();
      }
      ++i;
      if (writer_.TakeSleeper()) reader_woken = 1;
    }
  });
  for (uint32_t i = 0; i < kFrames;) {
    if (Next() < 0) {
      if (reader_.MaySleep()) sleep(reader_woken);
      reader_.Awake();
      continue;
    }
    ASSERT_EQ(Next(), i++);
    reader_.Pop();
    if (reader_.TakeSleeper()) writer_woken = 1;
  }
  writing.join();
  EXPECT_TRUE(reader_.empty());
}

TEST_F(FrameRingTest, SkipWithoutAFrameBehindItIsRefused) {
  auto& control = *reinterpret_cast<FrameRing::Control*>(memory_.data());
  control.head = kFrameHeaderBytes;  // The memory is zero, and zero is a skip.
  FrameHeader header;
  Buffer payload;
  EXPECT_THAT(std::string(reader_.Front(header, payload).status().message()),
              HasSubstr("no frame follows the skipped end"));
}

}  // namespace
}  // namespace nereus
