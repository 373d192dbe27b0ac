#include "common/share/file/board_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/share/turn_taker.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

class BoardFileTest : public testing::Test {
 protected:
  BoardFileTest() {
    folder_ = testing::TempDir() + "/board_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }

  std::unique_ptr<BoardFile> Open() {
    auto file = BoardFile::Open({.folder = folder_});
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  absl::Status Refusal(const std::string& folder) {
    return BoardFile::Open({.folder = folder}).status();
  }

  std::string folder_;
};

TurnSlot Named(const std::string& job) {
  TurnSlot slot;
  slot.job = job;
  return slot;
}

TEST_F(BoardFileTest, FoldersThatOthersMayUseAreRefused) {
  EXPECT_THAT(Refusal("board"), IsInvalidArgument("absolute"));
  EXPECT_THAT(Refusal(folder_ + "/a/b"), IsInvalidArgument("No such file"));
  const std::string link = folder_ + "_link";
  ASSERT_EQ(symlink(folder_.c_str(), link.c_str()), 0);
  EXPECT_THAT(Refusal(link), IsInvalidArgument("symbolic link"));
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  EXPECT_THAT(Refusal(folder_), IsInvalidArgument("has mode 0755, must"));
  EXPECT_THAT(Refusal("/proc/self"), IsInvalidArgument("symbolic link"));
  ASSERT_EQ(chmod(folder_.c_str(), 0770), 0);
  EXPECT_TRUE(BoardFile::Open({.folder = folder_, .allows_group = true}).ok());
}

TEST_F(BoardFileTest, AMissingFolderIsMadeForItsUserAlone) {
  const std::string folder = folder_ + "/gpu0";
  ASSERT_TRUE(BoardFile::Open({.folder = folder}).ok());
  struct stat info = {};
  ASSERT_EQ(stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700);
  ASSERT_EQ(stat((folder + "/board").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(BoardFileTest, DamagedBoardsAreRefusedByName) {
  const std::string path = folder_ + "/board";
  Open();
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  EXPECT_THAT(Refusal(folder_),
              IsFailedPrecondition("it has 100 bytes, must have"));
  ASSERT_EQ(unlink(path.c_str()), 0);
  Open();
  const int fd = open(path.c_str(), O_RDWR);
  const uint64_t other = 0x1234;
  ASSERT_EQ(pwrite(fd, &other, sizeof(other), 0), sizeof(other));
  close(fd);
  EXPECT_THAT(Refusal(folder_),
              IsFailedPrecondition("begins with 0x1234, must begin with"));
}

TEST_F(BoardFileTest, ABoardThatIsRemovedIsNoticed) {
  const auto file = Open();
  EXPECT_EQ(file->Check(), absl::OkStatus());
  ASSERT_EQ(unlink((folder_ + "/board").c_str()), 0);
  EXPECT_THAT(file->Check(), IsFailedPrecondition("was removed"));
}

TEST_F(BoardFileTest, AFullBoardRefusesAnotherClient) {
  std::vector<std::unique_ptr<BoardFile>> all;
  for (int i = 0; i < kTurnSlots; ++i) all.push_back(Open());
  EXPECT_THAT(Refusal(folder_), IsError(absl::StatusCode::kResourceExhausted,
                                        "is full: 64 processes"));
  all.erase(all.begin() + 3);
  const auto next = Open();
  EXPECT_EQ(next->board().own(), 3);
}

// Returns the median of times.
absl::Duration MedianOf(std::vector<absl::Duration> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Waits for the turn.
void Await(const BoardFile& file, TurnTaker& taker) {
  while (true) {
    const uint32_t seen = file.changes();
    const auto until = taker.Try(SteadyNow());
    if (!until->has_value()) return;
    file.Await(seen, **until);
  }
}

TEST_F(BoardFileTest, AClientThatWaitsWakesWhenTheTurnIsFree) {
  const auto a = Open();
  const auto b = Open();
  TurnTaker first(&a->board(), Named("a"));
  TurnTaker second(&b->board(), Named("b"));
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 15; ++i) {
    first.Ask(0, 0, absl::Milliseconds(1), SteadyNow());
    ASSERT_EQ(*first.Try(SteadyNow()), std::nullopt);
    second.Ask(0, 0, absl::Milliseconds(1), SteadyNow());
    absl::Time given_at;
    std::thread gives([&] {
      absl::SleepFor(absl::Milliseconds(5));
      given_at = SteadyNow();
      first.Give(given_at);
    });
    Await(*b, second);
    waits.push_back(SteadyNow() - given_at);
    gives.join();
    EXPECT_TRUE(second.Holds());
    second.Give(SteadyNow());
  }
  EXPECT_LT(MedianOf(waits), BoardFile::kLookInterval / 3);
}

TEST_F(BoardFileTest, AReaderSeesTheTable) {
  const auto a = Open();
  const auto b = Open();
  TurnTaker second(&b->board(), Named("b"));
  second.Ask(7, 0.5, absl::Milliseconds(1), SteadyNow());
  ASSERT_EQ(*second.Try(SteadyNow()), std::nullopt);
  const auto reader = BoardFile::OpenToRead(folder_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto table = (*reader)->board().Read();
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->holder, 1);
  EXPECT_EQ(table->slots[1].job, "b");
  EXPECT_EQ(table->slots[1].step, 7);
  EXPECT_EQ(LeastKey(*table), 0.5);
  EXPECT_FALSE(table->slots[2].is_alive);
}

// Child process.
struct Child {
  pid_t pid = 0;
  int reads = -1;  // Pipe from the child.

  // Returns the next byte of the child.
  char Next() const {
    char byte = 0;
    EXPECT_EQ(read(reads, &byte, 1), 1);
    return byte;
  }
  void Kill() const {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(reads);
  }
};

// Runs `body`, with the pipe to write to, in a child process, which then waits
// to be killed.
template <typename F>
Child Fork(F body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    body(ends[1]);
    while (true) pause();
  }
  close(ends[1]);
  return {pid, ends[0]};
}

void Say(int pipe, char byte) {
  if (write(pipe, &byte, 1) != 1) _exit(1);
}

constexpr absl::Duration kTurn = absl::Milliseconds(1);

class TwoProcessesTest : public BoardFileTest {
 protected:
  // Starts a child that takes the turn, says t, and then says h or n again and
  // again: it has the turn, or not.
  Child StartHolder(absl::Duration limit) {
    return Fork([&](int out) {
      auto* const own = Open().release();
      TurnTaker holder(&own->board(), Named("b"), limit);
      holder.Ask(0, 0, kTurn, SteadyNow());
      if (*holder.Try(SteadyNow()) != std::nullopt) _exit(2);
      Say(out, 't');
      while (true) {
        absl::SleepFor(absl::Milliseconds(1));
        Say(out, holder.Holds() ? 'h' : 'n');
      }
    });
  }
};

TEST_F(TwoProcessesTest, AKilledHolderFreesTheTurn) {
  const auto file = Open();
  TurnTaker taker(&file->board(), Named("a"));
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 20; ++i) {
    const Child child = StartHolder(absl::Seconds(100));
    ASSERT_EQ(child.Next(), 't');
    taker.Ask(0, 0, kTurn, SteadyNow());
    absl::Time killed_at;
    std::thread kills([&] {
      absl::SleepFor(absl::Milliseconds(5));
      killed_at = SteadyNow();
      child.Kill();
    });
    Await(*file, taker);
    waits.push_back(SteadyNow() - killed_at);
    kills.join();
    EXPECT_TRUE(taker.Holds());
    taker.Give(SteadyNow());
  }
  EXPECT_LT(MedianOf(waits), absl::Milliseconds(100));
}

TEST_F(TwoProcessesTest, AStoppedHolderIsPassedAndKnowsItWhenItGoesOn) {
  constexpr absl::Duration kLimit = absl::Milliseconds(150);
  const auto file = Open();
  TurnTaker taker(&file->board(), Named("a"));
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 20; ++i) {
    const Child child = StartHolder(kLimit);
    ASSERT_EQ(child.Next(), 't');
    kill(child.pid, SIGSTOP);
    const absl::Time from = SteadyNow();
    taker.Ask(0, 0, kTurn, from);
    Await(*file, taker);
    waits.push_back(SteadyNow() - from);
    EXPECT_TRUE(taker.Holds());
    kill(child.pid, SIGCONT);
    // Bytes from before the stop come first.
    char last = 'h';
    const absl::Time until = SteadyNow() + absl::Seconds(10);
    while (last == 'h' && SteadyNow() < until) last = child.Next();
    EXPECT_EQ(last, 'n');
    EXPECT_TRUE(taker.Holds());
    taker.Give(SteadyNow());
    child.Kill();
  }
  EXPECT_GT(MedianOf(waits), kLimit / 2);
  EXPECT_LT(MedianOf(waits), kLimit + absl::Milliseconds(100));
}

// A data loader is such a child: it outlives its parent for a while.
TEST_F(TwoProcessesTest, AForkedChildDoesNotKeepItsParentAlive) {
  auto file = Open();
  const auto other = Open();
  TurnTaker taker(&file->board(), Named("a"));
  const Child child = Fork([](int out) { Say(out, 'r'); });
  ASSERT_EQ(child.Next(), 'r');
  EXPECT_TRUE(other->board().Read()->slots[0].is_alive);
  file.reset();
  EXPECT_FALSE(other->board().Read()->slots[0].is_alive);
  child.Kill();
}

// Any program of the user may damage the board.
TEST(TurnBoardTest, NoMemoryIsTrusted) {
  int damaged = 0;
  int decided = 0;
  for (const uint64_t seed : TestSeeds(2000)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const auto memory = std::make_unique<TurnBoardMemory>();
    TurnBoard::Format(*memory, 1 << 30);
    const TurnBoard::Events events = {[](int) { return true; }, [] {}};
    for (int slot = 0; slot < 4; ++slot) {
      TurnBoard board(memory.get(), slot, events);
      TurnTaker taker(&board, Named("job"));
      taker.Ask(3, 1.5, absl::Milliseconds(2), SteadyNow());
    }
    auto* const words = reinterpret_cast<uint64_t*>(memory.get());
    const size_t used =
        (offsetof(TurnBoardMemory, slots) + 4 * sizeof(TurnBoardMemory::Slot)) /
        sizeof(uint64_t);
    for (uint64_t i = 0; i <= random.Below(4); ++i) {
      words[random.Below(used)] =
          random.Chance(0.5) ? random.Next() : random.Below(300);
    }
    const TurnBoard board(memory.get(), 0, events);
    const absl::StatusOr<TurnTable> table = board.Read();
    if (!table.ok()) {
      ++damaged;
      EXPECT_EQ(table.status().code(), absl::StatusCode::kDataLoss);
      continue;
    }
    ++decided;
    DecideTurn(*table, 0, SteadyNow());
    EXPECT_NE(DescribeTurnWait(*table, 0, SteadyNow()), "");
  }
  if (!TriesAllSeeds()) return;
  EXPECT_GT(damaged, 100);
  EXPECT_GT(decided, 100);
}

}  // namespace
}  // namespace nereus
