// The log of a process whose reader stands still: a pipe, a socket or a
// terminal that is not read. Each test redirects standard error of the test's
// process, and is the reader.

#include "common/base/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/descriptor.h"
#include "common/base/logging.h"
#include "common/metrics/metric_list.h"
#include "common/metrics/process_pages.h"
#include "tests/testing/redirected_log.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::ExitedWithCode;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

Ends MakeSockets() {
  std::array<int, 2> ends = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Ends MakeTerminal() {
  Descriptor screen(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_EQ(grantpt(screen.get()), 0);
  EXPECT_EQ(unlockpt(screen.get()), 0);
  Descriptor terminal(
      open(ptsname(screen.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios mode = {};
  EXPECT_EQ(tcgetattr(terminal.get(), &mode), 0);
  cfmakeraw(&mode);  // Adds no carriage returns.
  EXPECT_EQ(tcsetattr(terminal.get(), TCSANOW, &mode), 0);
  return {std::move(screen), std::move(terminal)};
}

// Returns the text of a line: "t0 n7 xxx", for the line 7 of thread 0. Some
// lines of odd threads are longer than PIPE_BUF.
std::string TextOf(int thread, int number) {
  const size_t length = thread % 2 == 1 && number % 97 == 0 ? 6000 : 60;
  return absl::StrCat("t", thread, " n", number, " ", std::string(length, 'x'));
}

// Returns the texts of lines, without what is before them. Fails on a line that
// is not whole.
std::vector<std::string> TextsOf(const std::string& log) {
  static const std::regex& kLine =
      *new std::regex("[-0-9:TZ.]{24} [A-Z]+ \\[nereus\\] ");
  std::vector<std::string> lines = absl::StrSplit(log, '\n');
  EXPECT_EQ(lines.back(), "") << "the last line is torn";
  lines.pop_back();
  for (std::string& line : lines) {
    std::smatch head;
    const bool is_whole = std::regex_search(
        line, head, kLine, std::regex_constants::match_continuous);
    EXPECT_TRUE(is_whole) << line;
    if (is_whole) line = line.substr(static_cast<size_t>(head.length()));
  }
  return lines;
}

// Runs `body` on a thread. Expects that it ends although `log` is not read.
void ExpectEnds(RedirectedLog& log, const std::function<void()>& body) {
  const std::future<void> end = std::async(std::launch::async, body);
  EXPECT_EQ(end.wait_for(absl::ToChronoSeconds(kLogPatience)),
            std::future_status::ready);
  while (end.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    log.Read();
  }
}

// Logs until the thread waits with a line, and ten more are in the queue.
// Returns the number of lines.
int LogUntilLinesWait() {
  int count = 0;
  do {
    NEREUS_LOG(Info) << TextOf(0, ++count);
  } while (FlushLog(absl::ZeroDuration()));
  for (int i = 0; i < 10; ++i) NEREUS_LOG(Info) << TextOf(0, ++count);
  return count;
}

// Logs until lines are dropped.
void LogUntilLinesAreDropped() {
  const int64_t before = DroppedLogLines();
  while (DroppedLogLines() == before) {
    NEREUS_LOG(Info) << std::string(1000, 'x');
  }
}

// Returns the number of threads of this process.
size_t ThreadCount() {
  return static_cast<size_t>(std::distance(
      std::filesystem::directory_iterator("/proc/self/task"), {}));
}

struct Kind {
  const char* name;
  Ends (*make)();
};

class LogWriterTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, LogWriterTest,
                         testing::Values(Kind{"Pipe", MakePipe},
                                         Kind{"Socket", MakeSockets},
                                         Kind{"Terminal", MakeTerminal}),
                         [](const auto& info) { return info.param.name; });

// Checks the lines of threads in a log with a gap: each line is whole, those of
// a thread are in order, and the number of the others is told.
void ExpectAllOrTold(const std::string& log, int threads, int lines,
                     int64_t dropped) {
  std::vector<int> last(static_cast<size_t>(threads), -1);
  int64_t kept = 0;
  int64_t told = 0;
  static const std::regex& kTold = *new std::regex(
      "([0-9]+) log lines? of the last [0-9]+ s (was|were) dropped, .*");
  for (const std::string& text : TextsOf(log)) {
    int thread = 0;
    int number = 0;
    std::smatch gap;
    if (std::sscanf(text.c_str(), "t%d n%d ", &thread, &number) == 2) {
      ASSERT_LT(thread, threads) << text;
      EXPECT_EQ(text, TextOf(thread, number));
      EXPECT_GT(number, last[static_cast<size_t>(thread)]);
      last[static_cast<size_t>(thread)] = number;
      ++kept;
    } else {
      ASSERT_TRUE(std::regex_match(text, gap, kTold)) << text;
      told += std::stoll(gap[1]);
    }
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(told, dropped);
  EXPECT_EQ(kept + told, threads * lines);
}

TEST_P(LogWriterTest, ThreadsNeverWaitAndDroppedLinesAreTold) {
  constexpr int kThreads = 4;
  constexpr int kLines = 10'000;
  const int64_t before = DroppedLogLines();
  RedirectedLog log(GetParam().make());
  ExpectEnds(log, [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([i] {
        for (int n = 0; n < kLines; ++n) NEREUS_LOG(Info) << TextOf(i, n);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const int64_t dropped = DroppedLogLines() - before;
  ExpectAllOrTold(log.ReadAll(), kThreads, kLines, dropped);
  // The next line is written again.
  NEREUS_LOG(Info) << "after the gap";
  EXPECT_THAT(log.ReadAll(), testing::EndsWith("after the gap\n"));
  EXPECT_EQ(DroppedLogLines() - before, dropped);

  MetricList metrics;
  AddProcessMetrics(metrics);
  EXPECT_THAT(metrics.ToText(),
              HasSubstr(absl::StrCat("\nnereus_log_lines_dropped_total ",
                                     DroppedLogLines(), "\n")));
}

TEST_P(LogWriterTest, LinesThatWaitKeepTheirOrder) {
  const int64_t before = DroppedLogLines();
  RedirectedLog log(GetParam().make());
  int count = 0;
  ExpectEnds(log, [&] {
    count = LogUntilLinesWait();
    for (int i = 0; i < 100; ++i) NEREUS_LOG(Info) << TextOf(0, ++count);
  });
  const std::vector<std::string> texts = TextsOf(log.ReadAll());
  ASSERT_THAT(texts, SizeIs(count));
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(texts[static_cast<size_t>(i)], TextOf(0, i + 1));
  }
  EXPECT_EQ(DroppedLogLines(), before);
}

// Other processes share the flags of standard error.
TEST_P(LogWriterTest, FlagsOfStandardErrorStay) {
  RedirectedLog log(GetParam().make());
  const int flags = log.flags();
  NEREUS_LOG(Info) << "a line";
  EXPECT_EQ(log.flags(), flags);
  ExpectEnds(log, [] { LogUntilLinesWait(); });
  EXPECT_EQ(log.flags(), flags);
}

TEST_P(LogWriterTest, NoThreadExistsWhileTheReaderReads) {
  RedirectedLog log(GetParam().make());
  const size_t before = ThreadCount();
  for (int i = 0; i < 100; ++i) {
    NEREUS_LOG(Info) << "a line";
    EXPECT_LE(ThreadCount(), before);
    log.ReadAll();
  }
}

// The reason why a process ends is worth more than other lines.
TEST_P(LogWriterTest, ErrorsHaveRoomInAFullQueue) {
  RedirectedLog log(GetParam().make());
  ExpectEnds(log, [] {
    LogUntilLinesAreDropped();
    NEREUS_LOG(Warning) << "too late";
    NEREUS_LOG(Error) << "the reason";
  });
  EXPECT_THAT(log.ReadAll(),
              AllOf(HasSubstr("the reason\n"), Not(HasSubstr("too late")),
                    HasSubstr("] 2 log lines of the last ")));
}

TEST_P(LogWriterTest, ErrorsDoNotFillTheMemory) {
  const int64_t before = DroppedLogLines();
  RedirectedLog log(GetParam().make());
  ExpectEnds(log, [] {
    for (int i = 0; i < 3000; ++i) {
      NEREUS_LOG(Error) << std::string(1000, 'x');
    }
  });
  EXPECT_GT(DroppedLogLines(), before + 1000);
  EXPECT_LT(log.ReadAll().size(), 2 << 20);
}

// Logs that take lines whole. A terminal would have to take the rest of a line
// first.
class ReplacedLogTest : public LogWriterTest {};

INSTANTIATE_TEST_SUITE_P(Kinds, ReplacedLogTest,
                         testing::Values(Kind{"Pipe", MakePipe},
                                         Kind{"Socket", MakeSockets}),
                         [](const auto& info) { return info.param.name; });

TEST_P(ReplacedLogTest, NewStandardErrorGetsTheNextLines) {
  RedirectedLog old_log(GetParam().make());
  ExpectEnds(old_log, [] { LogUntilLinesWait(); });
  RedirectedLog new_log(MakePipe());
  NEREUS_LOG(Info) << "for the new one";
  EXPECT_TRUE(new_log.Await("for the new one\n"));
  EXPECT_THAT(old_log.text(), Not(HasSubstr("for the new one")));
}

// Runs `body` in a child of fork(), and expects that the child ends.
void ExpectChildEnds(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// A child has neither the thread of its parent, nor its lines.
TEST(LogWriterForkTest, ChildLogsWhileLinesOfItsParentWait) {
  RedirectedLog log(MakePipe());
  int count = 0;
  ExpectEnds(log, [&] { count = LogUntilLinesWait(); });
  const Ends ends = MakePipe();
  ExpectChildEnds([&] {
    dup2(ends[1].get(), STDERR_FILENO);
    NEREUS_LOG(Info) << "of the child";
    FlushLog(kLogPatience);
  });
  std::array<char, 4096> bytes = {};
  const ssize_t size = read(ends[0].get(), bytes.data(), bytes.size());
  ASSERT_GT(size, 0);
  EXPECT_THAT(TextsOf(std::string(bytes.data(), static_cast<size_t>(size))),
              ElementsAre("of the child"));
  EXPECT_THAT(TextsOf(log.ReadAll()), SizeIs(count));
}

#ifndef __SANITIZE_THREAD__  // A child of fork() must not start threads there.

TEST(LogWriterForkTest, ChildOfAProcessThatLogsHasAThreadOfItsOwn) {
  RedirectedLog log(MakePipe());
  int count = 0;
  ExpectEnds(log, [&] { count = LogUntilLinesWait(); });
  const std::string path = testing::TempDir() + "/child.log";
  ExpectChildEnds([&] {
    const int file = creat(path.c_str(), 0600);
    dup2(file, STDERR_FILENO);
    NEREUS_LOG(Info) << "into a file";
    if (!FlushLog(kLogPatience)) _exit(1);
  });
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(TextsOf(text), ElementsAre("into a file"));
  EXPECT_THAT(TextsOf(log.ReadAll()), SizeIs(count));
}

TEST(LogWriterForkTest, LinesThatWaitAreWrittenBeforeTheProcessEnds) {
  constexpr int kLines = 5000;  // More than a pipe takes.
  RedirectedLog log(MakePipe());
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < kLines; ++i) NEREUS_LOG(Info) << TextOf(1, i);
    std::exit(0);
  }
  int status = -1;
  while (waitpid(child, &status, WNOHANG) == 0) log.Read(/*wait_ms=*/10);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(TextsOf(log.ReadAll()), SizeIs(kLines));
}

#ifndef __SANITIZE_ADDRESS__  // A fork may leave its allocator locked.

// Threads log all the time: each of many forks finds other locks held.
TEST(LogWriterForkTest, ChildLogsWhicheverThreadHeldALock) {
  const std::string path = testing::TempDir() + "/forks.log";
  RedirectedLog log(
      {Descriptor(open("/dev/null", O_RDONLY)),
       Descriptor(open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600))});
  std::atomic<bool> ends = false;
  std::thread other([&] {
    while (!ends) NEREUS_LOG(Info) << "of the parent";
  });
  for (int i = 0; i < 100; ++i) {
    ExpectChildEnds([] {
      NEREUS_LOG(Info) << "of the child";
      if (!FlushLog(kLogPatience)) _exit(1);
    });
  }
  ends = true;
  other.join();
}

#endif

#endif

TEST(LogWriterFileTest, FileHasAllLinesAfterAFlush) {
  const std::string path = testing::TempDir() + "/log_writer_test.log";
  {
    RedirectedLog log({Descriptor(open("/dev/null", O_RDONLY)),
                       Descriptor(creat(path.c_str(), 0600))});
    for (int i = 0; i < 1000; ++i) NEREUS_LOG(Info) << TextOf(0, i);
    EXPECT_TRUE(FlushLog(kLogPatience));
  }
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<std::string> texts = TextsOf(text);
  ASSERT_THAT(texts, SizeIs(1000));
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(texts[static_cast<size_t>(i)], TextOf(0, i));
  }
}

// Gives this process a standard error that is full, with lines that wait.
void StandStill() {
  static Ends& ends = *new Ends(MakePipe());
  dup2(ends[1].get(), STDERR_FILENO);
  LogUntilLinesWait();
}

class LogWriterDeathTest : public testing::Test {
 public:
  LogWriterDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LogWriterDeathTest, ProcessEndsAlthoughTheReaderStandsStill) {
  EXPECT_EXIT(
      {
        StandStill();
        std::exit(7);
      },
      ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        StandStill();
        NEREUS_CHECK(1 > 2);
      },
      testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace nereus
