#include "server/admin/local_job.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/admin/program_workers.h"
#include "server/admin/reference_workers.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

TEST(ListeningLineTest, GivesTheAddressOfTheControlPort) {
  for (const char* control : {"127.0.0.1:1", "[::1]:22"}) {
    const auto address = ParseListeningLine(
        absl::StrCat("listening control=", control, " data=127.0.0.1:2"));
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(*address, control);
  }
  EXPECT_EQ(
      ParseListeningLine("listening control=a:1 data=a:2 http=a:3").value(),
      "a:1");
}

TEST(ListeningLineTest, RefusesAnyOtherLine) {
  for (const char* line :
       {"", "listening", "listening control=a", "listening control= data=b",
        "listening control=a data=", "listening data=a control=b",
        "Listening control=a data=b", "listening control=a data=b c"}) {
    EXPECT_EQ(ParseListeningLine(line).status().code(),
              absl::StatusCode::kInvalidArgument)
        << line;
  }
}

TEST(TextLineTest, JsonLineHasTheFormOfText) {
  const std::string rest =
      "\"time\":\"2026-11-27T14:03:11.123Z\",\"severity\":\"INFO\","
      "\"message\":\"hello\"";
  EXPECT_EQ(AsTextLine("{" + rest + ",\"role\":\"server\",\"rank\":2}"),
            "2026-11-27T14:03:11.123Z INFO [shard 2] hello");
  EXPECT_EQ(AsTextLine("{" + rest + ",\"role\":\"worker\",\"name\":\"b\"}"),
            "2026-11-27T14:03:11.123Z INFO [worker b] hello");
  for (const std::string line :
       {"plain", "", "{", "{}", "{\"severity\":1}", "[1]", "{\"a\":{}}"}) {
    EXPECT_EQ(AsTextLine(line), line);
  }
}

TEST(ShownLineTest, OnlyLogLinesBelowTheLevelAreHidden) {
  const struct {
    const char* line;
    LogLevel highest;  // Highest level at which the line is shown.
  } kCases[] = {
      {"2026-11-27T12:00:00.000Z DEBUG [shard 0] x", LogLevel::kDebug},
      {"2026-11-27T12:00:00.000Z INFO [shard 0] x", LogLevel::kInfo},
      {"2026-11-27T12:00:00.000Z WARNING [shard 0] x", LogLevel::kWarning},
      {"2026-11-27T12:00:00.000Z ERROR [shard 0] x", LogLevel::kError},
      {"2026-11-27T12:00:00.000Z CRITICAL [shard 0] x", LogLevel::kError},
      {"terminate called after INFO", LogLevel::kError},
      {"", LogLevel::kError},
  };
  for (const auto& c : kCases) {
    for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo,
                                 LogLevel::kWarning, LogLevel::kError}) {
      EXPECT_EQ(IsLineShown(c.line, level), level <= c.highest)
          << c.line << " at " << static_cast<int>(level);
    }
  }
}

// Runs jobs with shell scripts as servers and workers. A script finds its
// rank in $rank, and the folder of the test in $dir, where it writes its
// process id.
class LocalJobTest : public testing::Test {
 protected:
  void SetUp() override {
    signal(SIGINT, SIG_DFL);  // A test in the background may ignore it.
    std::string name = absl::StrCat(testing::TempDir(), "/local_job_XXXXXX");
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    shown_.open(folder_ + "/shown");
    shown_ << std::unitbuf;
    options_.spec.workers = 2;
    options_.spec.shards = 2;
    SetServer("wait_for worker0.done; wait_for worker1.done");
    SetWorker("done_event; touch $dir/worker$rank.done");
  }

  // Write a script that begins with the common part of all servers or workers.
  void SetServer(const std::string& body, bool listens = true) {
    server_program_ = WriteScript(
        "server",
        absl::StrCat("rank=${1#--shard=}\necho $$ > $dir/server$rank.pid\n",
                     listens ? "echo listening control=h:1 data=h:2\n" : "",
                     body));
  }
  void SetWorker(const std::string& body) {
    // Only one worker can make the folder. This worker gets rank 0.
    worker_program_ = WriteScript(
        "worker",
        absl::StrCat("rank=0\nmkdir $dir/first 2>/dev/null || rank=1\n"
                     "echo $$ > $dir/worker$rank.pid\n",
                     body));
  }

  std::string WriteScript(const std::string& name, const std::string& body) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream file(path);
    file << "#!/bin/sh\ndir=" << folder_ << "\n"
         << R"(wait_for() { while [ ! -e $dir/$1 ]; do sleep 0.01; done; }
# Waits until the launcher has shown this text.
wait_shown() { until grep -q "$1" $dir/shown; do sleep 0.01; done; }
# Waits until this process is dead, as the launcher sees it.
wait_dead() {
  wait_for $1.pid
  until grep -qs ') Z ' /proc/$(cat $dir/$1.pid)/stat ||
        [ ! -e /proc/$(cat $dir/$1.pid) ]; do sleep 0.01; done
}
# Waits until the launcher knows of the end of this process.
wait_reaped() {
  wait_for $1.pid
  while [ -e /proc/$(cat $dir/$1.pid) ]; do sleep 0.01; done
}
progress_event() {
  echo "{\"event\":\"progress\",\"rank\":$rank,\"epoch\":1,\"epochs\":2,\
\"step\":5,\"steps\":10,\"loss\":0.5,\"images_per_second\":100,\"bytes\":1}"
}
done_event() {
  echo "{\"event\":\"done\",\"rank\":$rank,\"joins\":1,\
\"workers\":2,\"steps\":10,\
\"last_step\":9,\"saved_round\":9,\
\"skipped_steps\":0,\"train_loss\":0.1,\"test_accuracy\":null,\
\"images\":40,\"seconds\":1,\
\"forward_seconds\":0,\"backward_seconds\":0,\"wait_seconds\":0,\
\"turn_seconds\":0,\
\"parameter_checksum\":\"00\",\"initial_bytes\":0,\"measured\":null,\
\"layers\":[{\"name\":\"fc\",\"kind\":\"fc\",\
\"m\":2,\"n\":3,\"parameters\":8,\"rows\":4,\
\"has_factors\":false,\"scheme\":\"server\",\
\"wire\":\"fp32\",\
\"reason\":\"\",\"rounds\":10,\"bytes_sent\":0,\"bytes_received\":0,\
\"latency_seconds_mean\":0}],\"traffic\":[]}"
}
)" << body
         << "\n";
    file.close();
    EXPECT_TRUE(file.good());
    EXPECT_EQ(chmod(path.c_str(), 0755), 0);
    return path;
  }

  absl::StatusOr<LocalOutcome> Run() {
    ProgressDisplay display(&shown_, /*is_terminal=*/false);
    ReferenceWorkers workers(options_, worker_program_);
    LocalJob job(options_, server_program_, &workers, &display);
    return job.Run();
  }

  // Runs a job that fails, and returns the message of its failure.
  std::string FailureMessage(absl::StatusCode code) {
    const auto outcome = Run();
    EXPECT_EQ(outcome.status().code(), code) << outcome.status();
    return std::string(outcome.status().message());
  }

  static std::string LastLine(const std::string& text) {
    const size_t end = text.rfind('\n');
    return end == std::string::npos ? text : text.substr(end + 1);
  }

  // Returns the text that the job has shown.
  std::string Shown() const {
    std::ifstream file(folder_ + "/shown");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Expects that all processes that ever started have ended.
  void ExpectNoProcess() {
    int found = 0;
    for (const char* name : {"server0", "server1", "worker0", "worker1"}) {
      std::ifstream file(absl::StrCat(folder_, "/", name, ".pid"));
      pid_t pid = 0;
      if (!(file >> pid)) continue;
      ++found;
      EXPECT_EQ(kill(pid, 0), -1) << name << " is alive";
      EXPECT_EQ(errno, ESRCH) << name;
    }
    EXPECT_GT(found, 0);
  }

  LocalOptions options_;
  std::string server_program_;
  std::string worker_program_;
  std::string folder_;
  std::ofstream shown_;  // The scripts read this file.
};

// A process that plays another host than its predecessor would change the plan.
TEST_F(LocalJobTest, ProcessThatIsStartedAgainKeepsItsHost) {
  options_.spec.workers = 1;
  options_.spec.shards = 1;
  options_.restarts = 1;
  SetServer("wait_for worker0.done");
  SetWorker(
      "echo \"$*\" | tr ' ' '\\n' | grep '^--node=' >> $dir/nodes\n"
      "[ $rank = 0 ] && kill -KILL $$\n"
      "rank=0; done_event; touch $dir/worker0.done");
  const auto outcome = Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->restarts, 1);
  std::ifstream file(folder_ + "/nodes");
  const std::string nodes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(nodes, "--node=host-0\n--node=host-0\n");
}

TEST_F(LocalJobTest, ShowsProgressAndTheLinesThatMatter) {
  SetWorker(
      "progress_event; echo '2026-11-27T12:00:00.000Z INFO [worker] quiet' "
      ">&2\n"
      "echo '2026-11-27T12:00:00.000Z WARNING [worker] slow' >&2\n"
      "done_event; touch $dir/worker$rank.done");
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Shown(), HasSubstr("worker 0: 2026-11-27T12:00:00.000Z WARNING "
                                 "[worker] slow\n"));
  EXPECT_THAT(Shown(), Not(HasSubstr("quiet")));
  EXPECT_THAT(Shown(), HasSubstr("starting\n"));
}

TEST_F(LocalJobTest, KilledWorkerIsTheCauseThoughOthersEndToo) {
  SetServer(
      "if [ $rank = 1 ]; then sleep 3600; fi\n"
      "wait_dead worker1; echo 'lost worker 1' >&2; exit 1");
  SetWorker(
      "progress_event; echo last words >&2\n"
      "if [ $rank = 1 ]; then kill -9 $$; fi; sleep 3600");
  const std::string message = FailureMessage(absl::StatusCode::kAborted);
  EXPECT_THAT(message, HasSubstr("was killed by signal 9 (Killed); its last "
                                 "lines:\n  last words"));
  EXPECT_THAT(message, HasSubstr("and then shard 0 exited with code 1"));
  // The last line has the reason, with the flag that would have helped.
  EXPECT_THAT(LastLine(message),
              AllOf(HasSubstr("was killed by signal 9 (Killed)"),
                    HasSubstr("--restarts=N starts processes that die again")));
  ExpectNoProcess();
}

TEST_F(LocalJobTest, FailedWorkerIsNamedWithItsCodeAndLines) {
  SetWorker("echo 'data: no such folder' >&2; exit 1");
  const std::string message = FailureMessage(absl::StatusCode::kAborted);
  EXPECT_THAT(message, HasSubstr("exited with code 1; its last lines:\n"
                                 "  data: no such folder"));
  ExpectNoProcess();
}

TEST_F(LocalJobTest, WorkerThatEndsWithoutAResultHasFailed) {
  SetWorker("exit 0");
  EXPECT_THAT(FailureMessage(absl::StatusCode::kAborted),
              HasSubstr("exited with code 0 without a result"));
}

TEST_F(LocalJobTest, WorkerThatWritesNonsenseHasFailed) {
  SetWorker("echo hello; sleep 3600");
  EXPECT_THAT(FailureMessage(absl::StatusCode::kAborted),
              HasSubstr("wrote a line that is not understood: worker event"));
  ExpectNoProcess();
}

// A worker that stood still for too long joins again, with another rank.
TEST_F(LocalJobTest, WorkerMayJoinAgainWithAnotherRank) {
  SetWorker(
      "name=$rank; progress_event; if [ $rank = 1 ]; then rank=2; fi\n"
      "progress_event; done_event; touch $dir/worker$name.done");
  const auto outcome = Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(outcome->workers, SizeIs(2));
}

// Without a word, a user would see a job that does not end.
TEST_F(LocalJobTest, WorkersThatRunOnAfterTheJobAreNamed) {
  SetServer("exit 0");
  SetWorker(
      "[ $rank = 0 ] && wait_shown 'finished; waiting for the end of worker'\n"
      "done_event");
  const auto outcome = Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
}

// A worker that is started again would find no coordinator any more.
TEST_F(LocalJobTest, WorkerThatDiesAsTheJobEndsIsMissed) {
  options_.restarts = 5;
  SetServer("wait_for worker0.done");
  SetWorker(
      "if [ $rank = 1 ]; then wait_reaped server--coordinate-only; kill -9 $$; "
      "fi\n"
      "progress_event; done_event; touch $dir/worker0.done");
  const auto outcome = Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(outcome->workers, SizeIs(1));
  EXPECT_EQ(outcome->lost, 1);
  EXPECT_EQ(outcome->restarts, 0);
  EXPECT_THAT(Shown(), HasSubstr("the job was finished without it"));
}

// The end of the coordinator is seen after that of the other server.
TEST_F(LocalJobTest, ServerThatDiesAsTheJobEndsIsNoFailure) {
  SetServer("if [ $rank = 1 ]; then exit 1; fi; wait_reaped server1");
  const auto outcome = Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(outcome->workers, SizeIs(2));
  ExpectNoProcess();
}

// The report tells that the model was not saved.
TEST_F(LocalJobTest, CoordinatorThatHasNotSavedTheModelHasNotFailed) {
  SetServer("wait_for worker0.done; wait_for worker1.done; exit 6");
  const auto outcome = Run();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(outcome->workers, SizeIs(2));
}

// The reason is in the coordinator's last status. The log is not read for it.
TEST_F(LocalJobTest, LastLineHasTheReasonOfTheCoordinator) {
  SetServer(
      "wait_for worker0.pid\n"
      "for flag in \"$@\"; do\n"
      "  case $flag in --last-status=*)\n"
      "    echo '{\"state\": \"failed\", \"reason\": \"fc has a NaN\"}' "
      "> ${flag#*=};;\n"
      "  esac\n"
      "done\n"
      "echo '2026-11-27T12:00:00.000Z ERROR [shard 0] other words' >&2\n"
      "exit 1");
  SetWorker("sleep 3600");
  const std::string message = FailureMessage(absl::StatusCode::kAborted);
  EXPECT_THAT(LastLine(message),
              AllOf(HasSubstr("the job failed: shard "),
                    HasSubstr("exited with code 1: fc has a NaN")));
}

TEST_F(LocalJobTest, ShowsTheAddressOfTheCoordinatorFirst) {
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Shown(), testing::StartsWith("starting\ncoordinator at h:1"));
}

TEST_F(LocalJobTest, FailureTellsThatRestartsAreUsedUp) {
  options_.restarts = 1;
  SetServer("wait_for killed; sleep 3600");
  SetWorker("progress_event; touch $dir/killed; kill -9 $$");
  const std::string message = FailureMessage(absl::StatusCode::kAborted);
  EXPECT_THAT(LastLine(message),
              HasSubstr("all 1 restarts are used: --restarts=N allows more"));
}

// The other processes do not know its address yet.
TEST_F(LocalJobTest, CoordinatorThatIsKilledBeforeItListensIsStartedAgain) {
  options_.restarts = 1;
  SetServer(
      "if mkdir $dir/begun 2>/dev/null; then kill -9 $$; fi\n"
      "echo listening control=h:1 data=h:2; wait_for worker1.done",
      /*listens=*/false);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Shown(), HasSubstr("it is started again (1 of 1)"));
  EXPECT_THAT(Shown(), HasSubstr("coordinator at h:1"));
}

TEST_F(LocalJobTest, ServerThatEndsBeforeItListensHasFailed) {
  SetServer("echo 'bad flag' >&2; exit 2", /*listens=*/false);
  const std::string message = FailureMessage(absl::StatusCode::kAborted);
  EXPECT_THAT(message, HasSubstr("shard 0 exited with code 2"));
  EXPECT_THAT(message, HasSubstr("bad flag"));
  ExpectNoProcess();
}

TEST_F(LocalJobTest, ServerWithAnotherFirstLineHasFailed) {
  SetServer("echo hello; sleep 3600", /*listens=*/false);
  EXPECT_THAT(FailureMessage(absl::StatusCode::kAborted),
              HasSubstr("shard 0 wrote a line that is not understood"));
  ExpectNoProcess();
}

TEST_F(LocalJobTest, MissingProgramIsNamed) {
  worker_program_ = absl::StrCat(folder_, "/missing");
  EXPECT_THAT(FailureMessage(absl::StatusCode::kNotFound),
              HasSubstr(worker_program_));
  ExpectNoProcess();
}

TEST_F(LocalJobTest, MissingFolderForTemporaryFilesIsNamed) {
  const char* const before = getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  const std::string missing = absl::StrCat(folder_, "/missing");
  setenv("TMPDIR", missing.c_str(), /*overwrite=*/1);
  EXPECT_THAT(FailureMessage(absl::StatusCode::kUnavailable),
              HasSubstr(absl::StrCat("TMPDIR is ", missing)));
  kept.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", kept.c_str(), 1);
}

// Runs jobs whose workers are a program of the user.
class ProgramJobTest : public LocalJobTest {
 protected:
  // Writes the program. It finds its index in $rank.
  void SetProgram(const std::string& body) {
    worker_program_ =
        WriteScript("worker", absl::StrCat("rank=$NEREUS_LOCAL_RANK\n"
                                           "echo $$ > $dir/worker$rank.pid\n",
                                           body));
  }

  absl::StatusOr<LocalOutcome> RunProgram() {
    ProgressDisplay display(&shown_, /*is_terminal=*/false);
    PrefixedLines out(&out_, /*is_terminal=*/false);
    PrefixedLines err(&err_, /*is_terminal=*/false);
    ProgramWorkers workers(options_, {worker_program_, "an argument"},
                           /*threads=*/std::nullopt, /*own_variables=*/{}, &out,
                           &err);
    LocalJob job(options_, server_program_, &workers, &display);
    absl::StatusOr<LocalOutcome> outcome = job.Run();
    failed_ = job.failed_worker();
    ends_ = workers.ends();
    return outcome;
  }

  std::ostringstream out_;
  std::ostringstream err_;
  std::optional<ProcessExit> failed_;
  std::vector<ProgramWorkers::End> ends_;
};

TEST_F(ProgramJobTest, ShowsBothStreamsOfEachWorkerWithItsName) {
  SetProgram(
      "echo \"$1\"; echo 2026-11-27T12:00:00.000Z INFO [x] quiet >&2\n"
      "printf 'no line feed'; touch $dir/worker$rank.done");
  const auto outcome = RunProgram();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  for (const char* worker : {"[worker-0]", "[worker-1]"}) {
    EXPECT_THAT(out_.str(), HasSubstr(absl::StrCat(worker, " an argument\n")));
    EXPECT_THAT(out_.str(), HasSubstr(absl::StrCat(worker, " no line feed\n")));
    EXPECT_THAT(err_.str(),
                HasSubstr(absl::StrCat(
                    worker, " 2026-11-27T12:00:00.000Z INFO [x] quiet\n")));
  }
  EXPECT_FALSE(failed_.has_value());
  ExpectNoProcess();
}

TEST_F(ProgramJobTest, FirstFailureEndsTheJobAndIsItsCause) {
  options_.restarts = 5;
  SetServer("sleep 3600");
  SetProgram(
      "if [ $rank = 0 ]; then wait_for worker1.pid; exit 3; fi\n"
      "echo started >> $dir/starts; wait_dead worker0; exit 4");
  const auto outcome = RunProgram();
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(failed_.has_value());
  EXPECT_EQ(failed_->code, 3);
  EXPECT_EQ(LastLine(std::string(outcome.status().message())),
            "the job failed: worker 0 exited with code 3");
  // An exit code is the program's own verdict: no restart.
  EXPECT_EQ(ends_[0].starts, 1);
  ExpectNoProcess();
}

TEST_F(ProgramJobTest, KilledProgramIsStartedAgainUnderItsName) {
  options_.restarts = 1;
  SetProgram(
      "if mkdir $dir/killed 2>/dev/null; then\n"
      "  echo $NEREUS_NAME > $dir/name; kill -9 $$\n"
      "fi\n"
      "wait_for name; [ $rank = 0 ] && echo $rank $NEREUS_NAME\n"
      "touch $dir/worker$rank.done");
  const auto outcome = RunProgram();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->restarts, 1);
  EXPECT_EQ(ends_[0].starts + ends_[1].starts, 3);
  EXPECT_THAT(out_.str(), HasSubstr("[worker-0] 0 0\n"));
  EXPECT_THAT(Shown(), HasSubstr("was killed by signal 9 (Killed); it is "
                                 "started again (1 of 1)"));
}

// Without a word, a user would see a job that stands still.
TEST_F(ProgramJobTest, ProgramThatEndsLongBeforeTheOthersIsTold) {
  SetProgram(
      "[ $rank = 0 ] && wait_shown 'worker 1 has ended with code 0 while'\n"
      "touch $dir/worker$rank.done");
  const auto outcome = RunProgram();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(Shown(), Not(HasSubstr("worker 0 has ended")));
}

// A library may abort a program because its peer has gone.
TEST_F(ProgramJobTest, ProgramThatAbortsAfterAnotherFailureIsNotTheCause) {
  SetServer("sleep 3600");
  SetProgram(
      "if [ $rank = 0 ]; then wait_for worker1.pid; exit 3; fi\n"
      "wait_dead worker0; kill -ABRT $$");
  const auto outcome = RunProgram();
  EXPECT_EQ(LastLine(std::string(outcome.status().message())),
            "the job failed: worker 0 exited with code 3");
  ASSERT_TRUE(failed_.has_value());
  EXPECT_EQ(failed_->code, 3);
}

// A shell tells by its exit code that its program was killed.
TEST_F(ProgramJobTest, ProgramThatIsKilledBelowAShellIsStartedAgain) {
  options_.restarts = 1;
  SetProgram(
      "mkdir $dir/killed 2>/dev/null && exit 137\n"
      "touch $dir/worker$rank.done");
  const auto outcome = RunProgram();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->restarts, 1);
}

// `nereusctl local` finishes a job without such a worker. Here its program has
// not done what the user wants.
TEST_F(ProgramJobTest, ProgramThatIsKilledAfterTheJobHasFinishedHasFailed) {
  options_.restarts = 5;
  SetServer("exit 0");
  SetProgram(
      "if [ $rank = 1 ]; then wait_reaped server--coordinate-only; kill -9 $$; "
      "fi");
  EXPECT_EQ(RunProgram().status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(failed_.has_value());
  EXPECT_EQ(failed_->signal, SIGKILL);
  EXPECT_EQ(ends_[1].starts, 1);
}

TEST_F(ProgramJobTest, FailedServerIsNoFailureOfAWorker) {
  SetServer("wait_for worker1.pid; exit 1");
  SetProgram("sleep 3600");
  EXPECT_EQ(RunProgram().status().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(failed_.has_value());
  ExpectNoProcess();
}

// Programs may need the servers to leave the job.
TEST_F(ProgramJobTest, SignalReachesTheProgramsBeforeTheServers) {
  SetServer(
      "trap '[ -e $dir/saved0 ] && touch $dir/after$rank; exit' INT TERM\n"
      "while :; do sleep 0.02; done");
  SetProgram(absl::StrCat(
      "trap 'sleep 0.3; touch $dir/saved$rank; exit 0' INT\n"
      "if [ $rank = 1 ]; then wait_for worker0.pid; wait_for server1.pid\n"
      "sleep 0.2; kill -INT ",
      getpid(), "; fi; while :; do sleep 0.02; done"));
  const auto outcome = RunProgram();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->signal, SIGINT);
  for (const char* file : {"saved0", "saved1", "after0", "after1"}) {
    EXPECT_TRUE(std::ifstream(absl::StrCat(folder_, "/", file))) << file;
  }
  ExpectNoProcess();
}

TEST_F(ProgramJobTest, SecondSignalKillsProgramsThatDoNotEnd) {
  SetProgram(absl::StrCat(
      "if [ $rank = 0 ]; then\n"
      "  trap 'touch $dir/signalled; exit' INT; touch $dir/ready\n"
      "  while :; do sleep 0.02; done\n"
      "fi\n"
      "trap '' INT TERM; wait_for ready; wait_for server1.pid\n"
      "kill -INT ",
      getpid(), "; wait_for signalled; kill -INT ", getpid(), "; sleep 3600"));
  const auto outcome = RunProgram();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->signal, SIGINT);
  ASSERT_TRUE(ends_[1].exit.has_value());
  EXPECT_EQ(ends_[1].exit->signal, SIGKILL);
  ExpectNoProcess();
}

}  // namespace
}  // namespace nereus
