#include "server/admin/process.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

namespace nereus {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class RecordedEvents : public ProcessEvents {
 public:
  void OnOutputLine(int process, const std::string& line) override {
    EXPECT_EQ(exits.count(process), 0u) << line;
    output[process].push_back(line);
  }
  void OnErrorLine(int process, const std::string& line) override {
    EXPECT_EQ(exits.count(process), 0u) << line;
    error[process].push_back(line);
  }
  void OnExit(int process, const ProcessExit& exit) override {
    EXPECT_EQ(exits.count(process), 0u) << "reported twice";
    exits[process] = exit;
  }

  std::map<int, std::vector<std::string>> output;
  std::map<int, std::vector<std::string>> error;
  std::map<int, ProcessExit> exits;
};

// Time after which a test that hangs fails. A busy computer needs far less.
constexpr absl::Duration kLimit = absl::Minutes(2);

class ProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    // The test may have been started in the background.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      ::signal(signal, SIG_DFL);
    }
    auto group = ProcessGroup::Create(&events_);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }

  int StartShell(const std::string& script) {
    const auto process = group_->Start(
        {{"/bin/sh", "-c", script}, EnvironmentWithout("NEREUS_")});
    EXPECT_TRUE(process.ok()) << process.status();
    return process.value_or(0);
  }

  // Handles events until `done` returns true, or a signal comes. Returns the
  // signal, 0 without a signal, or -1 after an error.
  template <typename Predicate>
  int WaitUntil(const Predicate& done) {
    const absl::Time deadline = absl::Now() + kLimit;
    while (!done()) {
      const auto signal = group_->WaitOnce(absl::Seconds(1));
      EXPECT_TRUE(signal.ok()) << signal.status();
      if (!signal.ok() || *signal != 0) return signal.value_or(-1);
      if (absl::Now() > deadline) {
        ADD_FAILURE() << "nothing happened for " << kLimit;
        return -1;
      }
    }
    return 0;
  }

  int WaitForAll() {
    return WaitUntil([&] { return group_->running() == 0; });
  }

  // Returns the process id that `process` writes as its first line.
  pid_t PrintedPid(int process) {
    WaitUntil([&] { return !events_.output[process].empty(); });
    pid_t pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(events_.output[process].at(0), &pid));
    return pid;
  }

  RecordedEvents events_;
  std::unique_ptr<ProcessGroup> group_;
};

// True if there is no such process, or if it is a zombie.
bool IsGone(pid_t pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = open(path.c_str(), O_RDONLY);
  if (fd < 0) return true;
  char text[256] = {};
  const ssize_t count = read(fd, text, sizeof(text) - 1);
  close(fd);
  return count <= 0 || std::string(text).find(") Z ") != std::string::npos;
}

bool IsGoneSoon(pid_t pid) {
  const absl::Time deadline = absl::Now() + kLimit;
  while (!IsGone(pid)) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

TEST_F(ProcessTest, ReportsTheLinesOfBothStreamsThenTheExitCode) {
  const int process =
      StartShell("echo one; echo bad >&2; echo two; printf rest; exit 3");
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_THAT(events_.output[process], ElementsAre("one", "two", "rest"));
  EXPECT_THAT(events_.error[process], ElementsAre("bad"));
  EXPECT_EQ(events_.exits.at(process).code, 3);
  EXPECT_EQ(events_.exits.at(process).signal, 0);
  EXPECT_EQ(DescribeExit(events_.exits.at(process)), "exited with code 3");
}

TEST_F(ProcessTest, ReportsTheSignalThatKilledAProcess) {
  const int process = StartShell("kill -9 $$");
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_EQ(events_.exits.at(process).signal, 9);
  EXPECT_FALSE(events_.exits.at(process).ok());
  EXPECT_EQ(DescribeExit(events_.exits.at(process)),
            "was killed by signal 9 (Killed)");
}

TEST_F(ProcessTest, ReadsMoreThanAPipeHolds) {
  const int process = StartShell(
      "i=0; while [ $i -lt 20000 ]; do echo 0123456789abcdef; "
      "i=$((i+1)); done");
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_THAT(events_.output[process], SizeIs(20000));
  EXPECT_EQ(events_.output[process].back(), "0123456789abcdef");
}

TEST_F(ProcessTest, SaysWhichProgramIsMissing) {
  const auto process = group_->Start({{"/nowhere/nereus-server"}, {}});
  EXPECT_EQ(process.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(process.status().message()),
              HasSubstr("/nowhere/nereus-server"));
  EXPECT_EQ(group_->running(), 0);
  EXPECT_EQ(group_->Start({}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ProcessTest, ProcessGetsOnlyTheGivenEnvironmentAndNoInput) {
  const auto process = group_->Start(
      {{"/bin/sh", "-c", "echo \"$HOME,$NEREUS_X\"; cat"}, {"NEREUS_X=given"}});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_THAT(events_.output[*process], ElementsAre(",given"));
}

TEST_F(ProcessTest, LeavesOutVariablesByPrefix) {
  setenv("NEREUS_TEST_VARIABLE", "1", /*overwrite=*/1);
  setenv("NEREUS", "kept", /*overwrite=*/1);
  const std::vector<std::string> environment = EnvironmentWithout("NEREUS_");
  EXPECT_THAT(environment, testing::Contains("NEREUS=kept"));
  EXPECT_THAT(environment,
              testing::Not(testing::Contains(testing::StartsWith("NEREUS_"))));
  unsetenv("NEREUS_TEST_VARIABLE");
  unsetenv("NEREUS");
}

TEST_F(ProcessTest, ProcessInheritsOnlyTheThreeStreams) {
  const int inherited = dup(STDOUT_FILENO);  // Without FD_CLOEXEC.
  ASSERT_GE(inherited, 0);
  StartShell("sleep 3600");
  const int process = StartShell("cd /proc/$$/fd; echo *");
  WaitUntil([&] { return !group_->running(process); });
  close(inherited);
  // To list the folder, the shell opens a fourth descriptor.
  EXPECT_THAT(events_.output[process],
              ElementsAre(testing::AnyOf("0 1 2", "0 1 2 3")));
}

TEST_F(ProcessTest, StopEndsAllAndWaitsForThem) {
  const int first = StartShell("echo $$; exec sleep 3600");
  const int second = StartShell("echo $$; exec sleep 3600");
  PrintedPid(first);
  PrintedPid(second);
  group_->Stop(kLimit);
  EXPECT_EQ(group_->running(), 0);
  EXPECT_EQ(events_.exits.at(first).signal, SIGTERM);
  EXPECT_EQ(events_.exits.at(second).signal, SIGTERM);
  EXPECT_TRUE(IsGone(group_->pid(first)));
  EXPECT_TRUE(IsGone(group_->pid(second)));
}

TEST_F(ProcessTest, StopReportsLinesThatAProcessWritesAtItsEnd) {
  const int process = StartShell(
      "trap 'echo bye; exit 143' TERM; echo $$; while :; do sleep 0.01; done");
  PrintedPid(process);
  group_->Stop(kLimit);
  EXPECT_EQ(events_.output[process].back(), "bye");
  EXPECT_EQ(events_.exits.at(process).code, 143);
}

TEST_F(ProcessTest, StopKillsAProcessThatIgnoresSigtermAfterTheGrace) {
  const int process =
      StartShell("trap '' TERM; echo $$; sleep 3600; sleep 3600");
  PrintedPid(process);
  group_->Stop(absl::Milliseconds(50));
  EXPECT_EQ(events_.exits.at(process).signal, SIGKILL);
}

// A shell dies of SIGTERM at once, and its program does not get another signal.
TEST_F(ProcessTest, StopGivesAProgramBelowAShellItsGrace) {
  const int process = StartShell(
      "sh -c 'trap \"sleep 0.3; echo saved; exit\" TERM; echo $$\n"
      "while :; do sleep 0.01; done'; exit");
  const pid_t program = PrintedPid(process);
  group_->Stop(kLimit);
  EXPECT_EQ(events_.output[process].back(), "saved");
  EXPECT_EQ(events_.exits.at(process).signal, SIGTERM);
  EXPECT_TRUE(IsGoneSoon(program));
}

TEST_F(ProcessTest, SignalGivesAProgramBelowAShellItsTime) {
  const int process = StartShell(
      "sh -c 'trap \"sleep 0.3; echo saved; exit\" HUP; echo $$\n"
      "while :; do sleep 0.01; done'; exit");
  PrintedPid(process);
  EXPECT_TRUE(group_->Signal(process, SIGHUP));
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_EQ(events_.output[process].back(), "saved");
}

TEST_F(ProcessTest, StopKillsAProgramBelowAShellAfterTheGrace) {
  const int process = StartShell(
      "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done'; "
      "exit");
  const pid_t program = PrintedPid(process);
  group_->Stop(absl::Milliseconds(200));
  EXPECT_EQ(events_.exits.at(process).signal, SIGTERM);
  EXPECT_TRUE(IsGoneSoon(program));
}

TEST_F(ProcessTest, SignalToThisProcessEndsTheGrace) {
  const int process =
      StartShell("trap '' TERM; echo $$; sleep 3600; sleep 3600");
  PrintedPid(process);
  ASSERT_EQ(raise(SIGINT), 0);
  const absl::Time start = absl::Now();
  group_->Stop(2 * kLimit);
  EXPECT_LT(absl::Now() - start, kLimit);
  EXPECT_EQ(events_.exits.at(process).signal, SIGKILL);
}

TEST_F(ProcessTest, WaitReturnsTheSignalsThatAskThisProcessToEnd) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ASSERT_EQ(raise(signal), 0);
    EXPECT_EQ(WaitUntil([] { return false; }), signal);
  }
}

// nohup ignores SIGHUP for the program that it starts.
TEST_F(ProcessTest, SignalThatThisProcessIgnoresStaysIgnored) {
  group_.reset();
  signal(SIGHUP, SIG_IGN);
  auto group = ProcessGroup::Create(&events_);
  ASSERT_TRUE(group.ok()) << group.status();
  group_ = *std::move(group);
  ASSERT_EQ(raise(SIGHUP), 0);
  const int process = StartShell("kill -HUP $$; echo alive");
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_THAT(events_.output[process], ElementsAre("alive"));
  EXPECT_TRUE(events_.exits.at(process).ok());
  signal(SIGHUP, SIG_DFL);
}

TEST_F(ProcessTest, ChildrenOfAChildAreKilledWhenTheChildEnds) {
  const int process = StartShell("sleep 3600 & echo $!; exit 0");
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_TRUE(IsGoneSoon(PrintedPid(process)));
}

TEST_F(ProcessTest, DestructionLeavesNoProcess) {
  const int process = StartShell("echo $$; exec sleep 3600");
  const pid_t pid = PrintedPid(process);
  group_.reset();
  EXPECT_TRUE(IsGone(pid));
  EXPECT_THAT(events_.exits, SizeIs(1));
}

TEST_F(ProcessTest, DestructionRestoresTheSignalMask) {
  sigset_t mask;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
  EXPECT_TRUE(sigismember(&mask, SIGINT));
  group_.reset();
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
  EXPECT_FALSE(sigismember(&mask, SIGINT));
}

TEST_F(ProcessTest, SignalReachesAProcessThatRunsAndItsChildren) {
  // `wait` ends at a signal. A shell that runs a child in the foreground would
  // miss a signal that comes while it starts the child.
  const int process =
      StartShell("trap 'exit 5' USR1; sleep 3600 & echo $$; wait");
  PrintedPid(process);
  EXPECT_TRUE(group_->Signal(process, 0));
  EXPECT_TRUE(group_->Signal(process, SIGUSR1));
  EXPECT_EQ(WaitForAll(), 0);
  EXPECT_EQ(events_.exits.at(process).code, 5);
  EXPECT_FALSE(group_->Signal(process, SIGUSR1));
  EXPECT_FALSE(group_->Signal(process + 1, SIGUSR1));
}

TEST(ShellCodeTest, SignalCountsFrom128) {
  EXPECT_EQ(ShellCode({3, 0}), 3);
  EXPECT_EQ(ShellCode({0, SIGKILL}), 137);
}

// Returns the names of the processes that lead a session and run this program.
std::vector<std::string> NamesOfSessionLeaders() {
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = 0;
    std::error_code error;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const auto exe = std::filesystem::read_symlink(entry.path() / "exe", error);
    if (error || exe != program || getsid(pid) != pid) continue;
    std::ifstream file(entry.path() / "comm");
    std::getline(file, names.emplace_back());
  }
  return names;
}

// `killall -9 nereusctl` would kill the guard, too, if it had that name.
TEST_F(ProcessTest, GuardHasANameOfItsOwn) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const auto has_guard = [] {
    return absl::c_linear_search(NamesOfSessionLeaders(), "nereus-guard");
  };
  while (!has_guard() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(has_guard());
}

// Runs in a forked process: starts a child that has a child, has it write both
// ids to `report`, and kills itself.
[[noreturn]] void RunOwnerThatIsKilled(int report) {
  RecordedEvents events;
  auto group = ProcessGroup::Create(&events);
  if (!group.ok()) _exit(1);
  const auto process = (*group)->Start(
      {{"/bin/sh", "-c", "sleep 3600 & echo $$ $!; wait"}, {"PATH=/bin"}});
  if (!process.ok()) _exit(1);
  while (events.output[*process].empty()) {
    if (!(*group)->WaitOnce(kLimit).ok()) _exit(1);
  }
  const std::string& pids = events.output[*process].front();
  if (write(report, pids.data(), pids.size()) < 0) _exit(1);
  kill(getpid(), SIGKILL);
  _exit(1);
}

TEST(ProcessDeathTest, ChildrenAndTheirChildrenDieWithAKilledOwner) {
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t owner = fork();
  ASSERT_GE(owner, 0);
  if (owner == 0) RunOwnerThatIsKilled(report[1]);
  close(report[1]);  // Otherwise the read could wait for ever.
  char pids[100] = {};
  ASSERT_GT(read(report[0], pids, sizeof(pids) - 1), 0);
  close(report[0]);
  int status = 0;
  ASSERT_EQ(waitpid(owner, &status, 0), owner);
  EXPECT_TRUE(WIFSIGNALED(status));
  pid_t child = 0;
  pid_t child_of_child = 0;
  ASSERT_EQ(sscanf(pids, "%d %d", &child, &child_of_child), 2) << pids;
  EXPECT_TRUE(IsGoneSoon(child)) << child;
  EXPECT_TRUE(IsGoneSoon(child_of_child)) << child_of_child;
}

// A folder like /proc.
class GroupMembersTest : public testing::Test {
 protected:
  GroupMembersTest() : proc_(testing::TempDir() + "group_members_test") {
    std::filesystem::remove_all(proc_);
  }

  void Add(const std::string& process, const std::string& stat) {
    std::filesystem::create_directories(proc_ + "/" + process);
    std::ofstream(proc_ + "/" + process + "/stat") << stat;
  }

  const std::string proc_;
};

TEST_F(GroupMembersTest, AnotherProcessOfTheGroupIsFound) {
  Add("7", "7 (leader) S 1 7 7\n");
  Add("8", "8 (of ) another (group) R 1 9 9\n");
  Add("self", "no process");
  EXPECT_FALSE(HasOtherMembers(7, proc_));
  Add("9", "9 (a (name) ) S 1 7 7\n");
  EXPECT_TRUE(HasOtherMembers(7, proc_));
}

TEST_F(GroupMembersTest, AProcessThatHasEndedDoesNotCount) {
  Add("8", "8 (zombie) Z 1 7 7\n");
  Add("9", "");
  EXPECT_FALSE(HasOtherMembers(7, proc_));
  EXPECT_FALSE(HasOtherMembers(7, proc_ + "/nothing"));
}

// Reading a folder is an error, as is reading the line of a process that ends
// after its file was opened.
TEST_F(GroupMembersTest, AnErrorOfReadingIsNoException) {
  std::filesystem::create_directories(proc_ + "/8/stat");
  EXPECT_FALSE(HasOtherMembers(7, proc_));
}

using testing::IsEmpty;

TEST(LineBufferTest, JoinsPiecesAndSplitsAtLineFeeds) {
  LineBuffer buffer(/*line_bytes_max=*/100);
  EXPECT_THAT(buffer.Append("ab"), IsEmpty());
  EXPECT_THAT(buffer.Append("c\n\nde\nf"), ElementsAre("abc", "", "de"));
  EXPECT_THAT(buffer.Append("g\n"), ElementsAre("fg"));
  EXPECT_EQ(buffer.Finish(), std::nullopt);
}

TEST(LineBufferTest, FinishGivesTheUnfinishedLineOnce) {
  LineBuffer buffer(/*line_bytes_max=*/100);
  EXPECT_THAT(buffer.Append("last words"), IsEmpty());
  EXPECT_EQ(buffer.Finish(), "last words");
  EXPECT_EQ(buffer.Finish(), std::nullopt);
}

TEST(LineBufferTest, CutsALongLineAtTheLimitAndGoesOnWithTheNext) {
  LineBuffer buffer(/*line_bytes_max=*/4);
  EXPECT_THAT(buffer.Append("abcdef"), IsEmpty());
  EXPECT_THAT(buffer.Append("ghi"), IsEmpty());
  EXPECT_THAT(buffer.Append("j\nabcd\nabcde\nxy\n"),
              ElementsAre("abcd (6 more bytes are cut)", "abcd",
                          "abcd (1 more bytes are cut)", "xy"));
}

}  // namespace

}  // namespace nereus
