#include "common/protocol/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr JobShape kShape{/*workers=*/3, /*shards=*/2};

// Shard 1 of build "ours" and worker 2 of build "theirs".
Hello Ours() { return {1, "ours", 10, 20, 30, PeerId::Shard(1), {}}; }
Hello Theirs() {
  return {1, "theirs", 10, 20, 30, PeerId::Worker(2), PeerId::Shard(1)};
}

TEST(HelloTest, PeersOfOneJobAreAccepted) {
  const absl::Status status = CheckHello(Ours(), Theirs(), kShape);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(HelloTest, EveryOtherMemberIsAccepted) {
  for (const PeerId peer : {PeerId::Worker(0), PeerId::Worker(1),
                            PeerId::Worker(2), PeerId::Shard(0)}) {
    Hello theirs = Theirs();
    theirs.self = peer;
    EXPECT_TRUE(CheckHello(Ours(), theirs, kShape).ok()) << PeerName(peer);
  }
}

TEST(HelloTest, AnotherBuildOfTheSameProtocolIsAccepted) {
  Hello theirs = Theirs();
  theirs.build = "0.0.0-elsewhere";
  EXPECT_TRUE(CheckHello(Ours(), theirs, kShape).ok());
}

struct Mismatch {
  const char* name;
  std::function<void(Hello&)> spoil;  // Theirs.
  std::vector<const char*> parts;     // Of the message.
};

class HelloMismatchTest : public testing::TestWithParam<Mismatch> {};

TEST_P(HelloMismatchTest, IsRefusedWithTheFieldAndBothValues) {
  Hello theirs = Theirs();
  GetParam().spoil(theirs);
  const absl::Status status = CheckHello(Ours(), theirs, kShape);
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
        Mismatch{"Epoch",
                 [](Hello& h) { h.epoch = 21; },
                 {"epoch differs", "has 21", "has 20"}},
        Mismatch{"Model",
                 [](Hello& h) { h.model_signature = 31; },
                 {"model signature differs", "has 31", "has 30"}},
        Mismatch{"OtherShardMeant",
                 [](Hello& h) { h.intended = PeerId::Shard(0); },
                 {"receiver differs", "has shard 0", "has shard 1"}},
        Mismatch{"OtherRoleMeant",
                 [](Hello& h) { h.intended = PeerId::Worker(1); },
                 {"receiver differs", "has worker 1", "has shard 1"}},
        Mismatch{"WorkerOutOfRange",
                 [](Hello& h) { h.self = PeerId::Worker(3); },
                 {"shard 1 has no peer worker 3", "3 workers", "2 shards"}},
        Mismatch{"ShardOutOfRange",
                 [](Hello& h) { h.self = PeerId::Shard(2); },
                 {"shard 1 has no peer shard 2", "3 workers", "2 shards"}},
        Mismatch{"NegativeRank",
                 [](Hello& h) { h.self = PeerId::Worker(-1); },
                 {"shard 1 has no peer worker -1"}},
        Mismatch{"Ourselves",
                 [](Hello& h) { h.self = PeerId::Shard(1); },
                 {"shard 1 has no peer shard 1"}}),
    [](const auto& info) { return std::string(info.param.name); });

// Of several differences the protocol's version explains the others.
TEST(HelloTest, TheVersionIsComparedFirst) {
  Hello theirs = Theirs();
  theirs.protocol_version = 2;
  theirs.job = 99;
  theirs.self = PeerId::Worker(1000);
  const absl::Status status = CheckHello(Ours(), theirs, kShape);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("protocol version"), HasSubstr("worker 1000")));
}

}  // namespace
}  // namespace nereus
