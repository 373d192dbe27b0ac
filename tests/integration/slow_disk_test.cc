// Disks that hang. Real servers and clients in one process train while calls of
// the C library do not return (tests/testing/slow_disk.cc).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/status.h"
#include "common/rpc/admin_client.h"
#include "server/report/job_health.h"
#include "tests/testing/held_port.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/program_run.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr absl::Duration kLease = absl::Seconds(3);

// Longest time of an answer that waits for no disk, on a busy machine.
constexpr absl::Duration kAtOnce = absl::Seconds(2);

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

  ServerOptions Options(int servers) const {
    ServerOptions options = PlainServerOptions();
    options.spec.shards = servers;
    options.spec.workers = 2;
    options.spec.min_workers = 1;
    options.spec.lease_seconds = absl::ToDoubleSeconds(kLease);
    options.state_file = folder_ + "/state.db";
    options.checkpoint_dir = folder_ + "/checkpoints";
    return options;
  }

  // Trains with two workers. Calls `body` after the first steps, and then lets
  // the workers leave. The second worker dies as soon as `dies_` is true.
  void WhileTwoTrain(const std::function<void(LocalCluster&)>& body,
                     int servers = 1) {
    LocalCluster cluster(Options(servers));
    std::atomic<bool> stops = false;
    const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
      if (i == 2) {
        EXPECT_TRUE(cluster.AwaitStatus(
            [](const JobStatus& status) { return status.steps.begun > 2; }));
        body(cluster);
        stops = true;
        return absl::OkStatus();
      }
      ToyWorker worker(SmallModel());
      NEREUS_TRY(worker.Connect(cluster.client_options()));
      while (!stops) {
        if (i == 1 && dies_) return absl::OkStatus();
        const absl::Status step = worker.NextStep().status();
        // The job has gone back.
        if (!absl::IsOutOfRange(step)) NEREUS_TRY(absl::Status(step));
      }
      return worker.client()->Leave();
    });
    EXPECT_THAT(results, Each(absl::OkStatus()));
  }

  // Asks for a checkpoint, and expects that the coordinator answers at once.
  static void AskForCheckpoint(const LocalCluster& cluster) {
    EXPECT_TRUE(RequestCheckpoint(cluster.coordinator_address(), kAtOnce).ok());
  }

  // Waits until the job has a checkpoint after the first one, which each job
  // makes, and no disk is slow any more.
  static void AwaitLaterCheckpoint(const LocalCluster& cluster) {
    EXPECT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
      return status.disk_waits.empty() && status.checkpoint.round > 0;
    }));
  }

  // Expects that training goes on.
  static void ExpectSteps(const LocalCluster& cluster) {
    const int64_t begun = StatusAtOnce(cluster).steps.begun;
    const absl::Time from = SteadyNow();
    int64_t now = begun;
    while (now < begun + 4 && SteadyNow() - from < 2 * kLease) {
      now = StatusAtOnce(cluster).steps.begun;
    }
    EXPECT_GE(now, begun + 4);
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

  std::atomic<bool> dies_ = false;  // See WhileTwoTrain.
  const std::string folder_ = absl::StrCat(
      testing::TempDir(), "/slow_disk_",
      testing::UnitTest::GetInstance()->current_test_info()->name());
  const std::string control_ = folder_ + "/control";
};

// A save that hangs holds up neither steps nor the status, and is told within
// two leases.
TEST_F(SlowDiskTest, StateThatHangsHoldsUpNoStep) {
  WhileTwoTrain([this](LocalCluster& cluster) {
    Hang("fsync", "state.db");
    AskForCheckpoint(cluster);  // The request is saved.
    const absl::Time from = SteadyNow();
    JobStatus status;
    while (status.disk_waits.empty() && SteadyNow() - from < 2 * kLease) {
      status = StatusAtOnce(cluster);
    }
    EXPECT_EQ(status.disk_waits.size(), 1u);
    EXPECT_THAT(Judge(status).text, HasSubstr("with saving the job's state"));
    ExpectSteps(cluster);
    // No worker counts as dead for a question that the coordinator holds back.
    absl::SleepFor(1.5 * kLease);
    EndHang();
    AwaitLaterCheckpoint(cluster);
  });
}

// The next epoch waits for the save. The job says so, and then goes on.
TEST_F(SlowDiskTest, EpochWaitsForAStateThatHangsAndSaysSo) {
  WhileTwoTrain([this](LocalCluster& cluster) {
    Hang("fsync", "state.db");
    dies_ = true;
    const absl::Time from = SteadyNow();
    JobStatus status;
    while (SteadyNow() - from < 3 * kLease) status = StatusAtOnce(cluster);
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
    EXPECT_TRUE(cluster.AwaitStatus([&](const JobStatus& later) {
      return later.epoch == 2 && later.steps.begun > begun;
    }));
  });
}

TEST_F(SlowDiskTest, ManifestThatHangsIsToldAndHoldsUpNoStep) {
  WhileTwoTrain([this](LocalCluster& cluster) {
    Hang("link", "manifest");
    AskForCheckpoint(cluster);
    EXPECT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return !status.disk_waits.empty(); }));
    EXPECT_THAT(Judge(StatusAtOnce(cluster)).text,
                HasSubstr("with writing the manifest of round"));
    ExpectSteps(cluster);
    EndHang();
    AwaitLaterCheckpoint(cluster);
  });
}

// The job goes back to the checkpoint before, says what it waits for, and makes
// no use of the manifest that comes late.
TEST_F(SlowDiskTest, ManifestThatHangsHoldsUpTheWayBackForALease) {
  WhileTwoTrain(
      [this](LocalCluster& cluster) {
        ASSERT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
          return status.checkpoint.round == 0;
        }));
        Hang("link", "manifest");
        AskForCheckpoint(cluster);
        ASSERT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
          return !status.disk_waits.empty();
        }));
        cluster.Replace(1);
        ASSERT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
          return absl::StrContains(status.waiting, "the manifest of round ");
        }));
        const uint64_t epoch = StatusAtOnce(cluster).epoch;
        ASSERT_TRUE(cluster.AwaitStatus([&](const JobStatus& status) {
          return status.epoch == epoch + 1;
        }));
        EXPECT_EQ(StatusAtOnce(cluster).checkpoint.round, 0);
        ExpectSteps(cluster);
        EndHang();
        ASSERT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
          return absl::c_any_of(status.events, [](const auto& event) {
            return absl::StrContains(event.text, "comes too late");
          });
        }));
        AskForCheckpoint(cluster);
        AwaitLaterCheckpoint(cluster);
      },
      /*servers=*/2);
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder_)) {
    if (entry.path().filename() != "manifest.json") continue;
    std::string text;
    std::getline(std::ifstream(entry.path()), text, '\0');
    // The late manifest was of epoch 2.
    EXPECT_FALSE(absl::StrContains(text, "-of-2-epoch-2-")) << text;
  }
}

// Otherwise a supervisor would take the coordinator for a dead process.
TEST_F(SlowDiskTest, PortIsOpenWhileACheckpointIsVerified) {
  WhileTwoTrain([](LocalCluster&) {});
  ServerOptions options = Options(/*servers=*/1);
  options.restore = "latest";
  const HeldPort port;
  options.address.control_port = port.port();
  Hang("pread", ".safetensors");
  std::unique_ptr<Server> server;
  std::thread starts([&] {
    auto started = Server::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  });
  ClientOptions client;
  client.coordinator_address = port.address();
  client.round_timeout = LocalCluster::kPatience;
  // These workers wait in sessions until the coordinator is there.
  std::vector<std::thread> workers;
  for (int i = 0; i < 2; ++i) {
    workers.emplace_back([&] {
      ToyWorker worker(SmallModel());
      EXPECT_EQ(worker.Connect(client), absl::OkStatus());
      EXPECT_EQ(worker.NextStep().status(), absl::OkStatus());
      EXPECT_EQ(worker.client()->Leave(), absl::OkStatus());
    });
  }
  absl::Status refused;
  const absl::Time from = SteadyNow();
  while (!absl::StrContains(refused.message(), "verifying the checkpoint") &&
         SteadyNow() - from < LocalCluster::kPatience) {
    refused = FetchJobStatus(port.address(), absl::Seconds(10)).status();
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("the coordinator starts: verifying the "
                              "checkpoint of round "),
                    HasSubstr(", 0 of ")));
  EndHang();
  for (std::thread& worker : workers) worker.join();
  starts.join();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->AwaitEnd(), absl::OkStatus());
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

// Starts a server whose disk hangs before it has begun.
constexpr char kHangingStart[] = R"sh(
echo "fsync state.db" >"$SLOW_DISK"
LD_PRELOAD=tests/testing/slow_disk_preload.so server/nereus-server --lease=3 \
  --state="$0/state.db"
echo "code $?"
)sh";

// Starts a coordinator, two servers and a worker, and kills both servers after
// a checkpoint. Of the servers that take their places, the second has a disk
// that answers no read. Prints the status meanwhile, and that server's exit
// code. Then its disk answers again.
constexpr char kHangingRestore[] = R"sh(
coproc COORDINATOR {
  server/nereus-server --coordinate-only --servers=2 --workers=1 --lease=3 \
    --checkpoint-dir="$0/checkpoints" --checkpoint-every=5
}
read -r _ control _ <&"${COORDINATOR[0]}"
address="${control#control=}"
start() {
  env "${@:2}" server/nereus-server --shard="$1" --coordinator="$address" \
    --checkpoint-dir="$0/checkpoints" >"$0/server-$1" 2>&1 &
}
status() { server/admin/nereusctl status --server="$address"; }
start 0; first=$!
start 1; second=$!
worker/trainer/nereus-worker --coordinator="$address" --epochs=1000 \
  2>/dev/null &
worker=$!
until ls "$0"/checkpoints/round-*/manifest* 2>/dev/null; do sleep 0.1; done
kill -9 "$first" "$second"
echo pread shard-1 >"$SLOW_DISK"
start 0; first=$!
start 1 LD_PRELOAD=tests/testing/slow_disk_preload.so; second=$!
while kill -0 "$second" 2>/dev/null; do status; sleep 0.3; done
wait "$second"
echo "code $?"
cat "$0/server-1"
rm "$SLOW_DISK"
start 1; second=$!
until status | grep "The job runs"; do sleep 0.3; done
echo over
kill "$worker" "$first" "$second" "$COORDINATOR_PID"
)sh";

// Runs each of its arguments in the background, with a folder in $0 and a
// control file. The output of the first script is in 0/output, and so on.
constexpr char kScriptsAtOnce[] = R"sh(
n=0
for script in "$@"; do
  mkdir "$0/$n"
  SLOW_DISK="$0/$n/control" /bin/bash -c "$script" "$0/$n" \
    >"$0/$n/output" 2>&1 &
  n=$((n + 1))
done
wait
)sh";

// A process whose disk never goes on ends all the same, with the code that asks
// its supervisor for another one. The three scripts mostly wait for that, so
// they run at the same time.
TEST_F(SlowDiskTest, ProcessWithADiskThatNeverGoesOnSaysSoAndEnds) {
  ProgramRun run({"/bin/bash", "-c", kScriptsAtOnce, folder_, kHangingServer,
                  kHangingStart, kHangingRestore});
  EXPECT_EQ(run.Finish(absl::Minutes(4)), 0);
  const auto output_of = [this](int script) {
    std::string text;
    std::getline(std::ifstream(absl::StrCat(folder_, "/", script, "/output")),
                 text, '\0');
    return text;
  };
  const std::string code =
      absl::StrCat("code ", ExitCodeOf(UnavailableError("")), "\n");
  EXPECT_THAT(output_of(0),
              AllOf(HasSubstr("with saving the job's state"),
                    HasSubstr("the disk does not answer"),
                    HasSubstr("and is given up"), HasSubstr(code)));
  EXPECT_THAT(output_of(1),
              AllOf(HasSubstr("reading --state="),
                    HasSubstr("state.db: the disk has not answered for 3s\n"),
                    HasSubstr("has not answered for 18s, and is given up"),
                    HasSubstr(code)));
  // A restore that gets no further ends its server within two leases. Until
  // then the status names the server.
  EXPECT_THAT(output_of(2),
              AllOf(HasSubstr("shard 1 restores, 0.0 of"), HasSubstr(code),
                    HasSubstr("and the disk has read nothing for 3s"),
                    HasSubstr("The job runs"), HasSubstr("over\n")));
}

}  // namespace
}  // namespace nereus
