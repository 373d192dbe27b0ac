// The links of one process to its peers, without sockets: connections are
// fakes, and time is a number.

#include "common/transport/peer_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/common/transport_contract.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const PeerId kSelf = PeerId::Worker(0);
const absl::Time kStart = absl::UnixEpoch();
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportContractTest);

class FakeConnection final : public Connection {
 public:
  explicit FakeConnection(std::string address) : address_(std::move(address)) {}

  void Send(Frame frame) override {
    EXPECT_FALSE(closed);
    sent.push_back(frame.header.layer);
  }
  void Close() override { closed = true; }
  void Abort() override { closed = aborted = true; }
  bool HasEnded() const override { return ended; }
  const std::string& address() const override { return address_; }

  std::vector<uint32_t> sent;  // Layers of the sent frames, in order.
  bool closed = false;
  bool aborted = false;
  bool ended = false;

 private:
  const std::string address_;
};

Frame FrameOf(uint32_t layer) {
  return TestFrame(kSelf, layer, TestPayload(layer, 1));
}

Hello HelloFrom(PeerId peer) {
  Hello hello = TestHello(peer);
  hello.intended = kSelf;
  return hello;
}

class PeerLinksTest : public testing::Test {
 protected:
  PeerLinksTest() { links_.SetRoster(TestHello(kSelf), TestRoster()); }

  void ConnectTo(PeerId peer, absl::Duration time,
                 absl::Duration unreachable_max = absl::InfiniteDuration()) {
    links_.Connect(peer, "host:1", {now_ + time, unreachable_max});
  }

  // Begins the attempt that must be due.
  void Dial(PeerId peer, FakeConnection& connection, bool has_more = false) {
    const auto attempts = links_.TakeAttempts(now_);
    ASSERT_THAT(attempts, SizeIs(1));
    EXPECT_EQ(attempts[0].peer, peer);
    links_.OnDialling(peer, &connection, has_more, now_);
  }

  // Accepts `connection` from `peer`.
  absl::Status Accept(PeerId peer, FakeConnection& connection) {
    const absl::Status admitted =
        links_.Admit(HelloFrom(peer), connection.address());
    if (admitted.ok()) links_.OnOpen(peer, &connection);
    return admitted;
  }

  void Fail(PeerId peer, FakeConnection& connection) {
    EXPECT_FALSE(links_
                     .OnAttemptFailed(peer, &connection,
                                      UnavailableError("refused"), now_)
                     .has_value());
  }

  PeerLinks links_{kHandshakeTimeout};
  absl::Time now_ = kStart;
};

TEST_F(PeerLinksTest, DialledLinkOpensAfterGreetingAndAnswer) {
  FakeConnection connection("host:1");
  ConnectTo(kShard0, absl::Minutes(1));
  links_.Send(kShard0, FrameOf(1));
  Dial(kShard0, connection);
  const auto greeting = links_.Greet(kShard0);
  ASSERT_TRUE(greeting.ok()) << greeting.status();
  EXPECT_EQ(greeting->preamble, (Preamble{kShard0, TestRoster().at(kShard0)}));
  EXPECT_EQ(greeting->hello.self, kSelf);
  EXPECT_EQ(greeting->hello.intended, kShard0);
  EXPECT_TRUE(links_.CheckAnswer(kShard0, HelloFrom(kShard0)).ok());
  EXPECT_THAT(connection.sent, IsEmpty());
  links_.OnOpen(kShard0, &connection);
  links_.Send(kShard0, FrameOf(2));
  EXPECT_THAT(connection.sent, ElementsAre(1, 2));
}

TEST_F(PeerLinksTest, AnswerOfOtherPeerIsRefused) {
  EXPECT_THAT(
      std::string(links_.CheckAnswer(kShard0, HelloFrom(kWorker1)).message()),
      HasSubstr("shard 0 was dialled, but worker 1 answered"));
}

TEST_F(PeerLinksTest, NothingIsDialledBeforeTheFirstRoster) {
  PeerLinks links(kHandshakeTimeout);
  links.Connect(kShard0, "host:1", {kStart + absl::Minutes(1)});
  EXPECT_THAT(links.TakeAttempts(kStart), IsEmpty());
  EXPECT_TRUE(absl::IsUnavailable(links.CheckPreamble({kSelf, 10})));
  links.SetRoster(TestHello(kSelf), TestRoster());
  EXPECT_THAT(links.TakeAttempts(kStart), SizeIs(1));
}

TEST_F(PeerLinksTest, PreambleMustNameThisProcessAndItsIncarnation) {
  EXPECT_TRUE(links_.CheckPreamble({kSelf, 10}).ok());
  EXPECT_TRUE(absl::IsUnavailable(links_.CheckPreamble({kSelf, 11})));
  EXPECT_TRUE(absl::IsFailedPrecondition(links_.CheckPreamble({kWorker1, 10})));
}

// The pause before an attempt grows from 20 ms to one second.
TEST_F(PeerLinksTest, PauseDoublesWithEachFailure) {
  ConnectTo(kShard0, absl::Minutes(10));
  absl::Duration pause = absl::Milliseconds(20);
  for (int i = 0; i < 10; ++i) {
    FakeConnection connection("host:1");
    Dial(kShard0, connection);
    Fail(kShard0, connection);
    EXPECT_EQ(links_.due_at(), now_ + pause);
    now_ += pause - absl::Nanoseconds(1);
    EXPECT_THAT(links_.TakeAttempts(now_), IsEmpty());
    now_ += absl::Nanoseconds(1);
    pause = std::min(pause * 2, absl::Seconds(1));
  }
}

// A name with several addresses counts as a single attempt, so no pause comes
// between its addresses.
TEST_F(PeerLinksTest, OtherAddressesOfANameAreDialledAtOnce) {
  ConnectTo(kShard0, absl::Minutes(10));
  FakeConnection first("host:1");
  Dial(kShard0, first, /*has_more=*/true);
  Fail(kShard0, first);
  FakeConnection second("host:1");
  Dial(kShard0, second, /*has_more=*/false);
  Fail(kShard0, second);
  EXPECT_THAT(links_.TakeAttempts(now_), IsEmpty());
}

// Links of one name share its addresses: another link may dial the last one.
TEST_F(PeerLinksTest, FailedLookUpIsRepeatedAfterAPause) {
  ConnectTo(kShard0, absl::Minutes(10));
  FakeConnection first("host:1");
  Dial(kShard0, first, /*has_more=*/true);
  Fail(kShard0, first);
  ASSERT_THAT(links_.TakeAttempts(now_), SizeIs(1));
  links_.OnLookingUp(kShard0);
  links_.OnLookedUp("host:1", UnavailableError("no answer"), now_);
  EXPECT_THAT(links_.TakeAttempts(now_), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(links_.TakeAttempts(now_), SizeIs(1));
}

TEST_F(PeerLinksTest, AttemptWithoutSocketIsRepeatedAfterAPause) {
  ConnectTo(kShard0, absl::Minutes(10));
  ASSERT_THAT(links_.TakeAttempts(now_), SizeIs(1));
  links_.OnNoSocket(kShard0, UnavailableError("no route"), now_);
  EXPECT_THAT(links_.TakeAttempts(now_), IsEmpty());
  EXPECT_EQ(links_.due_at(), now_ + absl::Milliseconds(20));
}

TEST_F(PeerLinksTest, LinkIsGivenUpAtItsDeadlineWithTheLastError) {
  ConnectTo(kShard0, absl::Milliseconds(30));
  links_.Send(kShard0, FrameOf(1));
  FakeConnection connection("host:1");
  Dial(kShard0, connection);
  Fail(kShard0, connection);
  links_.TakeAttempts(now_);
  EXPECT_FALSE(links_.NextLoss(now_).has_value());
  now_ += absl::Milliseconds(30);
  EXPECT_LE(links_.due_at(), now_);
  const auto loss = links_.NextLoss(now_);
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->peer, kShard0);
  EXPECT_EQ(loss->reason,
            UnavailableError("cannot connect to host:1: not reached "
                             "before the deadline: refused"));
  EXPECT_FALSE(links_.NextLoss(now_).has_value());
  FakeConnection later("other:2");
  ASSERT_TRUE(Accept(kShard0, later).ok());
  EXPECT_THAT(later.sent, IsEmpty()) << "frames of the lost link are dropped";
}

// An owner that was busy beyond the deadline must not lose its peer untried.
TEST_F(PeerLinksTest, AttemptIsMadeAfterThePassedDeadline) {
  ConnectTo(kShard0, absl::Milliseconds(30));
  now_ += absl::Seconds(1);
  EXPECT_FALSE(links_.NextLoss(now_).has_value());
  FakeConnection connection("host:1");
  Dial(kShard0, connection);
  EXPECT_EQ(links_.due_at(), now_ + absl::Milliseconds(200));
  Fail(kShard0, connection);
  EXPECT_TRUE(links_.NextLoss(now_ + absl::Seconds(1)).has_value());
}

TEST_F(PeerLinksTest, UnreachablePeerIsGivenUpBeforeTheDeadline) {
  ConnectTo(kWorker1, absl::Minutes(1), absl::Seconds(5));
  const absl::Time end = now_ + absl::Seconds(5);
  std::optional<PeerLinks::Loss> loss;
  while (!loss.has_value() && now_ < end + absl::Seconds(2)) {
    FakeConnection connection("host:1");
    Dial(kWorker1, connection);
    Fail(kWorker1, connection);
    loss = links_.NextLoss(now_);
    EXPECT_EQ(loss.has_value(), now_ >= end);
    links_.TakeAttempts(now_);
    // A new epoch connects again to the same process.
    if (now_ < kStart + absl::Seconds(3)) {
      ConnectTo(kWorker1, absl::Minutes(1), absl::Seconds(5));
    } else if (!loss.has_value()) {
      now_ = links_.due_at();
    }
    now_ += absl::Milliseconds(1);
  }
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->reason,
            UnavailableError("cannot connect to host:1: reached no process "
                             "there for 5s: refused"));
}

// Both attempts of this owner fail, but one of them is no proof.
TEST_F(PeerLinksTest, SingleFailureDoesNotMakeAPeerUnreachable) {
  ConnectTo(kWorker1, absl::Minutes(1), absl::Seconds(5));
  FakeConnection connection("host:1");
  Dial(kWorker1, connection);
  now_ += absl::Seconds(7);  // The owner was busy.
  Fail(kWorker1, connection);
  EXPECT_FALSE(links_.NextLoss(now_).has_value());
}

// A process that listens lives, even if it does not answer for long.
TEST_F(PeerLinksTest, PeerThatListensIsNotUnreachable) {
  ConnectTo(kWorker1, absl::Minutes(1), absl::Seconds(5));
  for (int i = 0; i < 5; ++i) {
    FakeConnection refused("host:1");
    Dial(kWorker1, refused);
    Fail(kWorker1, refused);
    now_ += absl::Seconds(1);
    FakeConnection connection("host:1");
    Dial(kWorker1, connection);
    EXPECT_TRUE(links_.Greet(kWorker1).ok());
    now_ += absl::Seconds(9);
    EXPECT_FALSE(links_.NextLoss(now_).has_value());
    EXPECT_FALSE(connection.closed) << "it has the handshake timeout";
    now_ += absl::Seconds(1);
    EXPECT_FALSE(links_.NextLoss(now_).has_value());
    EXPECT_TRUE(connection.closed);
    now_ += absl::Seconds(1);
  }
}

// Greet gives the attempt the handshake timeout, but not more than the link
// has.
TEST_F(PeerLinksTest, GreetedPeerIsGivenUpAtTheDeadlineOfTheLink) {
  ConnectTo(kWorker1, absl::Seconds(3), absl::Seconds(1));
  FakeConnection connection("host:1");
  Dial(kWorker1, connection);
  EXPECT_TRUE(links_.Greet(kWorker1).ok());
  now_ += absl::Seconds(3) - absl::Milliseconds(1);
  EXPECT_FALSE(links_.NextLoss(now_).has_value());
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(links_.NextLoss(now_).has_value());
  EXPECT_TRUE(connection.closed);
}

// A firewall drops what it does not let through, and nothing answers.
TEST_F(PeerLinksTest, SilentAttemptsMakeAPeerUnreachable) {
  ConnectTo(kWorker1, absl::Minutes(1), absl::Seconds(5));
  FakeConnection first("host:1");
  Dial(kWorker1, first);
  now_ += absl::Seconds(5);
  EXPECT_FALSE(links_.NextLoss(now_).has_value());
  EXPECT_TRUE(first.closed);
  now_ += absl::Milliseconds(20);
  FakeConnection second("host:1");
  Dial(kWorker1, second);
  now_ += absl::Seconds(5);
  ASSERT_TRUE(links_.NextLoss(now_).has_value());
}

// A FailedPrecondition cannot pass with time, so no further attempt is made.
TEST_F(PeerLinksTest, RefusalThatWillNotPassGivesTheLinkUp) {
  ConnectTo(kShard0, absl::Minutes(1));
  FakeConnection connection("host:1");
  Dial(kShard0, connection);
  const auto loss = links_.OnAttemptFailed(
      kShard0, &connection, FailedPreconditionError("wrong job"), now_);
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->reason,
            FailedPreconditionError("cannot connect to host:1: wrong job"));
  EXPECT_THAT(links_.TakeAttempts(now_ + absl::Minutes(1)), IsEmpty());
}

// A slow name server must not block a link with a new address. Its late
// answer must not end the newer attempt.
TEST_F(PeerLinksTest, LookUpIsAwaitedUnlessTheAddressChanges) {
  ConnectTo(kShard0, absl::Minutes(1));
  ASSERT_THAT(links_.TakeAttempts(now_), SizeIs(1));
  links_.OnLookingUp(kShard0);
  ConnectTo(kShard0, absl::Minutes(1));
  EXPECT_THAT(links_.TakeAttempts(now_), IsEmpty());
  links_.OnLookedUp("host:1", absl::OkStatus(), now_);
  ASSERT_THAT(links_.TakeAttempts(now_), SizeIs(1));
  links_.OnLookingUp(kShard0);
  links_.Connect(kShard0, "10.0.0.1:1", {now_ + absl::Minutes(1)});
  const auto attempts = links_.TakeAttempts(now_);
  ASSERT_THAT(attempts, SizeIs(1));
  EXPECT_EQ(attempts[0].address, "10.0.0.1:1");
  links_.OnNoSocket(kShard0, UnavailableError("no route"), now_);
  links_.OnLookedUp("host:1", UnavailableError("no such name"), now_);
  now_ += absl::Minutes(1);
  EXPECT_THAT(std::string(links_.NextLoss(now_)->reason.message()),
              HasSubstr("no route"));
}

// The admitted connection may end before it opens.
TEST_F(PeerLinksTest, AdmittedPeerThatNeverOpensIsDialledAgain) {
  ConnectTo(kShard0, absl::Minutes(1));
  FakeConnection attempt("host:1");
  Dial(kShard0, attempt);
  ASSERT_TRUE(links_.Admit(HelloFrom(kShard0), "other:2").ok());
  EXPECT_TRUE(attempt.closed);
  EXPECT_THAT(links_.TakeAttempts(now_), SizeIs(1));
}

TEST_F(PeerLinksTest, SecondConnectionOfAPeerIsRefused) {
  FakeConnection first("first:1");
  ASSERT_TRUE(Accept(kShard0, first).ok());
  FakeConnection second("second:2");
  const absl::Status refused = Accept(kShard0, second);
  EXPECT_TRUE(absl::IsAlreadyExists(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("first:1"));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("shard 0 is connected to worker 0 already"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("second:2"));
  first.ended = true;
  EXPECT_TRUE(absl::IsUnavailable(Accept(kShard0, second)))
      << "the peer may have restarted, and shall come again";
  EXPECT_TRUE(links_.OnLost(kShard0, &first));
  EXPECT_FALSE(links_.OnLost(kShard0, &first));
  EXPECT_TRUE(Accept(kShard0, second).ok());
}

TEST_F(PeerLinksTest, StopKeepsOnlyAttemptsForWhichFramesWait) {
  FakeConnection idle("host:1");
  FakeConnection wanted("host:1");
  ConnectTo(kShard0, absl::Minutes(1));
  Dial(kShard0, idle);
  ConnectTo(kWorker1, absl::Minutes(1));
  links_.Send(kWorker1, FrameOf(1));
  Dial(kWorker1, wanted);
  links_.Stop();
  EXPECT_TRUE(idle.closed);
  EXPECT_FALSE(wanted.closed);
  EXPECT_TRUE(links_.HasFramesToDial());
  links_.Send(kWorker1, FrameOf(2));
  links_.OnOpen(kWorker1, &wanted);
  EXPECT_THAT(wanted.sent, ElementsAre(1));
  EXPECT_FALSE(links_.HasFramesToDial());
  EXPECT_TRUE(absl::IsUnavailable(links_.Admit(HelloFrom(kShard0), "a:1")));
}

// The release of a payload may call back into the links.
TEST_F(PeerLinksTest, DroppedFramesMaySendOthers) {
  float value = 0;
  const auto bytes = static_cast<int64_t>(sizeof(value));
  links_.Send(kShard0,
              TestFrame(kSelf, 1, Buffer::Borrow(&value, bytes, [this] {
                          links_.Send(kShard0, FrameOf(2));
                          links_.Send(kWorker1, FrameOf(3));
                        })));
  links_.Disconnect(kShard0);
  FakeConnection connection("host:1");
  ASSERT_TRUE(Accept(kShard0, connection).ok());
  EXPECT_THAT(connection.sent, ElementsAre(2));
}

// Makes random calls that a correct owner may make, and compares the links with
// a model of their rules.
class RandomLinks {
 public:
  explicit RandomLinks(uint64_t seed) : random_(seed) {
    links_.SetRoster(TestHello(kSelf), TestRoster());
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      now_ += absl::Milliseconds(static_cast<int64_t>(random_.Below(100)));
      RunTimers();
      Step(kPeers[random_.Below(std::size(kPeers))]);
      Check();
    }
  }

 private:
  static constexpr PeerId kPeers[] = {{Role::kWorker, 1},
                                      {Role::kWorker, 2},
                                      {Role::kShard, 0},
                                      {Role::kShard, 1}};

  struct Peer {
    FakeConnection* attempt = nullptr;  // The attempt without an answer so far.
    absl::Time attempt_begins;
    absl::Time attempt_ends;  // Latest end of the attempt.
    FakeConnection* open = nullptr;
    std::vector<uint32_t> waiting;  // Frames that wait for a connection.
    bool connects = false;          // True from Connect to the end of the link.
    absl::Time deadline;
  };

  FakeConnection* Make() {
    connections_.push_back(std::make_unique<FakeConnection>("host:1"));
    return connections_.back().get();
  }

  void Lost(PeerId id) {
    Peer& peer = peers_[id];
    peer.waiting.clear();
    peer.connects = false;
    peer.attempt = peer.open = nullptr;
  }

  void Opened(PeerId id, FakeConnection* connection) {
    Peer& peer = peers_[id];
    links_.OnOpen(id, connection);
    EXPECT_EQ(connection->sent, peer.waiting) << "in order, and all";
    peer.waiting.clear();
    peer.attempt = nullptr;
    peer.connects = false;
    peer.open = connection;
  }

  static void LimitAttempt(Peer& peer) {
    peer.attempt_ends = std::min(
        peer.attempt_begins + kHandshakeTimeout,
        std::max(peer.deadline, peer.attempt_begins + absl::Milliseconds(200)));
  }

  void RunTimers() {
    while (const auto loss = links_.NextLoss(now_)) {
      const Peer& peer = peers_[loss->peer];
      EXPECT_TRUE(peer.connects);
      EXPECT_GE(now_, peer.deadline);
      Lost(loss->peer);
    }
    for (auto& [id, peer] : peers_) {
      if (peer.attempt == nullptr) continue;
      EXPECT_EQ(peer.attempt->closed, now_ >= peer.attempt_ends);
      if (peer.attempt->closed) peer.attempt = nullptr;
    }
    for (const auto& attempt : links_.TakeAttempts(now_)) {
      Peer& peer = peers_[attempt.peer];
      EXPECT_TRUE(peer.connects);
      EXPECT_EQ(peer.attempt, nullptr);
      EXPECT_EQ(peer.open, nullptr);
      switch (random_.Below(3)) {
        case 0:
          links_.OnNoSocket(attempt.peer, UnavailableError("none"), now_);
          break;
        case 1:
          links_.OnLookingUp(attempt.peer);
          break;
        default:
          peer.attempt = Make();
          peer.attempt_begins = now_;
          LimitAttempt(peer);
          links_.OnDialling(attempt.peer, peer.attempt, random_.Chance(0.5),
                            now_);
      }
    }
    EXPECT_GT(links_.due_at(), now_) << "all that was due is done";
  }

  void Step(PeerId id) {
    Peer& peer = peers_[id];
    switch (random_.Below(9)) {
      case 0:
        links_.Connect(id, "host:1", {now_ + absl::Milliseconds(500)});
        if (peer.open != nullptr) break;
        peer.connects = true;
        peer.deadline = now_ + absl::Milliseconds(500);
        break;
      case 1:
        links_.Disconnect(id);
        for (FakeConnection* each : {peer.attempt, peer.open}) {
          if (each == nullptr) continue;
          EXPECT_TRUE(each->aborted);
          EXPECT_FALSE(links_.OnLost(id, each)) << "the owner knows";
        }
        Lost(id);
        break;
      case 2:
        links_.OnLookedUp(
            "host:1",
            random_.Chance(0.5) ? absl::OkStatus() : UnavailableError("none"),
            now_);
        break;
      case 3:
        if (peer.attempt == nullptr) break;
        peer.attempt->Close();
        if (const auto loss = links_.OnAttemptFailed(
                id, peer.attempt,
                random_.Chance(0.5) ? UnavailableError("later")
                                    : FailedPreconditionError("never"),
                now_);
            loss.has_value()) {
          EXPECT_TRUE(absl::IsFailedPrecondition(loss->reason));
          Lost(id);
        }
        peer.attempt = nullptr;
        break;
      case 4:
        if (peer.attempt == nullptr) break;
        EXPECT_TRUE(links_.Greet(id).ok());
        LimitAttempt(peer);  // The link may have other limits since the dial.
        if (random_.Chance(0.5)) Opened(id, peer.attempt);
        break;
      case 5: {
        const absl::Status admitted = links_.Admit(HelloFrom(id), "other:2");
        EXPECT_EQ(admitted.ok(), peer.open == nullptr);
        if (!admitted.ok()) break;
        EXPECT_TRUE(peer.attempt == nullptr || peer.attempt->closed);
        peer.attempt = nullptr;
        if (random_.Chance(0.8)) Opened(id, Make());
        break;
      }
      case 6:
        if (peer.open == nullptr) break;
        peer.open->Close();
        EXPECT_TRUE(links_.OnLost(id, peer.open));
        Lost(id);
        break;
      default:
        links_.Send(id, FrameOf(++layer_));
        if (peer.open != nullptr) {
          EXPECT_EQ(peer.open->sent.back(), layer_);
        } else {
          peer.waiting.push_back(layer_);
        }
    }
  }

  void Check() {
    size_t expected = 0;
    for (const auto& [id, peer] : peers_) {
      EXPECT_FALSE(peer.attempt != nullptr && peer.open != nullptr);
      expected += (peer.attempt != nullptr) + (peer.open != nullptr);
    }
    size_t alive = 0;
    for (const auto& connection : connections_) alive += !connection->closed;
    EXPECT_EQ(alive, expected) << "one connection per peer";
  }

  Random random_;
  PeerLinks links_{kHandshakeTimeout};
  absl::Time now_ = kStart;
  std::map<PeerId, Peer> peers_;
  std::vector<std::unique_ptr<FakeConnection>> connections_;
  uint32_t layer_ = 0;  // Layer of the last frame.
};

TEST(PeerLinksRandomTest, EachPeerHasASingleConnectionAndOrderedFrames) {
  for (const uint64_t seed : TestSeeds(200)) {
    SCOPED_TRACE(ReplayHint(seed));
    RandomLinks(seed).Run(500);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace nereus
