// Runs `nereusctl run` as a user does: with real programs, servers and signals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/process_table.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::Not;

// Command of a worker that trains until a signal ends it. It runs below a
// shell, as a program that a script starts.
constexpr char kLongTraining[] =
    "worker/trainer/nereus-worker --model=mlp --limit=400 --epochs=1000000; "
    "exit";

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    json_ = absl::StrCat(testing::TempDir(), "/summary_", getpid(), ".json");
  }

  void Start(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {"server/admin/nereusctl", "run",
                                        absl::StrCat("--json=", json_)};
    command.insert(command.end(), arguments.begin(), arguments.end());
    run_.reset();  // Ends the previous run first.
    run_ = std::make_unique<ProgramRun>(command);
  }

  // Waits until the programs or nereusctl have written `text` to standard
  // error. Ends the test if nereusctl ends before.
  void AwaitError(const std::string& text) {
    ASSERT_TRUE(run_->WaitUntil([&] {
      return run_->exit().has_value() || absl::StrContains(run_->error(), text);
    })) << run_->error();
    ASSERT_THAT(run_->error(), HasSubstr(text));
  }

  // Returns nereusctl's children and their children.
  std::vector<ProcessInfo> Descendants() {
    std::vector<ProcessInfo> all = ChildrenOf(run_->pid());
    for (size_t i = 0; i < all.size(); ++i) {
      const auto more = ChildrenOf(all[i].pid);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  // Kills the last one of nereusctl's `count` children with this name.
  void KillLast(const std::string& name, size_t count) {
    std::vector<pid_t> found;
    for (const ProcessInfo& child : ChildrenOf(run_->pid())) {
      if (child.name == name) found.push_back(child.pid);
    }
    ASSERT_EQ(found.size(), count);
    ASSERT_EQ(kill(*absl::c_max_element(found), SIGKILL), 0);
  }

  // Starts two workers that train for ever below a shell each, and returns all
  // processes.
  std::vector<ProcessInfo> StartLongTraining() {
    Start({"-np", "2", "--", "/bin/sh", "-c", kLongTraining});
    AwaitError("/1000000 step ");
    // A server, which coordinates no longer (--restarts), two shells and two
    // trainers, and the coordinator.
    std::vector<ProcessInfo> all = Descendants();
    EXPECT_EQ(all.size(), 6u) << run_->error();
    return all;
  }

  // Returns the checksum of the parameters that a nereus-worker logs at its
  // end. Empty: it has logged none. `prefix` begins the lines of the worker.
  std::string ChecksumOf(const std::string& prefix) {
    constexpr absl::string_view kLabel = ", parameters ";
    for (const absl::string_view line : absl::StrSplit(run_->error(), '\n')) {
      const size_t at = line.find(kLabel);
      if (!absl::StartsWith(line, prefix) || at == line.npos) continue;
      return std::string(line.substr(at + kLabel.size()));
    }
    return "";
  }

  nlohmann::json Summary() {
    std::ifstream file(json_);
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  std::unique_ptr<ProgramRun> run_;
  std::string json_;
};

TEST_F(RunTest, TwoWorkersOfAnOwnProgramTrainWithoutAFlag) {
  Start({"-np", "2", "--", "worker/examples/own_loop"});
  ASSERT_EQ(run_->Finish(), 0) << run_->error();
  for (const char* worker : {"[worker-0]", "[worker-1]"}) {
    EXPECT_THAT(run_->output(),
                HasSubstr(absl::StrCat(worker, " step 800: loss ")));
    EXPECT_THAT(run_->output(),
                HasSubstr(absl::StrCat(worker, " y = 3.00 x + 1.00\n")));
  }
  EXPECT_THAT(run_->error(), Not(HasSubstr("is not finished")));
  const nlohmann::json summary = Summary();
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary.at("exit_code"), 0);
  EXPECT_TRUE(summary.at("failed").is_null());
  EXPECT_TRUE(summary.at("reason").is_null());
  EXPECT_EQ(summary.at("restarts"), 0);
  EXPECT_EQ(summary.at("workers").size(), 2u);
  EXPECT_EQ(summary.at("workers").at(1).at("exit_code"), 0);
}

TEST_F(RunTest, OptionsOfTheJobReachTheServers) {
  Start({"-n", "1", "--optimizer=server", "worker/examples/own_optimizer",
         "200"});
  EXPECT_EQ(run_->Finish(), 1) << run_->error();
  EXPECT_THAT(run_->error(), HasSubstr("--optimizer=worker"));
}

TEST_F(RunTest, ProgramThatRunsTheOptimizerNeedsNoFlag) {
  Start({"-n", "2", "worker/examples/own_optimizer", "200"});
  ASSERT_EQ(run_->Finish(), 0) << run_->error();
  EXPECT_THAT(run_->output(), HasSubstr("[worker-1] after 200 steps: y = "));
}

TEST_F(RunTest, CodeOfTheProgramThatFailsIsThatOfTheCommand) {
  Start({"-np", "2", "--", "/bin/sh", "-c",
         "[ $NEREUS_LOCAL_RANK = 1 ] && exit 3; "
         "exec worker/examples/own_loop"});
  EXPECT_EQ(run_->Finish(), 3) << run_->error();
  EXPECT_THAT(run_->error(),
              HasSubstr("the job failed: worker 1 exited with code 3\n"));
  const nlohmann::json summary = Summary();
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary.at("exit_code"), 3);
  EXPECT_EQ(summary.at("failed"), "worker 1");
  EXPECT_EQ(summary.at("reason"),
            "the job failed: worker 1 exited with code 3");
}

TEST_F(RunTest, CodeOfTheProgramIsKeptThoughTheSummaryCannotBeWritten) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/gone");
  std::filesystem::create_directories(folder);
  json_ = absl::StrCat(folder, "/summary.json");
  Start({"--", "/bin/sh", "-c", absl::StrCat("rm -r ", folder, "; exit 3")});
  EXPECT_EQ(run_->Finish(), 3) << run_->error();
  EXPECT_THAT(run_->error(), HasSubstr(folder));
}

TEST_F(RunTest, SummaryOfAnEarlierJobIsGoneWhenTheNextJobRuns) {
  std::ofstream(json_) << "{}";
  Start({"--", "/bin/sh", "-c", absl::StrCat("test -s ", json_, "; exit $?")});
  EXPECT_EQ(run_->Finish(), 1);
  EXPECT_EQ(Summary().at("failed"), "worker 0");
}

// Forty steps of 0.1 s, of which the first ones come before the kill.
TEST_F(RunTest, JobWithBackupsGoesOnWithoutAKilledServer) {
  Start({"--backup=1", "--servers=2", "--restarts=0", "--",
         "worker/trainer/nereus-worker", "--model=mlp", "--limit=400",
         "--epochs=4", "--delay=0.1"});
  ASSERT_NO_FATAL_FAILURE(AwaitError("epoch "));
  ASSERT_NO_FATAL_FAILURE(KillLast("nereus-server", /*count=*/2));
  EXPECT_EQ(run_->Finish(), 0) << run_->error();
  EXPECT_EQ(Summary().at("restarts"), 0);
}

TEST_F(RunTest, SignalThatKilledAProgramIsInTheCode) {
  Start({"--restarts=0", "--", "/bin/sh", "-c", "kill -9 $$"});
  EXPECT_EQ(run_->Finish(), 137) << run_->error();
  EXPECT_EQ(Summary().at("workers").at(0).at("signal"), 9);
}

// Fifty steps of 0.1 s, of which the first ones come before the kills. Of the
// three servers, the first one only coordinates (--restarts).
TEST_F(RunTest, KilledWorkerAndServerAreStartedAgainAndTheJobEndsWell) {
  Start({"-np", "2", "--backup=1", "--servers=2", "--",
         "worker/trainer/nereus-worker", "--model=mlp", "--limit=400",
         "--epochs=10", "--delay=0.1"});
  ASSERT_NO_FATAL_FAILURE(AwaitError("epoch "));
  ASSERT_NO_FATAL_FAILURE(KillLast("nereus-worker", /*count=*/2));
  ASSERT_NO_FATAL_FAILURE(AwaitError(" is back; 2 of 2 workers"));
  ASSERT_NO_FATAL_FAILURE(KillLast("nereus-server", /*count=*/3));
  EXPECT_EQ(run_->Finish(), 0) << run_->error();
  EXPECT_THAT(run_->error(), HasSubstr("was killed by signal 9 (Killed); it is "
                                       "started again (1 of 3)"));
  EXPECT_EQ(Summary().at("restarts"), 2);
  const std::string checksum = ChecksumOf("[worker-0]");
  EXPECT_EQ(checksum.size(), 8u) << run_->error();
  EXPECT_EQ(checksum, ChecksumOf("[worker-1]"));
}

TEST_F(RunTest, InterruptEndsTheJobAndNoProcessStays) {
  const std::vector<ProcessInfo> all = StartLongTraining();
  ASSERT_EQ(kill(run_->pid(), SIGINT), 0);
  EXPECT_EQ(run_->Finish(), 130);
  EXPECT_THAT(run_->error(),
              HasSubstr("interrupted, all processes are stopped"));
  for (const ProcessInfo& process : all) {
    EXPECT_TRUE(IsGone(process.pid)) << process.name;
  }
}

// The reader of the pipe reads nothing.
TEST_F(RunTest, InterruptEndsTheJobThoughItsOutputIsNotRead) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const std::string writer =
      absl::StrCat("/proc/", getpid(), "/fd/", pipe_ends[1]);
  run_.reset();
  run_ = std::make_unique<ProgramRun>(std::vector<std::string>{
      "/bin/sh", "-c",
      absl::StrCat("exec server/admin/nereusctl run -- /bin/sh -c "
                   "'yes | head -c 1000000; sleep 3600' >",
                   writer)});
  ASSERT_NO_FATAL_FAILURE(AwaitError("OMP_NUM_THREADS"));
  // The pipe is full when the descriptor is not ready to be written.
  ASSERT_TRUE(run_->WaitUntil([&] {
    pollfd polled = {pipe_ends[1], POLLOUT, 0};
    return poll(&polled, 1, 0) == 0;
  }));
  ASSERT_EQ(kill(run_->pid(), SIGINT), 0);
  EXPECT_EQ(run_->Finish(), 130);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST_F(RunTest, NoProcessOutlivesAKilledNereusctl) {
  const std::vector<ProcessInfo> all = StartLongTraining();
  ASSERT_EQ(kill(run_->pid(), SIGKILL), 0);
  run_->Finish();
  EXPECT_TRUE(run_->WaitUntil([&] {
    return absl::c_all_of(all,
                          [](const ProcessInfo& c) { return IsGone(c.pid); });
  }));
}

// The level of the log is for all programs. A program that does not join may
// have trained alone, or lost the model of its last step.
TEST_F(RunTest, ProgramGetsNoVariablesOfRunAndFailsIfItDoesNotJoin) {
  run_.reset();
  run_ = std::make_unique<ProgramRun>(std::vector<std::string>{
      "/bin/sh", "-c",
      "NEREUS_LOG_LEVEL=info NEREUS_WORKERS=2 NEREUS_RESTARTS=2"
      " exec server/admin/nereusctl run -- /bin/sh -c "
      "'echo $NEREUS_LOG_LEVEL,$NEREUS_WORKERS,$NEREUS_RESTARTS'"});
  EXPECT_EQ(run_->Finish(), 1) << run_->error();
  EXPECT_THAT(run_->output(), HasSubstr("[worker-1] info,,\n"));
  EXPECT_THAT(run_->error(),
              HasSubstr("all workers have ended with code 0, but the job is "
                        "not finished"));
}

// The program of worker 1 loses its trainer, and ends as if all were well.
TEST_F(RunTest, ProgramThatEndsWithoutLeavingTheJobFails) {
  Start({"-np", "2", "--", "/bin/sh", "-c",
         absl::StrCat("log=", json_,
                      ".log.$NEREUS_NAME;"
                      " worker/trainer/nereus-worker --model=mlp --limit=400"
                      " --epochs=1000 --delay=0.1 2> $log & trainer=$!;"
                      " test $NEREUS_NAME = 0 || {"
                      " until grep -q training $log; do sleep 0.1; done;"
                      " kill -9 $trainer; exit 0; }; wait $trainer")});
  EXPECT_EQ(run_->Finish(), 1) << run_->error();
  EXPECT_THAT(run_->error(),
              HasSubstr("worker 1 ended with code 0 without leaving the job"));
  EXPECT_EQ(Summary().at("failed"), "worker 1");
}

TEST_F(RunTest, ProgramThatAsksForItIsStartedAgain) {
  Start({"-np", "2", "--", "/bin/sh", "-c",
         absl::StrCat("test $NEREUS_NAME = 0 || ! mkdir ", json_,
                      ".first || exit 75;"
                      " exec worker/trainer/nereus-worker --model=mlp"
                      " --limit=400 --epochs=2")});
  EXPECT_EQ(run_->Finish(), 0) << run_->error();
  EXPECT_EQ(Summary().at("restarts"), 1);
  EXPECT_EQ(Summary().at("workers").at(1).at("starts"), 2);
}

TEST_F(RunTest, MistakesAreNamed) {
  Start({"-np", "2"});
  EXPECT_EQ(run_->Finish(), 2);
  EXPECT_THAT(run_->error(), HasSubstr("no program to run: nereusctl run -np"));
  Start({"--", "no-such-program"});
  EXPECT_EQ(run_->Finish(), 1);
  EXPECT_THAT(run_->error(), HasSubstr("no program no-such-program"));
}

}  // namespace
}  // namespace nereus
