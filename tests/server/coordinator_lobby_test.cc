// Processes that were started together gather before they join.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/version.h"
#include "server/coordinator/job_state.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Sessions of processes 0, 1 and 2 in the lobby.
constexpr SessionId kFirst = 30;
constexpr SessionId kSecond = 31;
constexpr SessionId kThird = 32;
constexpr SessionId kOther = 40;

LobbyGather ValueOf(int32_t number, const std::string& value, int32_t index = 0,
                    int32_t count = 3) {
  return {
      kProtocolVersion,     "0.1.0", "training", number, count, index, value,
      uint64_t{10} + number};
}

// Returns the value of another process that has the same number.
LobbyGather ValueOfOther(int32_t number, const std::string& value) {
  LobbyGather gather = ValueOf(number, value);
  gather.incarnation += 100;
  return gather;
}

// A job of three workers and one server.
class CoordinatorLobbyTest : public testing::Test {
 protected:
  // The other two processes have sent values.
  void LetTwoGather() {
    driver_.Say(kSecond, ValueOf(1, "b"));
    driver_.Say(kThird, ValueOf(2, "c"));
  }
  // All three gather for the first time. Returns what the last one starts.
  Reaction LetAllGather() {
    LetTwoGather();
    return driver_.Say(kFirst, ValueOf(0, "a"));
  }

  CoordinatorDriver driver_{OptionsOf(3, 1, /*max_workers=*/4)};
};

TEST_F(CoordinatorLobbyTest, LastValueAnswersAllInTheOrderOfTheNumbers) {
  LetTwoGather();
  const Reaction last = driver_.Say(kFirst, ValueOf(0, "a"));
  const LobbyGathered expected = {0, {"a", "b", "c"}, ""};
  for (const SessionId session : {kFirst, kSecond, kThird}) {
    EXPECT_EQ(Heard<LobbyGathered>(last, session), expected);
  }
  EXPECT_THAT(last.order, ElementsAre("save", "send", "send", "send"));
  EXPECT_THAT(last.ended, IsEmpty());
}

TEST_F(CoordinatorLobbyTest, ProcessesGatherAgain) {
  LetAllGather();
  driver_.Say(kFirst, ValueOf(0, "", 1));
  driver_.Say(kSecond, ValueOf(1, "", 1));
  const Reaction last = driver_.Say(kThird, ValueOf(2, "z", 1));
  EXPECT_EQ(Heard<LobbyGathered>(last, kFirst),
            (LobbyGathered{1, {"", "", "z"}, ""}));
}

TEST_F(CoordinatorLobbyTest, RepeatedValueIsAnsweredAgain) {
  LetAllGather();
  const Reaction again = driver_.Say(kSecond, ValueOf(1, "b"));
  EXPECT_EQ(Heard<LobbyGathered>(again, kSecond).values,
            (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_THAT(again.sent, SizeIs(1));
}

TEST_F(CoordinatorLobbyTest, ProcessThatIsStartedAgainReplacesItsValue) {
  LetTwoGather();
  driver_.Break(kThird);
  driver_.Say(kOther, ValueOfOther(2, "again"));
  const Reaction last = driver_.Say(kFirst, ValueOf(0, "a"));
  EXPECT_THAT(Heard<LobbyGathered>(last, kOther).values,
              ElementsAre("a", "b", "again"));
  EXPECT_THAT(HearersOf<LobbyGathered>(last),
              ElementsAre(kFirst, kSecond, kOther));
}

TEST_F(CoordinatorLobbyTest, ValueOfADeadProcessStillCounts) {
  LetTwoGather();
  driver_.Break(kThird);
  const Reaction last = driver_.Say(kFirst, ValueOf(0, "a"));
  EXPECT_THAT(Heard<LobbyGathered>(last, kFirst).values,
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(HearersOf<LobbyGathered>(last), ElementsAre(kFirst, kSecond));
}

TEST_F(CoordinatorLobbyTest, LateProcessGetsWhatTheFirstOnesGot) {
  LetAllGather();
  driver_.Say(kFirst, ValueOf(0, "d", 1));
  driver_.Say(kSecond, ValueOf(1, "e", 1));
  driver_.Break(kThird);
  EXPECT_THAT(
      Heard<LobbyGathered>(driver_.Say(kOther, ValueOf(2, "other")), kOther)
          .values,
      ElementsAre("a", "b", "c"));
  const Reaction last = driver_.Say(kOther, ValueOf(2, "f", 1));
  EXPECT_THAT(Heard<LobbyGathered>(last, kOther).values,
              ElementsAre("d", "e", "f"));
}

TEST_F(CoordinatorLobbyTest, AnswersOutliveTheStartOfTheJob) {
  LetAllGather();
  for (const SessionId session : {kFirst, kSecond, kThird}) {
    driver_.Break(session);
  }
  const Reaction begins = driver_.Gather();
  EXPECT_THAT(begins.saved.back().lobby, SizeIs(1));
  EXPECT_THAT(
      Heard<LobbyGathered>(driver_.Say(kOther, ValueOf(1, "x")), kOther).values,
      ElementsAre("a", "b", "c"));
}

TEST_F(CoordinatorLobbyTest, RestartedCoordinatorGivesTheSameAnswers) {
  const Reaction last = LetAllGather();
  ASSERT_THAT(last.saved, SizeIs(1));
  const auto state = DecodeState(EncodeState(last.saved[0]));
  ASSERT_TRUE(state.ok()) << state.status();
  driver_.Restart(*state);
  EXPECT_EQ(driver_.state(), JobState::kWaiting);
  EXPECT_THAT(
      Heard<LobbyGathered>(driver_.Say(kOther, ValueOf(1, "b")), kOther).values,
      ElementsAre("a", "b", "c"));
  // Values without an answer are sent again, and the job begins as usual.
  driver_.Say(kOther, ValueOf(1, "e", 1));
  driver_.Say(kOther + 1, ValueOf(0, "d", 1));
  EXPECT_THAT(
      Heard<LobbyGathered>(driver_.Say(kOther + 2, ValueOf(2, "f", 1)), kOther)
          .values,
      ElementsAre("d", "e", "f"));
  EXPECT_THAT(HearersOf<EpochStart>(driver_.Gather()), SizeIs(4));
}

TEST_F(CoordinatorLobbyTest, CoordinatorThatLostTheAnswersSaysSo) {
  const absl::Status refused =
      RefusalIn(driver_.Say(kFirst, ValueOf(0, "a", 2)), kFirst);
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(refused.message(), HasSubstr("process 0 has gathered 2 times"));
  EXPECT_THAT(refused.message(), HasSubstr("knows of 0 times"));
}

// ---- Waits.

TEST_F(CoordinatorLobbyTest, NoticesNameTheMissingProcesses) {
  driver_.Say(kSecond, ValueOf(1, "b"));
  EXPECT_THAT(driver_.Pass(absl::Seconds(5)).sent, IsEmpty());
  EXPECT_EQ(Heard<Waiting>(driver_.Pass(absl::Seconds(1)), kSecond).text,
            "a gathering before the job begins waits for the processes 0 and 2 "
            "of 3");
  EXPECT_THAT(driver_.Pass(absl::Seconds(4)).sent, IsEmpty());
  driver_.Say(kThird, ValueOf(2, "c"));
  EXPECT_EQ(Heard<Waiting>(driver_.Pass(absl::Seconds(2)), kSecond).text,
            "a gathering before the job begins waits for process 0 of 3");
}

TEST_F(CoordinatorLobbyTest, NoticesSayWhichProcessIsGoneOrHasJoined) {
  LetAllGather();
  driver_.Say(kFirst, ValueOf(0, "d", 1));
  driver_.Break(kSecond);
  driver_.Break(kThird);
  JoinRequest joins = WorkerRequest("w");
  joins.launch_rank = 2;
  driver_.Say(kWorker0, joins);
  EXPECT_EQ(Heard<Waiting>(driver_.Pass(absl::Seconds(6)), kFirst).text,
            "a gathering before the job begins waits for the processes 1 (its "
            "connection has ended) and 2 (it has joined the job) of 3");
}

TEST(CoordinatorLobbySizeTest, NoticesNameEightProcesses) {
  CoordinatorDriver driver(OptionsOf(12, 1));
  driver.Say(kFirst, ValueOf(3, "", 0, 12));
  EXPECT_EQ(Heard<Waiting>(driver.Pass(absl::Seconds(6)), kFirst).text,
            "a gathering before the job begins waits for the processes 0, 1, "
            "2, 4, 5, 6, 7, 8 and 3 others of 12");
}

TEST_F(CoordinatorLobbyTest, ProcessInTheLobbyIsNoMember) {
  driver_.Say(kFirst, ValueOf(0, "a"));
  EXPECT_THAT(driver_.Status().members, IsEmpty());
  EXPECT_TRUE(driver_.coordinator().everyone_knows());
  // A process in the lobby has no lease, and needs no heartbeats.
  EXPECT_THAT(driver_.Pass(absl::Minutes(5)).ended, IsEmpty());
}

// ---- Refusals.

TEST_F(CoordinatorLobbyTest, OtherCountIsRefusedWithBothNumbers) {
  const absl::Status refused =
      RefusalIn(driver_.Say(kFirst, ValueOf(1, "", 0, 4)), kFirst);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("process 1 was started as one of 4 "
                                           "processes, and job training begins "
                                           "with 3 workers"));
}

TEST_F(CoordinatorLobbyTest, WrongValuesAreRefused) {
  const std::string longest(kGatheredBytesMax, 'x');
  LobbyGather other_job = ValueOf(0, "");
  other_job.job = "inference";
  LobbyGather unknown = ValueOf(0, "");
  unknown.incarnation = 0;
  LobbyGather other_version = ValueOf(0, "");
  other_version.protocol_version = kProtocolVersion - 1;
  const struct {
    LobbyGather gather;
    absl::StatusCode code;
    const char* text;
  } cases[] = {
      {ValueOf(0, longest + "x"), absl::StatusCode::kInvalidArgument,
       "process 0 gathers a value of 65537 bytes, must be at most 65536"},
      {ValueOf(3, ""), absl::StatusCode::kInvalidArgument,
       "process 3 is none of 3 processes"},
      {ValueOf(-1, ""), absl::StatusCode::kInvalidArgument,
       "process -1 is none of 3 processes"},
      {unknown, absl::StatusCode::kInvalidArgument, "incarnation"},
      {other_job, absl::StatusCode::kNotFound, "asks for job \"inference\""},
      {other_version, absl::StatusCode::kFailedPrecondition,
       "protocol version differs"},
  };
  SessionId session = kOther;
  for (const auto& each : cases) {
    ++session;
    const absl::Status refused =
        RefusalIn(driver_.Say(session, each.gather), session);
    EXPECT_EQ(refused.code(), each.code);
    EXPECT_THAT(refused.message(), HasSubstr(each.text));
  }
  EXPECT_THAT(driver_.Say(kOther, ValueOf(0, longest)).ended, IsEmpty());
}

TEST_F(CoordinatorLobbyTest, SecondProcessWithANumberRefusesTheFirst) {
  driver_.Say(kFirst, ValueOf(0, "a"));
  const Reaction second = driver_.Say(kOther, ValueOfOther(0, "x"));
  const absl::Status refused = RefusalIn(second, kFirst);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(refused.message(),
              HasSubstr("another process says that it is process 0 of 3"));
  EXPECT_THAT(HearersOf<Refusal>(second), ElementsAre(kFirst));
  // The coordinator ignores a message under way in the session that has ended.
  EXPECT_THAT(driver_.Say(kFirst, ValueOf(0, "b")).sent, IsEmpty());
}

TEST_F(CoordinatorLobbyTest, NewSessionOfAProcessEndsItsLastOne) {
  driver_.Say(kFirst, ValueOf(0, "a"));
  const Reaction again = driver_.Say(kOther, ValueOf(0, "a"));
  EXPECT_THAT(again.ended, ElementsAre(kFirst));
  EXPECT_THAT(again.sent, IsEmpty());
  EXPECT_THAT(again.announced, IsEmpty());
}

TEST_F(CoordinatorLobbyTest, SessionThatGathersDoesNothingElse) {
  driver_.Say(kFirst, ValueOf(0, "a"));
  EXPECT_EQ(RefusalIn(driver_.Say(kFirst, ValueOf(1, "a")), kFirst).code(),
            absl::StatusCode::kInvalidArgument);
  driver_.Say(kSecond, ValueOf(1, "b"));
  EXPECT_EQ(RefusalIn(driver_.Say(kSecond, WorkerRequest("w")), kSecond).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(driver_.Status().members, IsEmpty());
  driver_.Say(kThird, ValueOf(2, "c"));
  EXPECT_EQ(RefusalIn(driver_.Say(kThird, Heartbeat()), kThird).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorLobbyTest, MemberDoesNotGatherInTheLobby) {
  driver_.Say(kWorker0, WorkerRequest("w"));
  EXPECT_THAT(driver_.Say(kWorker0, ValueOf(0, "a")).sent, IsEmpty());
  EXPECT_THAT(driver_.Status().members, SizeIs(1));
}

TEST_F(CoordinatorLobbyTest, TooManyBytesFailForAllAndForever) {
  CoordinatorDriver driver(OptionsOf(40, 1));
  const std::string longest(kGatheredBytesMax, 'x');
  Reaction last;
  for (int32_t number = 0; number < 40; ++number) {
    last = driver.Say(100 + number, ValueOf(number, longest, 0, 40));
  }
  const auto answer = Heard<LobbyGathered>(last, 100);
  EXPECT_EQ(answer.error,
            "the values of the 40 processes have 2621440 bytes, must be at "
            "most 2097152");
  EXPECT_THAT(answer.values, IsEmpty());
  EXPECT_EQ(Heard<LobbyGathered>(driver.Say(100, ValueOf(0, "", 0, 40)), 100),
            answer);
}

// ---- The end.

TEST_F(CoordinatorLobbyTest, WaitingProcessHearsThatTheJobBegins) {
  driver_.Say(kFirst, ValueOf(0, "a"));
  const absl::Status refused = RefusalIn(driver_.Gather(), kFirst);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("gather equally often"));
  EXPECT_EQ(RefusalIn(driver_.Say(kOther, ValueOf(1, "b")), kOther).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorLobbyTest, WaitingProcessHearsThatTheJobHasFailed) {
  LetAllGather();
  driver_.Say(kFirst, ValueOf(0, "d", 1));
  const Reaction fails = driver_.Fail("the disk is gone");
  for (const SessionId session : {kFirst, kSecond, kThird}) {
    const absl::Status refused = RefusalIn(fails, session);
    EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(refused.message(), HasSubstr("the disk is gone"));
  }
  EXPECT_TRUE(driver_.coordinator().everyone_knows());
  const absl::Status late =
      RefusalIn(driver_.Say(kOther, ValueOf(0, "a")), kOther);
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  // The state of the job that has failed is saved: it does not begin again.
  ASSERT_THAT(fails.saved, SizeIs(1));
  const auto state = DecodeState(EncodeState(fails.saved[0]));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->state, JobState::kFailed);
}

TEST_F(CoordinatorLobbyTest, FinishedJobRefusesAsItRefusesToJoin) {
  CoordinatorDriver driver(OptionsOf(1, 1));
  driver.Gather();
  driver.Beat(kWorker0, 0, 0);
  driver.Say(kWorker0, Leave{0, driver.job().epoch, false});
  ASSERT_EQ(driver.state(), JobState::kFinished);
  EXPECT_EQ(RefusalIn(driver.Say(kOther, ValueOf(0, "", 0, 1)), kOther).code(),
            absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace nereus
