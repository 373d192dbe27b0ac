#include "common/protocol/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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

TEST(HelloTest, PeersOfTheSameJobAreAccepted) {
  const absl::Status status = CheckHello(Ours(), Theirs(), kRoster);
  EXPECT_TRUE(status.ok()) << status;
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

}  // namespace
}  // namespace nereus
