// The first frames of a connection: their bytes, and the comparison of two
// processes. HelloMismatchTest has a row for each difference.

#include "common/transport/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/hello.h"
#include "proto/data.pb.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Hello SomeHello() {
  Hello hello;
  hello.protocol_version = 9;
  hello.build = "0.1.0-test";
  hello.job = 0x8000000000000001;
  hello.epoch = 12;
  hello.model_signature = 0xfedcba9876543210;
  hello.self = PeerId::Worker(3);
  hello.incarnation = 0x123456789a;
  hello.intended = PeerId::Shard(1);
  return hello;
}

Frame WithPayload(FrameKind kind, const std::string& bytes) {
  Frame frame;
  frame.header.kind = kind;
  frame.payload = Buffer::Allocate(std::ssize(bytes));
  absl::c_copy(bytes, frame.payload.data());
  frame.header.payload_bytes = static_cast<uint32_t>(bytes.size());
  return frame;
}

// All fields of a hello that makes no offer of shared memory.
auto Fields(const Hello& hello) {
  EXPECT_FALSE(hello.shared_memory.has_value());
  return std::make_tuple(hello.protocol_version, hello.build, hello.job,
                         hello.epoch, hello.model_signature, hello.self,
                         hello.incarnation, hello.intended);
}

TEST(HandshakeTest, HelloSurvivesTheWire) {
  const Frame frame = HelloFrame(SomeHello());
  EXPECT_TRUE(CheckPayload(frame.header, frame.payload).ok());
  EXPECT_EQ(frame.header.sender, PeerId::Worker(3));
  const auto hello = ReadHello(frame);
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(Fields(*hello), Fields(SomeHello()));
}

// A hello that another build may have written; recorded from this build.
TEST(HandshakeTest, RecordedBytesAreRead) {
  const char kBytes[] =
      "\x08\x09\x12\x01"
      "b"
      "\x19\x01\0\0\0\0\0\0\x80\x20\x0c\x29\x10\x32\x54\x76\x98\xba\xdc\xfe"
      "\x32\x04\x08\x01\x10\x03\x3a\x04\x08\x02\x10\x01\x40\x90\x03";
  const auto hello = ReadHello(
      WithPayload(FrameKind::kHello, std::string(kBytes, sizeof(kBytes) - 1)));
  ASSERT_TRUE(hello.ok()) << hello.status();
  Hello recorded = SomeHello();
  recorded.build = "b";
  recorded.incarnation = 400;
  EXPECT_EQ(Fields(*hello), Fields(recorded));
}

TEST(HandshakeTest, FieldsThatNoSenderWritesAreRefused) {
  const auto with = [](const std::function<void(v1::DataHello&)>& change) {
    v1::DataHello message;
    message.mutable_self()->set_role(v1::Member::ROLE_WORKER);
    message.mutable_intended()->set_role(v1::Member::ROLE_SHARD);
    change(message);
    return WithPayload(FrameKind::kHello, message.SerializeAsString());
  };
  const struct {
    const char* text;
    Frame frame;
  } kCases[] = {
      {"must open with a hello", WithPayload(FrameKind::kPull, "")},
      {"1025 bytes, at most 1024",
       WithPayload(FrameKind::kHello, std::string(1025, 'x'))},
      {"5 bytes that are not a DataHello",
       WithPayload(FrameKind::kHello, "\x0a\x7fxyz")},
      {"self: Member.role has the unknown value 0",
       WithPayload(FrameKind::kHello, "")},
      {"self: Member.role has the unknown value 7",
       with([](v1::DataHello& hello) {
         hello.mutable_self()->set_role(static_cast<v1::Member::Role>(7));
       })},
      {"self: a member's rank is -1",
       with([](v1::DataHello& hello) { hello.mutable_self()->set_rank(-1); })},
      {"intended: a member's rank is 65536", with([](v1::DataHello& hello) {
         hello.mutable_intended()->set_rank(kRanksMax);
       })},
      {"intended: Member.role has the unknown value 0",
       with([](v1::DataHello& hello) { hello.clear_intended(); })},
  };
  for (const auto& c : kCases) {
    const auto hello = ReadHello(c.frame);
    EXPECT_THAT(hello.status(), IsInvalidArgument(c.text));
  }
}

// A hello that ends within a field, or before a field that it must have, is
// refused. Without the incarnation, its last field, a hello has the incarnation
// 0, which no process has.
TEST(HandshakeTest, EachPrefixOfAHelloIsReadWithoutHarm) {
  const Frame whole = HelloFrame(SomeHello());
  const int64_t without_incarnation = whole.payload.bytes() - (1 + 6);
  for (int64_t bytes = 0; bytes < whole.payload.bytes(); ++bytes) {
    Frame cut = whole;
    cut.payload = whole.payload.Slice(0, bytes);
    const auto hello = ReadHello(cut);
    EXPECT_EQ(hello.ok(), bytes == without_incarnation) << bytes;
    if (hello.ok()) {
      EXPECT_EQ(hello->incarnation, 0u);
    }
  }
}

TEST(HandshakeTest, RefusalReasonTellsItsKind) {
  const struct {
    std::string reason;
    absl::StatusCode code;
  } kCases[] = {
      {"", absl::StatusCode::kOk},
      {NotReadyReason("no identity"), absl::StatusCode::kUnavailable},
      {"job differs", absl::StatusCode::kFailedPrecondition},
  };
  for (const auto& c : kCases) {
    const Frame frame = RefusalFrame(PeerId::Shard(2), c.reason);
    EXPECT_TRUE(CheckPayload(frame.header, frame.payload).ok());
    EXPECT_EQ(frame.header.sender, PeerId::Shard(2));
    EXPECT_EQ(ReadRefusal(frame), c.reason);
    EXPECT_EQ(RefusalStatus(ReadRefusal(frame)).code(), c.code);
  }
  EXPECT_TRUE(RefusalStatus(ReadRefusal(GoodbyeFrame(PeerId::Shard(0)))).ok());
}

TEST(HandshakeTest, ReasonsAreShortAndSafeForLogs) {
  const Frame longest =
      RefusalFrame(PeerId::Worker(0), std::string(100000, 'x'));
  EXPECT_EQ(longest.payload.bytes(), kRefusalBytesMax);
  EXPECT_EQ(ReadRefusal(WithPayload(FrameKind::kRefusal, "a\n\x1b[2Jb\x7f")),
            "a??[2Jb?");
}

// A text that was cut, or that falsely claims to be UTF-8, may end within a
// character. It travels on in Protobuf strings, which must be valid.
TEST(HandshakeTest, TextsOfOtherProcessesBecomeAscii) {
  EXPECT_EQ(ReadRefusal(WithPayload(FrameKind::kRefusal, "caf\xc3\xa9 \xff")),
            "caf?? ?");
  Hello hello = SomeHello();
  hello.build = absl::StrCat(std::string(255, 'x'), "\xc3\xa9");
  EXPECT_EQ(ReadHello(HelloFrame(hello))->build,
            absl::StrCat(std::string(255, 'x'), "?"));
}

// The former worker 1 is no longer a member.
const Roster kRoster = {{PeerId::Worker(0), 41},
                        {PeerId::Worker(2), 42},
                        {PeerId::Worker(3), 45},
                        {PeerId::Shard(0), 43},
                        {PeerId::Shard(1), 44}};

// Hellos of shard 1 with build "ours" and of worker 2 with build "theirs".
Hello Ours() {
  Hello hello;
  hello.protocol_version = 1;
  hello.build = "ours";
  hello.job = 10;
  hello.epoch = 20;
  hello.model_signature = 30;
  hello.self = PeerId::Shard(1);
  hello.incarnation = 44;
  return hello;
}
Hello Theirs() {
  Hello hello = Ours();
  hello.build = "theirs";
  hello.self = PeerId::Worker(2);
  hello.incarnation = 42;
  hello.intended = PeerId::Shard(1);
  return hello;
}

TEST(HelloTest, EachOtherMemberIsAccepted) {
  for (const auto& [peer, incarnation] : kRoster) {
    if (peer == Ours().self) continue;
    Hello theirs = Theirs();
    theirs.self = peer;
    theirs.incarnation = incarnation;
    EXPECT_TRUE(CheckHello(Ours(), theirs, kRoster).ok()) << PeerName(peer);
  }
}

TEST(HelloTest, OtherBuildOfTheSameProtocolIsAccepted) {
  Hello theirs = Theirs();
  theirs.build = "0.0.0-elsewhere";
  EXPECT_TRUE(CheckHello(Ours(), theirs, kRoster).ok());
}

struct Mismatch {
  const char* name;
  std::function<void(Hello&)> spoil;  // Changes the hello of the peer.
  std::vector<const char*> parts;     // Parts of the expected message.
};

class HelloMismatchTest : public testing::TestWithParam<Mismatch> {};

TEST_P(HelloMismatchTest, MismatchIsRefusedWithFieldAndBothValues) {
  Hello theirs = Theirs();
  GetParam().spoil(theirs);
  const absl::Status status = CheckHello(Ours(), theirs, kRoster);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : GetParam().parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, HelloMismatchTest,
    testing::Values(
        Mismatch{"Version",
                 [](Hello& h) { h.protocol_version = 7; },
                 {"protocol version differs", "worker 2 (build theirs) has 7",
                  "shard 1 (build ours) has 1"}},
        Mismatch{"Job",
                 [](Hello& h) { h.job = 11; },
                 {"job differs", "worker 2 (build theirs) has 11",
                  "shard 1 (build ours) has 10"}},
        Mismatch{"Model",
                 [](Hello& h) { h.model_signature = 31; },
                 {"model signature differs", "has 31", "has 30"}},
        Mismatch{"OtherShardMeant",
                 [](Hello& h) { h.intended = PeerId::Shard(0); },
                 {"receiver differs", "has shard 0", "has shard 1"}},
        Mismatch{"OtherRoleMeant",
                 [](Hello& h) { h.intended = PeerId::Worker(1); },
                 {"receiver differs", "has worker 1", "has shard 1"}},
        Mismatch{"NoWorkerAnyMore",
                 [](Hello& h) { h.self = PeerId::Worker(1); },
                 {"shard 1 has no peer worker 1 in epoch 20"}},
        Mismatch{"ShardOutOfRange",
                 [](Hello& h) { h.self = PeerId::Shard(2); },
                 {"shard 1 has no peer shard 2 in epoch 20"}},
        Mismatch{"NegativeRank",
                 [](Hello& h) { h.self = PeerId::Worker(-1); },
                 {"shard 1 has no peer worker -1"}},
        Mismatch{"Ourselves",
                 [](Hello& h) {
                   h.self = PeerId::Shard(1);
                   h.incarnation = 44;
                 },
                 {"shard 1 has no peer shard 1"}},
        Mismatch{"ProcessBefore",
                 [](Hello& h) { h.incarnation = 7; },
                 {"another process is worker 2 now"}},
        Mismatch{"NoIncarnation",
                 [](Hello& h) { h.incarnation = 0; },
                 {"another process is worker 2 now"}}),
    [](const auto& info) { return std::string(info.param.name); });

// A process that knows an incarnation could pass for the member.
TEST(CheckHelloTest, RefusalHasNoIncarnation) {
  Hello theirs = Theirs();
  theirs.incarnation = 777001;
  const Roster roster = {{theirs.self, 777002}};
  const absl::Status refused = CheckHello(Ours(), theirs, roster);
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("777")));
}

// Either both processes will soon be in the same epoch, or the coordinator will
// tell one of them that it is no member. The handshake cannot know which.
TEST(HelloTest, OtherEpochIsNotReadyForEachPeer) {
  for (const uint64_t epoch : {19, 21}) {
    for (const PeerId peer : {PeerId::Worker(2), PeerId::Worker(77)}) {
      Hello theirs = Theirs();
      theirs.epoch = epoch;
      theirs.self = peer;
      const absl::Status status = CheckHello(Ours(), theirs, kRoster);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr(absl::StrCat(PeerName(peer), " is in epoch ", epoch)),
                HasSubstr("shard 1 in epoch 20")));
    }
  }
}

// A difference that is permanent is reported before a difference that may pass.
TEST(HelloTest, OtherEpochHidesNoOtherDifference) {
  Hello theirs = Theirs();
  theirs.epoch = 21;
  theirs.intended = PeerId::Shard(0);
  const absl::Status status = CheckHello(Ours(), theirs, kRoster);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

// An epoch can have other rows of layers than the epoch before, and so another
// signature.
TEST(HelloTest, OtherSignatureInAnotherEpochMayPass) {
  Hello theirs = Theirs();
  theirs.model_signature = 31;
  EXPECT_EQ(CheckHello(Ours(), theirs, kRoster).code(),
            absl::StatusCode::kFailedPrecondition);
  theirs.epoch = 21;
  EXPECT_EQ(CheckHello(Ours(), theirs, kRoster).code(),
            absl::StatusCode::kUnavailable);
}

// A difference of the protocol's version may explain all others, so it is
// reported first.
TEST(HelloTest, VersionIsComparedFirst) {
  Hello theirs = Theirs();
  theirs.protocol_version = 2;
  theirs.job = 99;
  theirs.self = PeerId::Worker(1000);
  const absl::Status status = CheckHello(Ours(), theirs, kRoster);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("protocol version"), HasSubstr("worker 1000")));
}

TEST(PreambleTest, PreambleIsReadBack) {
  for (const Preamble& preamble :
       {Preamble{PeerId::Shard(0), 1},
        Preamble{PeerId::Worker(65535), ~uint64_t{0}}}) {
    EXPECT_EQ(*DecodePreamble(EncodePreamble(preamble)), preamble);
  }
  EXPECT_FALSE(DecodePreamble(EncodePreamble({PeerId::Worker(-1), 1})).ok());
  EXPECT_FALSE(DecodePreamble(EncodePreamble({PeerId::Worker(65536), 1})).ok());
  // No other byte may differ.
  for (size_t i = 0; i < 12; ++i) {
    PreambleBytes bytes = EncodePreamble({PeerId::Shard(0), 1});
    bytes[i] ^= 0x10;
    EXPECT_FALSE(DecodePreamble(bytes).ok()) << i;
  }
}

}  // namespace
}  // namespace nereus
