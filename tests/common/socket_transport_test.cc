// TCP connections between processes: the contract of transports, the behaviour
// of sockets alone (strangers, frames in pieces, host names), and the parts of
// a channel.

#include "common/transport/socket/socket_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/socket.h"
#include "common/transport/handshake.h"
#include "common/transport/socket/frame_writer.h"
#include "common/transport/socket/socket_channel.h"
#include "tests/common/socket_peers.h"
#include "tests/common/transport_contract.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

INSTANTIATE_TEST_SUITE_P(Socket, TransportContractTest,
                         testing::Values(SocketKind()),
                         [](const auto& info) { return info.param.name; });

// A shard with one admitted worker, which strangers must not disturb.
class SocketStrangerTest : public testing::Test {
 protected:
  void Join(TransportOptions options = {}) {
    shard_ = TestNode::Start(SocketKind(options), kShard0);
    worker_ = TestNode::Start(SocketKind(), kWorker0);
    ASSERT_TRUE(JoinNodes(*worker_, *shard_));
  }

  // Returns a connection that has sent `bytes`, and which the shard has seen.
  std::unique_ptr<RawSocket> Stranger(const std::string& bytes) {
    auto stranger = std::make_unique<RawSocket>(shard_->address());
    stranger->Write(bytes);
    for (int turn = 0; turn < 5; ++turn) {
      shard_->transport().Poll(absl::Milliseconds(1), *shard_);
    }
    return stranger;
  }

  // Sends `bytes`, and returns all bytes of the shard's answer before it hangs
  // up.
  std::string AnswerTo(const std::string& bytes) {
    RawSocket stranger(shard_->address());
    stranger.Write(bytes);
    std::string answer;
    bool open = true;
    EXPECT_TRUE(PollUntil({shard_.get(), worker_.get()}, [&] {
      open = open && stranger.Read(answer);
      // The shard keeps the connection until this side has read the answer.
      if (answer.size() > kFrameHeaderBytes) stranger.HangUpWriting();
      return !open;
    }));
    return answer;
  }

  // Returns the text of the refusal at the end of `answer`.
  static std::string RefusalIn(const std::string& answer) {
    if (answer.size() < kFrameHeaderBytes) return "";
    const auto header = DecodeFrameHeader(absl::MakeConstSpan(
        reinterpret_cast<const uint8_t*>(answer.data()), kFrameHeaderBytes));
    EXPECT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->kind, FrameKind::kRefusal);
    return answer.substr(kFrameHeaderBytes);
  }

  void ExpectPeersUndisturbed() {
    worker_->SendTo(kShard0, 7, 100);
    shard_->SendTo(kWorker0, 8, 100);
    EXPECT_TRUE(PollUntil({shard_.get(), worker_.get()}, [&] {
      return shard_->heard.size() == 1 && worker_->heard.size() == 1;
    }));
    EXPECT_EQ(shard_->heard[0].header.layer, 7u);
    EXPECT_THAT(shard_->connected, ElementsAre(kWorker0));
    EXPECT_THAT(shard_->ended, IsEmpty());
  }

  std::unique_ptr<TestNode> shard_;
  std::unique_ptr<TestNode> worker_;
};

TEST_F(SocketStrangerTest, StrangerWithAWrongTokenIsRefused) {
  Join();
  const uint64_t token = TestRoster().at(kShard0);
  for (const uint64_t wrong : {token ^ 1, token ^ (uint64_t{1} << 63)}) {
    const std::string answer =
        AnswerTo(PreambleTo(kShard0, wrong) + HelloBytes(kWorker1, kShard0));
    EXPECT_THAT(RefusalIn(answer), HasSubstr("token"));
    EXPECT_THAT(RefusalIn(answer),
                testing::Not(HasSubstr(absl::StrCat(token))));
  }
  // They may be meant for an earlier process, so they count as early.
  EXPECT_EQ(shard_->transport().connections().refused_strangers, 0);
  ExpectPeersUndisturbed();
}

TEST_F(SocketStrangerTest, BytesThatAreNoPreambleAreRefused) {
  Join();
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\nHost: here\r\n\r\n"),
        std::string(64, '\xff'), HelloBytes(kWorker1, kShard0)}) {
    EXPECT_THAT(
        RefusalIn(AnswerTo(bytes)),
        HasSubstr("the first bytes are not those of a Nereus connection"));
  }
  EXPECT_THAT(RefusalIn(AnswerTo("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
              HasSubstr("go to the --control-port"));
  const ConnectionCounts counts = shard_->transport().connections();
  EXPECT_EQ(counts.refused_strangers, 4);
  EXPECT_EQ(counts.refused_peers, 0);
  ExpectPeersUndisturbed();
}

TEST_F(SocketStrangerTest, FirstFrameMustBeAHello) {
  Join();
  const std::string preamble = PreambleTo(kShard0, TestRoster().at(kShard0));
  EXPECT_THAT(
      RefusalIn(AnswerTo(preamble + FrameBytes(Checked(TestFrame(
                                        kWorker1, 1, TestPayload(1, 4)))))),
      HasSubstr("a connection must open with a hello"));
  // A long hello is refused before its payload has come.
  Frame large = TestFrame(kWorker1, 1, Buffer::Allocate(100'000));
  large.header.kind = FrameKind::kHello;
  EXPECT_THAT(RefusalIn(AnswerTo(preamble + FrameBytes(large).substr(0, 64))),
              HasSubstr("bytes are allowed"));
  EXPECT_THAT(RefusalIn(AnswerTo(preamble + std::string(64, 'x'))),
              HasSubstr("frame header"));
  ExpectPeersUndisturbed();
}

TEST_F(SocketStrangerTest, SilentStrangerIsHungUpOn) {
  TransportOptions options;
  options.handshake_timeout = absl::Seconds(1);
  Join(options);
  EXPECT_EQ(AnswerTo(""), "");
  EXPECT_EQ(AnswerTo(PreambleTo(kShard0, 1).substr(0, 10)), "");
  ExpectPeersUndisturbed();
}

TEST_F(SocketStrangerTest, NumberOfStrangersIsLimited) {
  TransportOptions options;
  options.handshakes_max = 3;
  options.handshake_timeout = absl::Hours(1);
  Join(options);
  std::vector<std::unique_ptr<RawSocket>> silent;
  for (int i = 0; i < 3; ++i) {
    silent.push_back(Stranger(""));
  }
  EXPECT_EQ(AnswerTo(""), "") << "one too many";
  silent.pop_back();
  // Another process takes the free place.
  auto other = TestNode::Start(SocketKind(), kWorker1);
  EXPECT_TRUE(JoinNodes(*other, *shard_));
}

// A refused process counts as a stranger until its connection is closed.
TEST_F(SocketStrangerTest, RefusedStrangersCountUntilTheyClose) {
  TransportOptions options;
  options.handshakes_max = 3;
  options.handshake_timeout = options.closing_timeout = absl::Hours(1);
  Join(options);
  std::vector<std::unique_ptr<RawSocket>> refused;
  for (int i = 0; i < 3; ++i) {
    refused.push_back(Stranger(std::string(kPreambleBytes, 'x')));
  }
  EXPECT_EQ(AnswerTo(""), "") << "one too many";
}

// A shard with a peer that sends the bytes of the test.
class SocketPeerTest : public testing::Test {
 protected:
  SocketPeerTest()
      : shard_(TestNode::Start(SocketKind(), kShard0)),
        peer_(shard_->address()) {
    peer_.Write(PreambleTo(kShard0, TestRoster().at(kShard0)) +
                HelloBytes(kWorker0, kShard0));
    EXPECT_TRUE(
        PollUntil({shard_.get()}, [&] { return !shard_->connected.empty(); }));
  }

  void Turn() {
    for (int i = 0; i < 10; ++i) {
      shard_->transport().Poll(absl::Milliseconds(1), *shard_);
    }
  }
  static std::string Bytes(uint32_t layer, int64_t count) {
    return FrameBytes(
        Checked(TestFrame(kWorker0, layer, TestPayload(layer, count))));
  }

  std::unique_ptr<TestNode> shard_;
  RawSocket peer_;
};

TEST_F(SocketPeerTest, EndWithinAFrameIsReported) {
  peer_.Write(Bytes(1, 1000).substr(0, 2000));
  Turn();
  peer_.HangUpWriting();
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  EXPECT_THAT(shard_->ended[0].reason, IsUnavailable("within a frame"));
  EXPECT_THAT(shard_->heard, IsEmpty());
}

// If the epoch changes in the middle of a frame, the rest of the frame must not
// land in the memory of the next epoch.
TEST_F(SocketPeerTest, RestOfAFrameDoesNotLandInTheNextEpoch) {
  const Buffer place = Buffer::AllocateZeroed(4000);
  bool next_epoch = false;
  uint32_t announced = 0;  // Layer of the last header.
  shard_->landing = [&](PeerId, const FrameHeader& header) {
    announced = header.layer;
    return next_epoch ? Landing::Discard() : Landing::At(place);
  };
  const std::string bytes = Bytes(1, 1000);
  peer_.Write(bytes.substr(0, 2000));
  ASSERT_TRUE(PollUntil({shard_.get()},
                        [&] { return place.floats()[0] == TestValue(1, 0); }));
  shard_->transport().SetRoster(TestHello(kShard0), TestRoster());
  next_epoch = true;
  std::fill_n(place.floats(), 1000, -1.0f);
  peer_.Write(bytes.substr(2000) + Bytes(2, 0));
  ASSERT_TRUE(PollUntil({shard_.get()}, [&] { return announced == 2; }));
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(place.floats()[i], -1.0f) << i;
  EXPECT_THAT(shard_->heard, IsEmpty());
  EXPECT_THAT(shard_->ended, IsEmpty());
}

// The handler may decide differently at the last byte of a frame than at its
// header.
TEST_F(SocketPeerTest, CompleteFrameIsAnnouncedAgainIfTheHandlerHasChanged) {
  const Buffer first = Buffer::AllocateZeroed(4000);
  const Buffer second = Buffer::AllocateZeroed(4000);
  Landing landing = Landing::At(first);
  int announced = 0;
  shard_->landing = [&](PeerId, const FrameHeader& header) {
    ++announced;
    return header.layer == 1 ? landing : Landing::Scratch();
  };
  const auto poll_until_announced = [&](int count) {
    ASSERT_TRUE(PollUntil({shard_.get()}, [&] { return announced >= count; }));
  };
  const auto deliver = [&](Landing then) {
    landing = Landing::At(first);
    const std::string bytes = Bytes(1, 1000);
    const int before = announced;
    peer_.Write(bytes.substr(0, 1000));
    poll_until_announced(before + 1);
    landing = std::move(then);
    peer_.Write(bytes.substr(1000));
    poll_until_announced(before + 2);
  };
  deliver(Landing::At(second));
  ASSERT_THAT(shard_->heard, SizeIs(1));
  EXPECT_TRUE(IsTestPayload(1, second));
  deliver(Landing::Scratch());
  ASSERT_THAT(shard_->heard, SizeIs(2));
  EXPECT_TRUE(shard_->heard[1].intact);
  deliver(Landing::Discard());
  EXPECT_THAT(shard_->heard, SizeIs(2));
  // The frame waits and stays intact, although another frame reuses its place.
  deliver(Landing::Wait());
  EXPECT_THAT(shard_->heard, SizeIs(2));
  std::fill_n(first.floats(), 1000, -1.0f);
  landing = Landing::Scratch();
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return shard_->heard.size() == 3; }));
  EXPECT_TRUE(shard_->heard[2].intact);
  peer_.Write(Bytes(2, 10));
  EXPECT_TRUE(PollUntil({shard_.get()}, [&] {
    return shard_->heard.size() == 4;
  })) << "the frames behind it go on";
}

// A side that can send no more still delivers all frames that it has received.
TEST_F(SocketPeerTest, FailureToSendLosesNoFrameThatHasCome) {
  Gate gate(*shard_, 0);
  peer_.Write(Bytes(1, 10) + FrameBytes(GoodbyeFrame(kWorker0)));
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !gate.announced.empty(); }));
  peer_.HangUp();
  for (uint32_t layer = 0; layer < 3; ++layer) {
    shard_->SendTo(kWorker0, layer, 1000);
    Turn();
  }
  EXPECT_THAT(shard_->ended, IsEmpty());
  gate.open = true;
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  ASSERT_THAT(shard_->heard, SizeIs(1));
  EXPECT_TRUE(shard_->heard[0].intact);
  EXPECT_TRUE(shard_->ended[0].reason.ok()) << shard_->ended[0].reason;
}

TEST_F(SocketPeerTest, ShutdownDoesNotWaitForAFrameThatWaits) {
  Gate gate(*shard_, 0);
  peer_.Write(Bytes(1, 10));
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !gate.announced.empty(); }));
  peer_.HangUpWriting();
  const absl::Time before = SteadyNow();
  shard_->transport().Shutdown(kPatience);
  EXPECT_LT(SteadyNow() - before, kPatience / 2);
}

TEST_F(SocketPeerTest, BytesThatAreNoFrameEndTheConnection) {
  peer_.Write(Bytes(1, 10) + std::string(200, 'x'));
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  EXPECT_EQ(shard_->ended[0].reason.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(shard_->heard, SizeIs(1));
}

class SocketTransportTest : public testing::Test, protected NodePair {
 protected:
  SocketTransportTest() : NodePair(SocketKind()) {}
};

TEST_F(SocketTransportTest, NoWakeIsLost) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> wakers;
  for (int i = 0; i < 4; ++i) {
    wakers.emplace_back([&] {
      while (!stop) worker->transport().Wake();
    });
  }
  const absl::Time until = SteadyNow() + absl::Milliseconds(500);
  while (SteadyNow() < until) {
    const absl::Time before = SteadyNow();
    worker->transport().Poll(2 * kPatience, *worker);
    EXPECT_LT(SteadyNow() - before, kPatience);
  }
  stop = true;
  for (std::thread& waker : wakers) waker.join();
}

TEST_F(SocketTransportTest, FramesOfOtherThreadsKeepTheirPlaceInOrder) {
  ASSERT_TRUE(Join());
  const auto send = [&](int64_t count) {
    Frame frame = TestFrame(kWorker0, 1, TestPayload(1, count));
    worker->transport().Send(kShard0, frame);
  };
  std::thread([&] { send(10); }).join();
  send(20);
  ASSERT_TRUE(Await([&] { return shard->heard.size() == 2; }));
  EXPECT_EQ(shard->heard[0].header.payload_bytes, 40u);
}

TEST_F(SocketTransportTest, OtherAddressIsTriedDuringALookUp) {
  worker->transport().Connect(kShard0, "no.such.host.invalid:7700",
                              {SteadyNow() + kPatience});
  worker->transport().Poll(absl::ZeroDuration(), *worker);
  worker->transport().Connect(kShard0, shard->address(),
                              {SteadyNow() + kPatience});
  EXPECT_TRUE(Await([&] { return !worker->connected.empty(); }));
}

TEST_F(SocketTransportTest, HostNamesAreConnectedTo) {
  worker->transport().Connect(
      kShard0, absl::StrCat("localhost:", shard->transport().port()),
      {SteadyNow() + kPatience});
  EXPECT_TRUE(Await([&] { return !worker->connected.empty(); }));
}

TEST_F(SocketTransportTest, UnknownHostNameIsReported) {
  worker->transport().Connect(kShard0, "no.such.host.invalid:7700",
                              {SteadyNow() + absl::Milliseconds(300)});
  ASSERT_TRUE(
      PollUntil({worker.get()}, [&] { return !worker->ended.empty(); }));
  EXPECT_THAT(worker->ended[0].reason,
              IsUnavailable("no.such.host.invalid:7700"));
}

TEST(SocketAddressTest, AddressIsSplitAndPrinted) {
  EXPECT_EQ(SplitHostPort("a.b:80")->first, "a.b");
  EXPECT_EQ(SplitHostPort("[::1]:80")->first, "::1");
  EXPECT_EQ(SplitHostPort("[::1]:80")->second, "80");
  for (const char* bad : {"", "host", "host:", ":80", "host:0", "host:65536",
                          "host:x", "host:-1"}) {
    EXPECT_EQ(SplitHostPort(bad).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_EQ(Resolve("10.1.2.3:80", true)->front().ToString(), "10.1.2.3:80");
  EXPECT_EQ(Resolve("[::1]:80", true)->front().ToString(), "[::1]:80");
  EXPECT_FALSE(Resolve("localhost:80", true).ok());
}

TEST(TransportOptionsTest, EachOptionIsChecked) {
  EXPECT_TRUE(TransportOptions().Validate().ok());
  const auto message = [](auto change) {
    TransportOptions options;
    change(options);
    return std::string(SocketTransport::Start(options).status().message());
  };
  EXPECT_THAT(message([](auto& o) { o.host = ""; }), HasSubstr("host"));
  EXPECT_THAT(message([](auto& o) { o.port = 65536; }), HasSubstr("65536"));
  EXPECT_THAT(message([](auto& o) { o.handshakes_max = 0; }),
              HasSubstr("handshakes_max"));
  EXPECT_THAT(message([](auto& o) { o.handshake_timeout = {}; }),
              HasSubstr("handshake_timeout"));
  EXPECT_THAT(message([](auto& o) { o.closing_timeout = {}; }),
              HasSubstr("closing_timeout"));
}

TEST(SendQueueTest, LowPriorityValuesGoFirstAndKeepTheirOrder) {
  SendQueue<int> queue;
  EXPECT_TRUE(queue.empty());
  // Frames in the order of backward: the last layer first, two frames each.
  for (int i = 0; i < 6; ++i) queue.Push(2 - i / 2, i);
  EXPECT_EQ(queue.Pop(), 4);
  queue.Push(1, 6);
  queue.Push(0, 7);
  EXPECT_THAT(queue.TakeAll(), ElementsAre(5, 7, 2, 3, 6, 0, 1));
  EXPECT_TRUE(queue.empty());
  EXPECT_THAT(queue.TakeAll(), IsEmpty());
}

// A new frame waits for the bytes that the kernel has, for a frame of which it
// has a part, and for frames of 128 KiB in all that were gathered.
TEST(FrameWriterTest, UrgentFrameWaitsForFewOthers) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()),
            0);
  const Descriptor own(ends[0]);
  const Descriptor peer(ends[1]);
  std::vector<uint32_t> written;
  FrameWriter writer(
      [&](const FrameHeader& header) { written.push_back(header.layer); });
  const auto push = [&](uint32_t layer, int64_t bytes) {
    Frame frame;
    frame.header.kind = FrameKind::kContribution;
    frame.header.layer = layer;
    frame.header.payload_bytes = static_cast<uint32_t>(bytes);
    if (bytes > 0) frame.payload = Buffer::AllocateZeroed(bytes);
    frame.priority = layer;
    writer.Push(std::move(frame));
  };
  constexpr int kFrames = 64;
  constexpr int64_t kBytes = 32 * 1024;
  for (int i = 0; i < kFrames; ++i) push(9, kBytes);
  ASSERT_FALSE(writer.Write(own.get()).value());
  const size_t in_kernel = written.size();
  ASSERT_LT(in_kernel, kFrames / 2);
  push(0, 0);
  std::vector<char> taken(1 << 20);
  while (!writer.empty()) {
    ASSERT_GT(read(peer.get(), taken.data(), taken.size()), 0);
    ASSERT_TRUE(writer.Write(own.get()).ok());
  }
  ASSERT_THAT(written, SizeIs(kFrames + 1));
  const auto urgent = std::find(written.begin(), written.end(), 0u);
  EXPECT_LE(urgent - written.begin(),
            static_cast<int64_t>(in_kernel) + 128 * 1024 / kBytes + 1);
}

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

TEST(BlockedTimeTest, CountsFromAFullKernelToTheNextWriteThatFits) {
  BlockedTime blocked;
  blocked.OnWritten(/*is_full=*/false, At(0));
  blocked.OnWritten(/*is_full=*/true, At(10));
  blocked.OnWritten(/*is_full=*/true, At(25));  // Still full.
  blocked.OnWritten(/*is_full=*/false, At(30));
  EXPECT_EQ(blocked.Take({}, At(50)), absl::Milliseconds(20));
  EXPECT_EQ(blocked.Take({}, At(60)), absl::ZeroDuration());
}

TEST(BlockedTimeTest, AWaitUnderWayIsSplitBetweenTwoIntervals) {
  BlockedTime blocked;
  blocked.OnWritten(/*is_full=*/true, At(10));
  EXPECT_EQ(blocked.Take({}, At(40)), absl::Milliseconds(30));
  blocked.OnWritten(/*is_full=*/false, At(45));
  EXPECT_EQ(blocked.Take({}, At(80)), absl::Milliseconds(5));
}

TEST(BlockedTimeTest, TimeInWhichThePeerTakesNoBytesDoesNotCount) {
  BlockedTime blocked;
  blocked.OnWritten(/*is_full=*/true, At(0));
  EXPECT_EQ(blocked.Take(absl::Milliseconds(80), At(100)),
            absl::Milliseconds(20));
  EXPECT_EQ(blocked.Take(absl::Milliseconds(180), At(200)),
            absl::ZeroDuration());
  EXPECT_EQ(blocked.Take(absl::Milliseconds(180), At(300)),
            absl::Milliseconds(100));
}

}  // namespace
}  // namespace nereus
