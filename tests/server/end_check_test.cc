#include "server/admin/end_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"

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
    child_.is_done = code == 0;
  }
  // Looks at the program `after` its end. Returns the number of questions.
  int Look(absl::Duration after = absl::ZeroDuration(),
           bool is_finished = false) {
    int questions = 0;
    EndCheck check([&](const std::string& coordinator) {
      ++questions;
      EXPECT_EQ(coordinator, "h:1");
      return answers_ ? absl::StatusOr<JobStatus>(status_)
                      : UnavailableError("no coordinator");
    });
    check.Look(absl::MakeSpan(&child_, 1), "h:1", is_finished, kEnd + after);
    return questions;
  }
  JobStatus::Member& member() { return status_.members[1]; }

  JobStatus status_;
  bool answers_ = true;  // True if the coordinator answers.
  LocalProcess child_;
};

TEST_F(EndCheckTest, ProgramThatHasLeftTheJobIsDone) {
  End(0);
  member().left = true;
  EXPECT_EQ(Look(), 1);
  EXPECT_EQ(Look(absl::Seconds(5)), 0);
  EXPECT_EQ(child_.mistake, "");
  EXPECT_TRUE(child_.is_done);
}

TEST_F(EndCheckTest, ProgramThatEndsWithoutLeavingHasMadeAMistake) {
  End(0);
  Look();
  member().since_heartbeat = absl::Seconds(2);
  EXPECT_EQ(Look(absl::Seconds(1)), 0);
  EXPECT_EQ(Look(absl::Seconds(2)), 1);
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

// The job finishes before the second question.
TEST_F(EndCheckTest, LineOfTheCoordinatorTellsOfTheMistakeAtOnce) {
  const std::string line =
      "2026-11-27T12:00:00.000Z WARNING [coordinator] worker 1 (h:1) was "
      "removed: gone";
  EndCheck::NoteLine(absl::MakeSpan(&child_, 1), line);
  EXPECT_EQ(child_.seen, LocalProcess::Seen::kNothing);
  End(0);
  Look();
  EndCheck::NoteLine(
      absl::MakeSpan(&child_, 1),
      "2026-11-27T12:00:00.000Z WARNING [coordinator] worker 11 (h:2) was "
      "removed: gone");
  EXPECT_EQ(child_.seen, LocalProcess::Seen::kLeftBehind);
  EndCheck::NoteLine(absl::MakeSpan(&child_, 1), line);
  EXPECT_EQ(Look(absl::Milliseconds(100), /*is_finished=*/true), 0);
  EXPECT_THAT(child_.mistake, HasSubstr("without leaving the job"));
  EXPECT_FALSE(child_.is_done);
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
  EXPECT_EQ(Look(absl::Seconds(2)), 0);
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
  EXPECT_EQ(Look(), 0);
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

}  // namespace
}  // namespace nereus
