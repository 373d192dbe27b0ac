// The fates of processes, by a table.

#include "server/admin/fate.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/exit_codes.h"

namespace nereus {
namespace {

constexpr ProcessExit kGood = {0, 0};
constexpr ProcessExit kBad = {1, 0};
constexpr ProcessExit kAgain = {kExitAgain, 0};
constexpr ProcessExit kKilled = {0, SIGKILL};
constexpr ProcessExit kCrashed = {0, SIGSEGV};

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

LocalProcess Worker(std::optional<ProcessExit> exit = std::nullopt) {
  LocalProcess process;
  process.name = "worker 0";
  process.exit = exit;
  return process;
}

LocalProcess Server(std::optional<ProcessExit> exit = std::nullopt) {
  LocalProcess process;
  process.name = "shard 1";
  process.is_server = true;
  process.exit = exit;
  return process;
}

// A job of two workers, one of which runs, that has trained.
JobSituation Training(int restarts, bool exit_decides = false) {
  JobSituation job;
  job.exit_decides = exit_decides;
  job.restarts = restarts;
  job.restarts_left = restarts;
  job.listens = true;
  job.trains = true;
  job.running_workers = 1;
  return job;
}

JobSituation Finished(JobSituation job) {
  job.finished_at = kNow - absl::Seconds(1);
  return job;
}

// Changes of a process and of a job.
LocalProcess Done(LocalProcess process) {
  process.is_done = true;
  return process;
}
LocalProcess Late(LocalProcess process) {
  process.is_late = true;
  return process;
}
LocalProcess Again(LocalProcess process) {
  process.is_restart = true;
  return process;
}
LocalProcess Drained(LocalProcess process) {
  process.seen = LocalProcess::Seen::kLeftEarly;
  return process;
}
LocalProcess Mistaken(LocalProcess process) {
  process.mistake = "wrote nonsense";
  return process;
}
LocalProcess Coordinating(LocalProcess process) {
  process.coordinates = true;
  return process;
}
LocalProcess Replaced(LocalProcess process) {
  process.is_replaced = true;
  return process;
}
JobSituation NotBegun(JobSituation job) {
  job.trains = false;
  return job;
}
JobSituation Silent(JobSituation job) {
  job.listens = false;
  return job;
}
JobSituation BackedUp(JobSituation job) {
  job.backup = true;
  return job;
}

struct Case {
  const char* what;
  LocalProcess process;
  JobSituation job;
  Fate fate;
};

void ExpectFates(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    EXPECT_EQ(FateOf(each.process, each.job, kNow), each.fate)
        << each.process.name << ": " << each.what
        << ", restarts: " << each.job.restarts;
  }
}

TEST(FateTest, AWorkerIsDoneWithItsResult) {
  JobSituation too_few = Training(0);
  too_few.min_workers = 2;
  JobSituation none_left = Training(1);
  none_left.restarts_left = 0;
  JobSituation headless = Training(1);
  headless.coordinator_failed = true;
  JobSituation long_over = Training(0);
  long_over.finished_at = kNow - absl::Hours(1);
  ExpectFates({
      {"runs", Worker(), Training(0), Fate::kNothing},
      {"done", Done(Worker(kGood)), Training(0), Fate::kNothing},
      {"no result", Worker(kGood), Training(0), Fate::kFailsJob},
      {"no result", Worker(kGood), Training(1), Fate::kRestart},
      {"an error", Worker(kBad), Training(0), Fate::kFailsJob},
      {"an error", Worker(kBad), Training(1), Fate::kRestart},
      {"killed", Worker(kKilled), Training(0), Fate::kGivenUp},
      {"killed", Worker(kKilled), Training(1), Fate::kRestart},
      {"killed before all have joined", Worker(kKilled), NotBegun(Training(0)),
       Fate::kFailsJob},
      {"killed, too few are left", Worker(kKilled), too_few, Fate::kFailsJob},
      {"no restart is left", Worker(kKilled), none_left, Fate::kFailsJob},
      {"drained", Drained(Worker(kGood)), Training(1), Fate::kGivenUp},
      {"a mistake", Mistaken(Worker()), Training(1), Fate::kFailsJob},
      {"after the job", Worker(kBad), Finished(Training(1)), Fate::kGivenUp},
      {"does not end", Worker(), long_over, Fate::kGivenUp},
      {"replaced", Replaced(Worker(kKilled)), Training(1), Fate::kNothing},
      {"no coordinator", Worker(kBad), headless, Fate::kFailsJob},
  });
}

TEST(FateTest, TheExitOfAProgramDecides) {
  const JobSituation job = Training(3, /*exit_decides=*/true);
  ExpectFates({
      {"code 0", Done(Worker(kGood)), job, Fate::kNothing},
      {"an error", Worker(kBad), job, Fate::kFailsJob},
      {"a crash", Worker(kCrashed), job, Fate::kFailsJob},
      {"killed", Worker(kKilled), job, Fate::kRestart},
      {"asks for it", Worker(kAgain), job, Fate::kRestart},
      {"killed", Worker(kKilled), Training(0, true), Fate::kFailsJob},
      {"too late", Late(Worker(kKilled)), job, Fate::kGivenUp},
      {"again, after the job", Again(Worker(kBad)), Finished(job),
       Fate::kGivenUp},
  });
}

TEST(FateTest, AServerMayHaveACopy) {
  ExpectFates({
      {"killed", Server(kKilled), Training(0), Fate::kFailsJob},
      {"killed, with a copy", Server(kKilled), BackedUp(Training(0)),
       Fate::kGivenUp},
      {"killed, with a copy", Server(kKilled), BackedUp(Training(1)),
       Fate::kRestart},
      {"killed too early", Server(kKilled), NotBegun(BackedUp(Training(0))),
       Fate::kFailsJob},
      {"an error", Server(kBad), BackedUp(Training(0)), Fate::kFailsJob},
      {"coordinates", Coordinating(Server(kKilled)), BackedUp(Training(0)),
       Fate::kFailsJob},
      {"ends before it listens", Server(kGood), Silent(Training(1)),
       Fate::kFailsJob},
      {"killed before it listens", Server(kKilled), Silent(Training(1)),
       Fate::kRestart},
      {"after the job", Server(kKilled), Finished(Training(0)), Fate::kNothing},
  });
}

}  // namespace
}  // namespace nereus
