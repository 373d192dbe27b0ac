// Measures how fast a device changes hands (docs/sharing.md): the time from the
// end of a turn until the next process, which waits for it, has the turn.
//
//   handover_benchmark --processes=2 --turn=5 --turns=2000
//
// Each process computes for the time of a turn, in milliseconds, on any core,
// and asks again. Prints the median, the 99th percentile and the largest time,
// in microseconds; --json prints an object. Also prints the cost of a turn of a
// process that has the device alone.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/flags/flags.h"
#include "common/share/file/board_file.h"
#include "common/share/turn_taker.h"

namespace nereus {
namespace {

struct Flags {
  int processes = 2;
  double turn_ms = 5;
  int turns = 2000;
  bool json = false;
};

void Spin(absl::Duration time) {
  const absl::Time until = SteadyNow() + time;
  while (SteadyNow() < until) {
  }
}

// Takes turns in one process. Returns the hand-overs to it, in nanoseconds.
std::vector<int64_t> TakeTurns(const std::string& folder, const Flags& flags,
                               int turns, absl::Duration computes) {
  const auto file = BoardFile::Open({.folder = folder});
  NEREUS_CHECK(file.ok()) << file.status();
  TurnSlot slot;
  slot.job_id = static_cast<uint64_t>(getpid());
  TurnTaker taker(&(*file)->board(), slot);
  std::vector<int64_t> handovers;
  for (int step = 0; step < turns; ++step) {
    const absl::Time asked = SteadyNow();
    taker.Ask(step, step * flags.turn_ms, computes, asked);
    while (true) {
      const uint32_t seen = (*file)->changes();
      const auto until = taker.Try(SteadyNow());
      NEREUS_CHECK(until.ok()) << until.status();
      if (!until->has_value()) break;
      (*file)->Await(seen, **until);
    }
    const absl::Time taken = SteadyNow();
    // The table is that of this turn: it does not change before its end.
    const auto table = (*file)->board().Read();
    NEREUS_CHECK(table.ok()) << table.status();
    if (table->free_since > asked) {
      handovers.push_back(absl::ToInt64Nanoseconds(taken - table->free_since));
    }
    Spin(computes);
    taker.Give(SteadyNow());
  }
  return handovers;
}

// Runs all processes, and returns their hand-overs in order of size.
std::vector<int64_t> RunProcesses(const std::string& folder,
                                  const Flags& flags) {
  std::vector<FILE*> results;
  for (int i = 0; i < flags.processes; ++i) {
    results.push_back(tmpfile());
    NEREUS_CHECK(results.back() != nullptr) << "cannot make a file";
    const pid_t child = fork();
    NEREUS_CHECK(child >= 0) << "cannot fork";
    if (child != 0) continue;
    const auto found = TakeTurns(folder, flags, flags.turns,
                                 absl::Milliseconds(flags.turn_ms));
    fwrite(found.data(), sizeof(int64_t), found.size(), results.back());
    fflush(results.back());
    _exit(0);
  }
  std::vector<int64_t> all;
  for (int i = 0; i < flags.processes; ++i) {
    int status = 0;
    NEREUS_CHECK(wait(&status) > 0 && status == 0) << "a process has failed";
  }
  for (FILE* const result : results) {
    rewind(result);
    int64_t time = 0;
    while (fread(&time, sizeof(time), 1, result) == 1) all.push_back(time);
    fclose(result);
  }
  std::sort(all.begin(), all.end());
  return all;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures how fast a shared device changes hands.",
               "handover_benchmark");
  AddNumber(app, "processes", flags.processes, 2, kTurnSlots, "processes");
  AddNumber(app, "turn", flags.turn_ms, 0.0, 1000.0, "milliseconds of a turn");
  AddNumber(app, "turns", flags.turns, 1, 1'000'000, "turns of each process");
  AddSwitch(app, "json", flags.json, "print JSON");
  if (const int code = ParseFlags(app, argc, argv, nullptr); code >= 0) {
    return code;
  }
  std::string folder = "/dev/shm/handover_XXXXXX";
  NEREUS_CHECK(mkdtemp(folder.data()) != nullptr) << "cannot make " << folder;
  constexpr int kAlone = 10'000;
  const absl::Time start = SteadyNow();
  TakeTurns(folder, flags, kAlone, absl::ZeroDuration());
  const double alone_us =
      absl::ToDoubleMicroseconds(SteadyNow() - start) / kAlone;
  const std::vector<int64_t> all = RunProcesses(folder, flags);
  std::filesystem::remove_all(folder);
  NEREUS_CHECK(!all.empty()) << "the device never changed hands";
  const auto at = [&all](double share) {
    const auto last = static_cast<double>(all.size() - 1);
    return static_cast<double>(all[static_cast<size_t>(share * last)]) / 1e3;
  };
  std::printf(flags.json
                  ? "{\"processes\": %d, \"turn_seconds\": %g, \"handovers\": "
                    "%zu, \"us_median\": %.1f, \"us_p99\": %.1f, \"us_max\": "
                    "%.1f, \"us_turn_alone\": %.2f}\n"
                  : "%d processes, turns of %g s: %zu hand-overs, median %.1f "
                    "us, p99 %.1f us, max %.1f us; a turn alone costs %.2f "
                    "us\n",
              flags.processes, flags.turn_ms / 1e3, all.size(), at(0.5),
              at(0.99), at(1), alone_us);
  return 0;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
