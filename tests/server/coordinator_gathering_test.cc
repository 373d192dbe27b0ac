// Gatherings of a coordinator: which workers gather together, and what is sent
// to a worker that joins, asks again or is the only one left.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/version.h"
#include "server/coordinator/gatherings.h"
#include "server/coordinator/job_state.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Gather Value(int64_t step, std::string value, int32_t index = 0) {
  return {{step, index}, std::move(value)};
}

// A job of three workers with the sessions kWorker0 to kWorker2, in step 4.
class GatheringTest : public testing::Test {
 protected:
  GatheringTest() : driver_(OptionsOf(3, 1, 4)) {
    driver_.Gather();
    for (const SessionId session : {kWorker0, kWorker1, kWorker2}) {
      driver_.Beat(session, 4, 3);
    }
  }
  CoordinatorDriver driver_;
};

TEST_F(GatheringTest, AllWorkersGetAllValues) {
  EXPECT_THAT(driver_.Say(kWorker2, Value(4, "c")).sent, IsEmpty());
  EXPECT_THAT(driver_.Say(kWorker0, Value(4, "a")).sent, IsEmpty());
  const Reaction done = driver_.Say(kWorker1, Value(4, "b"));
  EXPECT_THAT(HearersOf<Gathered>(done),
              ElementsAre(kWorker0, kWorker1, kWorker2));
  const Gathered heard = Heard<Gathered>(done, kWorker0);
  EXPECT_EQ(heard.id, (GatheringId{4, 0}));
  EXPECT_THAT(heard.values, ElementsAre("a", "b", "c"));
  EXPECT_EQ(heard.error, "");
  // Values are on disk before a worker hears them.
  EXPECT_THAT(done.order, ElementsAre("save", "send", "send", "send"));
}

// Worker 0 and worker 2 run on one host.
TEST(GatheringOrderTest, ValuesFollowRanksWhateverTheHosts) {
  CoordinatorDriver driver(OptionsOf(2, 1, 3));
  JoinRequest first = WorkerRequest("a");
  JoinRequest second = WorkerRequest("b");
  JoinRequest third = WorkerRequest("c");
  first.host = third.host = {"rack", "one"};
  second.host = {"rack", "two"};
  driver.Say(kShard0, ShardRequest(0));
  driver.Say(kWorker0, first);
  driver.Say(kWorker1, second);
  driver.Say(kWorker2, third);
  driver.ReportRest(3);
  driver.Say(kWorker0, Value(4, "a"));
  driver.Say(kWorker1, Value(4, "b"));
  EXPECT_THAT(
      Heard<Gathered>(driver.Say(kWorker2, Value(4, "c")), kWorker2).values,
      ElementsAre("a", "b", "c"));
}

// The plan changes after step 4. All workers then have the first step 5 in the
// job, but gather after step 4 as before.
TEST_F(GatheringTest, WorkersGatherAfterAChangeOfPlanAndARestart) {
  driver_.Say(kWorker0, Value(3, "a"));
  driver_.Say(kWorker1, Value(3, "b"));
  CoordinatorState state = driver_.Say(kWorker2, Value(3, "c")).saved.back();
  Job job = *state.epoch.job;
  for (EpochWorker& worker : job.workers) worker.first_step = 5;
  job.history.first_step = 5;
  job.history.base_round = 4;
  state.epoch.job = std::make_shared<const Job>(job);
  driver_.Restart(state);
  driver_.ResumeAll({kWorker0, kWorker1, kWorker2});
  for (const SessionId session : {kWorker0, kWorker1, kWorker2}) {
    driver_.Beat(kBack + session, 4, 4);
  }
  driver_.Say(kBack + kWorker0, Value(4, "a"));
  driver_.Say(kBack + kWorker1, Value(4, "b"));
  const Reaction done = driver_.Say(kBack + kWorker2, Value(4, "c"));
  EXPECT_THAT(Heard<Gathered>(done, kBack + kWorker0).values,
              ElementsAre("a", "b", "c"));
}

// A worker may gather after step 4 until it has pushed step 5. Until then it
// may also wait for round 4.
TEST_F(GatheringTest, WorkerThatGoesOnWithoutGatheringIsNamed) {
  driver_.Say(kWorker0, Value(4, "a"));
  driver_.Say(kWorker1, Value(4, "b"));
  Heartbeat heartbeat;
  heartbeat.begun_step = 5;
  heartbeat.pushed_step = 4;
  heartbeat.round = 3;
  heartbeat.epoch = driver_.job().epoch;
  heartbeat.stall = Stall{0, 4, "worker 0", absl::Seconds(6)};
  EXPECT_THAT(HearersOf<Gathered>(driver_.Say(kWorker2, heartbeat)), IsEmpty());
  heartbeat.pushed_step = 5;
  const Reaction failed = driver_.Say(kWorker2, heartbeat);
  EXPECT_THAT(HearersOf<Gathered>(failed), ElementsAre(kWorker0, kWorker1));
  EXPECT_THAT(Heard<Gathered>(failed, kWorker0).error,
              HasSubstr("worker w2 has pushed step 5 and did not gather after "
                        "step 4"));
  EXPECT_THAT(failed.saved, IsEmpty());
}

// The worker sent the value before it heard that its first step is now 6.
TEST_F(GatheringTest, ValueOfAnUndoneStepIsNotAnswered) {
  Gatherings gatherings;
  const Job job = driver_.job();
  MemberList roster;
  roster.Add(WorkerRequest("w0"), kWorker0, /*running=*/false, absl::Now());
  roster.Find(roster.members()[0].id)->life.first_step = 6;
  CoordinatorOutbox out;
  gatherings.OnGather(roster.members()[0], Value(4, "a"), absl::Now(), out);
  EXPECT_FALSE(gatherings.Complete(job, roster));
  gatherings.Send(roster, out);
  EXPECT_THAT(out, IsEmpty());
}

// The job has gone back. Until a heartbeat shows that the worker is in the new
// epoch, its value may be an old one.
TEST_F(GatheringTest, ValueOfAWorkerThatHasNotGoneBackIsDropped) {
  Gatherings gatherings;
  const Job job = driver_.job();
  MemberList roster;
  roster.Add(WorkerRequest("w0"), kWorker0, /*running=*/false, absl::Now());
  MemberRecord& worker = *roster.Find(roster.members()[0].id);
  CoordinatorOutbox out;
  gatherings.Clear(job.epoch);
  worker.heartbeat.epoch = job.epoch - 1;
  gatherings.OnGather(worker, Value(4, "before"), absl::Now(), out);
  EXPECT_FALSE(gatherings.Complete(job, roster));
  worker.heartbeat.epoch = job.epoch;
  gatherings.OnGather(worker, Value(4, "after"), absl::Now(), out);
  EXPECT_TRUE(gatherings.Complete(job, roster));
  ASSERT_TRUE(gatherings.state().newest.has_value());
  EXPECT_THAT(gatherings.state().newest->values, ElementsAre("after"));
}

// The last heartbeat of a worker that has dropped its values tells of steps
// that it does again.
TEST_F(GatheringTest, HeartbeatFromAnEarlierLifeDoesNotCount) {
  Gatherings gatherings;
  const Job job = driver_.job();
  MemberList roster;
  roster.Add(WorkerRequest("w0"), kWorker0, /*running=*/false, absl::Now());
  roster.Add(WorkerRequest("w1"), kWorker1, /*running=*/false, absl::Now());
  MemberRecord& other = *roster.Find(roster.members()[1].id);
  other.heartbeat.pushed_step = 7;
  other.heartbeat.epoch = job.epoch - 1;
  other.life.epoch = job.epoch;
  CoordinatorOutbox out;
  gatherings.OnGather(roster.members()[0], Value(4, "a"), absl::Now(), out);
  gatherings.Complete(job, roster);
  gatherings.Send(roster, out);
  EXPECT_THAT(out, IsEmpty());
  other.heartbeat.epoch = job.epoch;
  gatherings.Complete(job, roster);
  gatherings.Send(roster, out);
  EXPECT_EQ(out.size(), 1u);
}

// Worker w0 has gone back to a checkpoint in the job's epoch, and w2 has joined
// in it. Worker w1 is not in this epoch yet.
class WentBackGatheringTest : public GatheringTest {
 protected:
  using Values = std::vector<std::string>;

  WentBackGatheringTest() {
    for (const char* const name : {"w0", "w1", "w2"}) {
      roster_.Add(WorkerRequest(name), kWorker0, /*running=*/false,
                  absl::Now());
    }
    Enter(0, job_.epoch);
    Enter(2, 0);
  }

  // The worker is in the job's epoch. `went_back_in`: 0 if it has joined.
  void Enter(int rank, uint64_t went_back_in) {
    Worker(rank).heartbeat.epoch = job_.epoch;
    Worker(rank).heartbeat.went_back_in = went_back_in;
  }
  // Takes a value of the worker before its first step. Returns the answers.
  std::vector<Values> Say(int rank, std::string value) {
    CoordinatorOutbox out;
    const uint64_t went_back_in = Worker(rank).heartbeat.went_back_in;
    gatherings_.OnGather(Worker(rank),
                         {{kInitialRound, 0, went_back_in}, std::move(value)},
                         absl::Now(), out);
    return Answers(out);
  }
  // Returns the values of each answer that is sent now.
  std::vector<Values> Answers(CoordinatorOutbox out = {}) {
    gatherings_.Complete(job_, roster_);
    gatherings_.Send(roster_, out);
    std::vector<Values> answers;
    for (const CoordinatorAction& action : out) {
      const auto* send = std::get_if<SendToMember>(&action);
      if (send == nullptr) continue;
      answers.push_back(std::get<Gathered>(send->message).values);
    }
    return answers;
  }

  const Job& job_ = driver_.job();

 private:
  MemberRecord& Worker(int rank) { return *roster_.Find(PeerId::Worker(rank)); }

  MemberList roster_;
  Gatherings gatherings_{GatheringAnswers{
      {{{kInitialRound, 0}, {"first", "values"}, ""}}, std::nullopt}};
};

TEST_F(WentBackGatheringTest, WorkersGatherWithThoseThatWentBackWithThem) {
  Enter(1, job_.epoch);
  EXPECT_THAT(Say(0, "a"), IsEmpty());
  EXPECT_THAT(Say(1, "b"), ElementsAre(Values{"a", "b"}, Values{"a", "b"}));
}

TEST_F(WentBackGatheringTest, WorkerThatJoinsGetsTheFirstValues) {
  Enter(1, job_.epoch);
  EXPECT_THAT(Say(2, "c"), ElementsAre(Values{"first", "values"}));
}

TEST_F(WentBackGatheringTest, HeartbeatSaysWhetherAWorkerWentBack) {
  EXPECT_THAT(Say(0, "a"), IsEmpty());
  Enter(1, 0);
  EXPECT_THAT(Answers(), ElementsAre(Values{"a"}));
}

// Only 64 answers are kept for workers that join later.
TEST_F(GatheringTest, TooManyGatheringsBeforeTheFirstStepAreAnError) {
  const Reaction failed = driver_.Say(kWorker0, Value(kInitialRound, "a", 64));
  EXPECT_THAT(Heard<Gathered>(failed, kWorker0).error,
              HasSubstr("more than 64 times before its first step"));
}

TEST_F(GatheringTest, WorkersThatWaitHearForWhom) {
  driver_.Say(kWorker0, Value(4, "a"));
  EXPECT_THAT(HearersOf<Waiting>(driver_.Pass(absl::Seconds(4))), IsEmpty());
  driver_.Say(kWorker0, Value(4, "a"));  // Sent again.
  const Reaction told = driver_.Pass(absl::Seconds(2));
  EXPECT_EQ(Heard<Waiting>(told, kWorker0).text,
            "the gathering after step 4 waits for worker w1 (at w1:1), worker "
            "w2 (at w2:1)");
  EXPECT_THAT(HearersOf<Waiting>(driver_.Pass(absl::Seconds(4))), IsEmpty());
  EXPECT_THAT(HearersOf<Waiting>(driver_.Pass(absl::Seconds(2))),
              ElementsAre(kWorker0));
}

TEST_F(GatheringTest, ValuesThatAreTooLongAreRefused) {
  const std::string most(kGatheredBytesMax, 'x');
  EXPECT_THAT(driver_.Say(kWorker0, Value(4, most)).ended, IsEmpty());
  const Reaction refused = driver_.Say(kWorker1, Value(4, most + "x"));
  EXPECT_THAT(refused.ended, ElementsAre(kWorker1));
  EXPECT_THAT(std::string(RefusalIn(refused, kWorker1).message()),
              HasSubstr("65537 bytes, must be at most 65536"));
}

TEST(FirstGatheringTest, WorkerThatJoinsLaterGetsWhatTheFirstWorkersGot) {
  RunningDriver driver(OptionsOf(2, 1, 3));
  driver.Say(kWorker0, Value(kInitialRound, "a"));
  driver.Say(kWorker1, Value(kInitialRound, "b"));
  driver.Beat(kWorker0, 3, 2);
  driver.Beat(kWorker1, 3, 2);
  driver.Say(kWorker2, WorkerRequest("late"));
  driver.ReportRest(3);
  EXPECT_THAT(
      Heard<Gathered>(driver.Say(kWorker2, Value(kInitialRound, "c")), kWorker2)
          .values,
      ElementsAre("a", "b"));
  // The first workers gathered once, so the later worker gathers alone the
  // second time.
  EXPECT_THAT(Heard<Gathered>(
                  driver.Say(kWorker2, Value(kInitialRound, "d", 1)), kWorker2)
                  .values,
              ElementsAre("d"));
  // A gathering is without a worker whose first step comes later.
  driver.Say(kWorker0, Value(3, "e"));
  EXPECT_THAT(
      Heard<Gathered>(driver.Say(kWorker1, Value(3, "f")), kWorker1).values,
      ElementsAre("e", "f"));
}

TEST(FirstGatheringTest, FirstWorkersOfARestoredJobGatherBeforeTheirFirstStep) {
  CoordinatorOptions options = DurableOptions(2, 1);
  options.start_checkpoint = CheckpointRecord{7, 16, {{"shard-0", 1, 2}}};
  options.restored_layers = WorkerRequest("w0").layers;
  RunningDriver driver(options);
  driver.Say(kWorker0, Value(kInitialRound, "a"));
  EXPECT_THAT(
      Heard<Gathered>(driver.Say(kWorker1, Value(kInitialRound, "b")), kWorker1)
          .values,
      ElementsAre("a", "b"));
}

// ---- Processes that were started together gather before they join.

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
  ExpectRefusal(driver_.Say(kFirst, ValueOf(1, "", 0, 4)), kFirst,
                absl::StatusCode::kFailedPrecondition,
                "process 1 was started as one of 4 "
                "processes, and job training begins "
                "with 3 workers");
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
  ExpectRefusal(second, kFirst, absl::StatusCode::kAlreadyExists,
                "another process says that it is process 0 of 3");
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
  ExpectRefusal(driver_.Gather(), kFirst, absl::StatusCode::kFailedPrecondition,
                "gather equally often");
  EXPECT_EQ(RefusalIn(driver_.Say(kOther, ValueOf(1, "b")), kOther).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorLobbyTest, WaitingProcessHearsThatTheJobHasFailed) {
  LetAllGather();
  driver_.Say(kFirst, ValueOf(0, "d", 1));
  const Reaction fails = driver_.Fail("the disk is gone");
  for (const SessionId session : {kFirst, kSecond, kThird}) {
    ExpectRefusal(fails, session, absl::StatusCode::kAborted,
                  "the disk is gone");
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
  RunningDriver driver(OptionsOf(1, 1));
  driver.Beat(kWorker0, 0, 0);
  driver.Say(kWorker0, Leave{0, driver.job().epoch, false});
  ASSERT_EQ(driver.state(), JobState::kFinished);
  EXPECT_EQ(RefusalIn(driver.Say(kOther, ValueOf(0, "", 0, 1)), kOther).code(),
            absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace nereus
