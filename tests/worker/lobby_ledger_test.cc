#include "worker/machine/lobby_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LobbyLedger Process1Of2() {
  LobbyGather process;
  process.number = 1;
  process.count = 2;
  return LobbyLedger(process);
}

TEST(LobbyLedgerTest, GatheringsAreNumbered) {
  LobbyLedger ledger = Process1Of2();
  for (int32_t index = 0; index < 3; ++index) {
    const auto message = ledger.Begin("value");
    ASSERT_TRUE(message.ok() && message->has_value());
    EXPECT_EQ((*message)->index, index);
    EXPECT_EQ((*message)->number, 1);
    EXPECT_EQ((*message)->value, "value");
    EXPECT_FALSE(ledger.is_done());
    EXPECT_TRUE(ledger.OnMessage(LobbyGathered{index, {"a", "b"}, ""}));
    ASSERT_TRUE(ledger.is_done());
    EXPECT_THAT(*ledger.Take(), ElementsAre("a", "b"));
    EXPECT_FALSE(ledger.is_done());
  }
}

TEST(LobbyLedgerTest, FirstValueCountsUntilTheAnswer) {
  LobbyLedger ledger = Process1Of2();
  ASSERT_TRUE(ledger.Begin("first").ok());
  const auto again = ledger.Begin("second");
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->has_value());
  EXPECT_EQ(ledger.OnSession().value, "first");
}

TEST(LobbyLedgerTest, ErrorOfTheAnswerEndsTheGatheringAndNotTheLobby) {
  LobbyLedger ledger = Process1Of2();
  ASSERT_TRUE(ledger.Begin("a").ok());
  EXPECT_TRUE(ledger.OnMessage(LobbyGathered{0, {}, "too many bytes"}));
  const absl::Status failed = ledger.Take().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failed.message(), "too many bytes");
  EXPECT_EQ((*ledger.Begin("b"))->index, 1);
}

TEST(LobbyLedgerTest, RefusalEndsTheLobby) {
  LobbyLedger ledger = Process1Of2();
  ASSERT_TRUE(ledger.Begin("a").ok());
  EXPECT_FALSE(ledger.OnMessage(Refusal{OutOfRangeError("is finished")}));
  ASSERT_TRUE(ledger.is_done());
  EXPECT_EQ(ledger.Take().status().code(), absl::StatusCode::kOutOfRange);
  ledger.End(UnavailableError("gone"));
  EXPECT_EQ(ledger.Begin("b").status().code(), absl::StatusCode::kOutOfRange);
}

// The answer came before the job failed, and the caller asks for it later.
TEST(LobbyLedgerTest, AnswerIsNotLostByALaterRefusal) {
  LobbyLedger ledger = Process1Of2();
  ASSERT_TRUE(ledger.Begin("a").ok());
  ledger.OnMessage(LobbyGathered{0, {"", "a"}, ""});
  ledger.OnMessage(Refusal{AbortedError("failed")});
  EXPECT_THAT(*ledger.Take(), ElementsAre("", "a"));
}

TEST(LobbyLedgerTest, NoticesSayWhatTheGatheringWaitsFor) {
  LobbyLedger ledger = Process1Of2();
  ASSERT_TRUE(ledger.Begin("a").ok());
  EXPECT_EQ(ledger.waits_for(), "");
  EXPECT_TRUE(ledger.OnMessage(Waiting{"process 0"}));
  EXPECT_EQ(ledger.waits_for(), "process 0");
  ledger.OnMessage(LobbyGathered{0, {"", ""}, ""});
  ASSERT_TRUE(ledger.Take().ok());
  ASSERT_TRUE(ledger.Begin("b").ok());
  EXPECT_EQ(ledger.waits_for(), "");
}

TEST(LobbyLedgerTest, LimitsAreChecked) {
  LobbyLedger ledger = Process1Of2();
  const absl::Status too_long =
      ledger.Begin(std::string(kGatheredBytesMax + 1, 'x')).status();
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(too_long.message(), HasSubstr("65537 bytes"));
  for (int32_t index = 0; index < kLobbyGatheringsMax; ++index) {
    ASSERT_TRUE(ledger.Begin("").ok());
    ledger.OnMessage(LobbyGathered{index, {"", ""}, ""});
    ASSERT_TRUE(ledger.Take().ok());
  }
  EXPECT_EQ(ledger.Begin("").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace nereus
