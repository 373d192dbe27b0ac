// Disks that hang. Real servers and clients in one process train while calls of
// the C library do not return (tests/testing/slow_disk.cc).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/status.h"
#include "common/rpc/admin_client.h"
#include "server/report/job_health.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/program_run.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kLease = absl::Seconds(3);

// Longest time of an answer that waits for no disk, on a busy machine.
constexpr absl::Duration kAtOnce = absl::Seconds(1);

class SlowDiskTest : public testing::Test {
 protected:
  SlowDiskTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    setenv("SLOW_DISK", control_.c_str(), /*overwrite=*/1);
  }
  ~SlowDiskTest() override { unsetenv("SLOW_DISK"); }

  // Makes an operation on files whose path contains `text` hang.
  void Hang(const std::string& operation, const std::string& text) {
    std::ofstream(control_) << operation << " " << text << "\n";
  }
  void EndHang() { std::filesystem::remove(control_); }

  ServerOptions Options() const {
    ServerOptions options = PlainServerOptions();
    options.spec.workers = 2;
    options.spec.min_workers = 1;
    options.spec.lease_seconds = absl::ToDoubleSeconds(kLease);
    options.state_file = folder_ + "/state.db";
    options.checkpoint_dir = folder_ + "/checkpoints";
    return options;
  }

  // Lets a worker train until `stops`, and leave.
  static absl::Status Train(ToyWorker& worker, const ClientOptions& options,
                            const std::atomic<bool>& stops) {
    NEREUS_TRY(worker.Connect(options));
    while (!stops) NEREUS_TRY(StatusOf(worker.NextStep()));
    return worker.client()->Leave();
  }

  // Returns the job's status. Fails if that takes long.
  static JobStatus StatusAtOnce(const LocalCluster& cluster) {
    const absl::Time from = SteadyNow();
    const auto status =
        FetchJobStatus(cluster.coordinator_address(), absl::Seconds(10));
    EXPECT_LT(SteadyNow() - from, kAtOnce);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? *status : JobStatus();
  }

  const std::string folder_ = absl::StrCat(
      testing::TempDir(), "/slow_disk_",
      testing::UnitTest::GetInstance()->current_test_info()->name());
  const std::string control_ = folder_ + "/control";
};

// A save that hangs holds up neither steps nor the status, and is told within
// two leases.
TEST_F(SlowDiskTest, StateThatHangsHoldsUpNoStep) {
  LocalCluster cluster(Options());
  ToyWorker first(SmallModel()), second(SmallModel());
  std::atomic<bool> stops = false;
  const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
    if (i < 2) {
      return Train(i == 0 ? first : second, cluster.client_options(), stops);
    }
    EXPECT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return status.steps.begun > 2; }));
    Hang("fsync", "state.db");
    // The request is saved.
    EXPECT_TRUE(RequestCheckpoint(cluster.coordinator_address(), kAtOnce).ok());
    const absl::Time from = SteadyNow();
    JobStatus status;
    while (status.disk_waits.empty() && SteadyNow() - from < 2 * kLease) {
      status = StatusAtOnce(cluster);
    }
    EXPECT_EQ(status.disk_waits.size(), 1u);
    EXPECT_THAT(Judge(status).text, HasSubstr("with saving the job's state"));
    const int64_t begun = status.steps.begun;
    absl::SleepFor(absl::Seconds(1));
    EXPECT_GT(StatusAtOnce(cluster).steps.begun, begun + 10);
    // No worker counts as dead for a question that the coordinator holds back.
    absl::SleepFor(2 * kLease);
    EndHang();
    EXPECT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
      return status.disk_waits.empty() && status.checkpoint.round >= 0;
    }));
    stops = true;
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

// The next epoch waits for the save. The job says so, and then goes on.
TEST_F(SlowDiskTest, EpochWaitsForAStateThatHangsAndSaysSo) {
  LocalCluster cluster(Options());
  ToyWorker first(SmallModel()), second(SmallModel());
  std::atomic<bool> stops = false, dies = false;
  const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
    if (i == 0) return Train(first, cluster.client_options(), stops);
    if (i == 1) {
      NEREUS_TRY(second.Connect(cluster.client_options()));
      while (!dies) NEREUS_TRY(StatusOf(second.NextStep()));
      second.Die();
      return absl::OkStatus();
    }
    EXPECT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return status.steps.begun > 2; }));
    Hang("fsync", "state.db");
    dies = true;
    const absl::Time from = SteadyNow();
    JobStatus status;
    while (SteadyNow() - from < 4 * kLease) status = StatusAtOnce(cluster);
    EXPECT_EQ(status.state, JobState::kRunning);
    EXPECT_THAT(Judge(status).text,
                AllOf(HasSubstr("The job waits"),
                      HasSubstr("with saving the job's state"),
                      HasSubstr("messages to members wait for this")));
    // The log does not run ahead.
    for (const JobStatus::Event& event : status.events) {
      EXPECT_FALSE(absl::StrContains(event.text, "epoch 2")) << event.text;
    }
    EndHang();
    const int64_t begun = status.steps.begun;
    EXPECT_TRUE(cluster.AwaitStatus([&](const JobStatus& status) {
      return status.epoch == 2 && status.steps.begun > begun;
    }));
    stops = true;
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST_F(SlowDiskTest, ManifestThatHangsIsToldAndHoldsUpNoStep) {
  LocalCluster cluster(Options());
  ToyWorker first(SmallModel()), second(SmallModel());
  std::atomic<bool> stops = false;
  const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
    if (i < 2) {
      return Train(i == 0 ? first : second, cluster.client_options(), stops);
    }
    EXPECT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return status.steps.begun > 2; }));
    Hang("rename", "manifest");
    EXPECT_TRUE(RequestCheckpoint(cluster.coordinator_address(), kAtOnce).ok());
    EXPECT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return !status.disk_waits.empty(); }));
    const JobStatus status = StatusAtOnce(cluster);
    EXPECT_THAT(Judge(status).text,
                HasSubstr("with writing the manifest of round"));
    absl::SleepFor(absl::Seconds(1));
    EXPECT_GT(StatusAtOnce(cluster).steps.begun, status.steps.begun + 10);
    EndHang();
    EXPECT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
      return status.disk_waits.empty() && status.checkpoint.round >= 0;
    }));
    stops = true;
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

// Starts a server with a disk that hangs from its address on, and a worker.
// Prints the server's exit code.
constexpr char kHangingServer[] = R"sh(
coproc SERVER {
  LD_PRELOAD=tests/testing/slow_disk_preload.so server/nereus-server --shard=0 \
    --servers=1 --workers=1 --lease=3 --state="$0/state.db"
}
server=$SERVER_PID
read -r _ control _ <&"${SERVER[0]}"
echo fsync state.db >"$SLOW_DISK"
worker/trainer/nereus-worker --coordinator="${control#control=}" 2>/dev/null &
wait "$server"
echo "code $?"
kill $!
)sh";

// A process whose disk never goes on ends all the same, with the code that asks
// its supervisor for another one.
TEST_F(SlowDiskTest, CoordinatorWithADiskThatNeverGoesOnEnds) {
  ProgramRun run({"/bin/bash", "-c", kHangingServer, folder_});
  EXPECT_TRUE(
      run.WaitUntil([&] { return absl::StrContains(run.output(), "code "); },
                    absl::Minutes(1)));
  EXPECT_EQ(run.output(),
            absl::StrCat("code ", ExitCodeOf(UnavailableError("")), "\n"));
  EXPECT_THAT(run.error(), AllOf(HasSubstr("with saving the job's state"),
                                 HasSubstr("the disk does not answer"),
                                 HasSubstr("and is given up")));
}

}  // namespace
}  // namespace nereus
