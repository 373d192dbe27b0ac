#include "server/admin/end_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/flags/model_file.h"
#include "server/report/status_report.h"

namespace nereus {
namespace {

using testing::HasSubstr;

const absl::Time kEnd = absl::UnixEpoch();

// A job of the workers 0 and 1, of which worker 1 is the program that ends.
class EndCheckTest : public testing::Test {
 protected:
  EndCheckTest() {
    status_.state = JobState::kRunning;
    for (int worker : {0, 1}) {
      JobStatus::Member member;
      member.id = PeerId::Worker(worker);
      member.name = std::to_string(worker);
      status_.members.push_back(member);
    }
    child_.name = "worker 1";
    child_.worker = 1;
  }

  void End(int code) {
    child_.exit = ProcessExit{code, 0};
    child_.since = kEnd;
    child_.ended_at = kEnd;
    child_.is_done = code == 0 && exit_decides_;
  }
  // Looks at the program `after` its end. Returns the number of questions.
  int Look(absl::Duration after = absl::ZeroDuration(),
           bool is_finished = false) {
    int questions = 0;
    EndCheck check(exit_decides_, [&](const std::string& coordinator) {
      ++questions;
      EXPECT_EQ(coordinator, "h:1");
      return answers_ ? absl::StatusOr<JobStatus>(status_)
                      : UnavailableError("no coordinator");
    });
    check.Look(absl::MakeSpan(&child_, 1), "h:1", is_finished, kEnd + after);
    has_begun_ = check.has_begun();
    return questions;
  }
  // Adds an event of worker 1, `after` its end.
  void Add(LogEvent event, absl::Duration after = absl::ZeroDuration()) {
    status_.events.push_back({kEnd + after, false, "text", event, "worker 1"});
  }
  JobStatus::Member& member() { return status_.members[1]; }

  JobStatus status_;
  bool answers_ = true;       // True if the coordinator answers.
  bool exit_decides_ = true;  // True for programs of users.
  bool has_begun_ = false;    // True once the last EndCheck saw the job run.
  LocalProcess child_;
};

TEST_F(EndCheckTest, ProgramThatHasLeftTheJobIsDone) {
  End(0);
  member().left = true;
  Look();
  EXPECT_EQ(child_.seen, LocalProcess::Seen::kJudged);
  EXPECT_EQ(child_.mistake, "");
  EXPECT_TRUE(child_.is_done);
}

TEST_F(EndCheckTest, ProgramThatEndsWithoutLeavingHasMadeAMistake) {
  End(0);
  Look();
  member().since_heartbeat = absl::Seconds(2);
  Look(absl::Seconds(1));
  EXPECT_EQ(child_.mistake, "");
  Look(absl::Seconds(2));
  EXPECT_THAT(child_.DescribeFailure(),
              HasSubstr("worker 1 ended with code 0 without leaving the job"));
  EXPECT_FALSE(child_.is_done);
}

TEST_F(EndCheckTest, WorkerThatWasRemovedMeanwhileHasNotLeftEither) {
  End(0);
  Look();
  status_.members.pop_back();
  Look(absl::Seconds(2));
  EXPECT_THAT(child_.mistake, HasSubstr("without leaving"));
}

TEST_F(EndCheckTest, JobThatFinishesWithoutTheWorkerDoesNotHideTheMistake) {
  End(0);
  Look();
  answers_ = false;
  Look(absl::Seconds(2));
  EXPECT_THAT(child_.mistake, HasSubstr("without leaving"));
}

// The job finishes before the second question is due.
TEST_F(EndCheckTest, LastStatusTellsOfTheMistakeAtOnce) {
  Add(LogEvent::kMemberLost, -absl::Seconds(9));  // A process before this one.
  End(0);
  Look();
  EXPECT_EQ(child_.seen, LocalProcess::Seen::kLeftBehind);
  status_.members.pop_back();
  status_.state = JobState::kFinished;
  Add(LogEvent::kMemberLost, absl::Seconds(1));
  EXPECT_EQ(Look(absl::Milliseconds(1100), /*is_finished=*/true), 1);
  EXPECT_THAT(child_.mistake, HasSubstr("without leaving the job"));
  EXPECT_FALSE(child_.is_done);
}

TEST_F(EndCheckTest, ProgramThatLeavesInTheBackgroundIsSparedInAFinishedJob) {
  End(0);
  Look();
  status_.members.pop_back();
  status_.state = JobState::kFinished;
  Add(LogEvent::kMemberLeft, absl::Seconds(1));
  Look(absl::Milliseconds(1100), /*is_finished=*/true);
  EXPECT_EQ(child_.mistake, "");
}

TEST_F(EndCheckTest, ReferenceWorkerThatHasLeftEarlyIsKnown) {
  exit_decides_ = false;
  child_.started_at = kEnd - absl::Seconds(5);
  Add(LogEvent::kMemberLeftEarly, -absl::Seconds(9));
  End(0);
  answers_ = false;
  Look();
  EXPECT_EQ(child_.seen, LocalProcess::Seen::kNothing);
  answers_ = true;
  Look();
  EXPECT_EQ(child_.seen, LocalProcess::Seen::kJudged);
  EXPECT_TRUE(has_begun_);
  child_.seen = LocalProcess::Seen::kNothing;
  Add(LogEvent::kMemberLeftEarly);
  Look();
  EXPECT_EQ(child_.seen, LocalProcess::Seen::kLeftEarly);
}

TEST_F(EndCheckTest, JobThatWaitsHasNotBegun) {
  status_.state = JobState::kWaiting;
  End(1);
  EXPECT_EQ(Look(), 1);
  EXPECT_FALSE(has_begun_);
}

// A shell has ended, and the program that it started in the background trains.
TEST_F(EndCheckTest, ProgramInTheBackgroundIsSpared) {
  End(0);
  Look();
  member().since_heartbeat = absl::Milliseconds(800);
  Look(absl::Seconds(2));
  EXPECT_EQ(child_.mistake, "");
}

TEST_F(EndCheckTest, ProgramThatNeverJoinedIsNotJudged) {
  End(0);
  status_.members.pop_back();
  Look();
  Look(absl::Seconds(2));
  EXPECT_EQ(child_.mistake, "");
}

TEST_F(EndCheckTest, FailureOfAProgramThatWasStartedAgainIsLateAtTheEnd) {
  child_.is_restart = true;
  End(1);
  for (JobStatus::Member& each : status_.members) each.left = true;
  EXPECT_EQ(Look(), 1);
  EXPECT_TRUE(child_.is_late);
}

TEST_F(EndCheckTest, OtherFailuresCount) {
  End(1);
  EXPECT_EQ(Look(), 1);  // Has the job begun?
  EXPECT_FALSE(child_.is_late);
  child_ = LocalProcess();
  child_.worker = 1;
  child_.is_restart = true;
  End(1);
  EXPECT_EQ(Look(), 1);  // Worker 0 trains on.
  EXPECT_FALSE(child_.is_late);
}

TEST_F(EndCheckTest, ProgramThatHasNotJoinedWhenTheJobIsFinishedIsLate) {
  child_.is_restart = true;
  status_.members.pop_back();
  EXPECT_EQ(Look(), 1);
  EXPECT_FALSE(child_.is_late);
  EXPECT_EQ(Look(absl::ZeroDuration(), /*is_finished=*/true), 0);
  EXPECT_TRUE(child_.is_late);
}

// The only worker was killed, and the program fails before it joins again.
TEST_F(EndCheckTest, FailureCountsIfNoWorkerIsLeftInTheJob) {
  child_.is_restart = true;
  End(1);
  status_.members.clear();
  EXPECT_EQ(Look(), 1);
  EXPECT_FALSE(child_.is_late);
}

TEST_F(EndCheckTest, ProgramThatNamesItsWorkerItselfMayHaveJoined) {
  child_.is_restart = true;
  member().name = "mine";
  EXPECT_EQ(Look(), 1);
  EXPECT_EQ(Look(absl::ZeroDuration(), /*is_finished=*/true), 0);
  EXPECT_FALSE(child_.is_late);
}

// The process that was killed is still in the list.
TEST_F(EndCheckTest, MemberThatSendsNothingSinceTheRestartIsTheOldProcess) {
  child_.is_restart = true;
  child_.since = kEnd;
  member().since_heartbeat = absl::Seconds(1.5);
  EXPECT_EQ(Look(absl::Seconds(1)), 1);
  EXPECT_EQ(Look(absl::Seconds(1), /*is_finished=*/true), 0);
  EXPECT_TRUE(child_.is_late);
}

TEST_F(EndCheckTest, ProgramThatHasJoinedAgainIsNotLate) {
  child_.is_restart = true;
  child_.since = kEnd;
  EXPECT_EQ(Look(absl::Seconds(1)), 1);
  EXPECT_EQ(Look(absl::ZeroDuration(), /*is_finished=*/true), 0);
  EXPECT_FALSE(child_.is_late);
}

// Writes `text` to a file and reads it as a job's last status.
absl::StatusOr<JobStatus> ReadBack(const std::string& text) {
  const std::string file = testing::TempDir() + "/last-status.json";
  EXPECT_TRUE(WriteTextFile(file, text).ok());
  return ReadLastStatus(file);
}

TEST(LastStatusTest, ThatTheCoordinatorHasWrittenIsRead) {
  JobStatus status;
  status.state = JobState::kStopped;
  status.reason = "all workers have left";
  JobStatus::Member worker;
  worker.name = "host:7";
  worker.left = true;
  status.members.push_back(worker);
  status.events.push_back({kEnd + absl::Milliseconds(1250), false, "text",
                           LogEvent::kMemberLeftEarly, "worker host:7"});
  const absl::StatusOr<JobStatus> read = ReadBack(StatusJson(status));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->state, status.state);
  EXPECT_EQ(read->reason, status.reason);
  ASSERT_EQ(read->members.size(), 1);
  EXPECT_EQ(read->members[0].name, worker.name);
  EXPECT_TRUE(read->members[0].left);
  ASSERT_EQ(read->events.size(), 1);
  EXPECT_EQ(read->events[0].at, status.events[0].at);
  EXPECT_EQ(read->events[0].event, LogEvent::kMemberLeftEarly);
  EXPECT_EQ(read->events[0].member, "worker host:7");
}

TEST(LastStatusTest, OtherFilesAreErrorsAndNeverCrashes) {
  EXPECT_FALSE(ReadLastStatus(testing::TempDir() + "/no-such-file").ok());
  for (const char* text :
       {"", "{", "7", "[]", "{}", R"({"state": 7})", R"({"state": "odd"})"}) {
    EXPECT_FALSE(ReadBack(text).ok()) << text;
  }
  for (const char* text :
       {R"({"state": "running", "workers": 7, "events": {}})",
        R"({"state": "running", "workers": [7, [], {"left": "yes"}]})",
        R"({"state": "running", "events": [7, {"time": 7, "event": []}]})"}) {
    EXPECT_TRUE(ReadBack(text).ok()) << text;
  }
}

}  // namespace
}  // namespace nereus
