// Jobs of real servers and clients in one process, which connect to each other
// on the loopback interface.

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/protocol/job_status.h"
#include "common/rpc/admin_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/report/job_health.h"
#include "tests/testing/held_port.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/mutation.h"
#include "tests/testing/tcp_relay.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServerOptions Job(int workers, int shards) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = workers;
  options.spec.shards = shards;
  return options;
}

TEST(ClusterTest, WorkerWithOtherModelIsRefusedWithLayerAndShapes) {
  LocalCluster cluster(Job(2, 1));
  ToyWorker right(SmallModel());
  std::vector<LayerSpec> other = SmallModel();
  other[1].n = 129;
  other[1].parameters = 64 * 129 + 64;
  ToyWorker wrong(other);
  ToyWorker second(SmallModel());
  std::atomic<bool> refused{false};
  const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
    if (i == 0) return right.Train(cluster.client_options(), 2);
    // The worker that joins first sets the model of the job. So the others wait
    // until worker 0 has joined, and worker 2 until worker 1 is refused.
    EXPECT_TRUE(cluster.AwaitStatus([&](const JobStatus& status) {
      const bool here =
          absl::StrContains(status.waiting, "1 more worker (2 needed)");
      return refused || (here && i == 1);
    }));
    if (i == 2) return second.Train(cluster.client_options(), 2);
    const absl::Status status = wrong.Connect(cluster.client_options());
    refused = true;
    return status;
  });
  EXPECT_TRUE(results[0].ok()) << results[0];
  EXPECT_TRUE(results[2].ok()) << results[2];
  EXPECT_EQ(results[1].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(results[1].message()),
              AllOf(HasSubstr("fc"), HasSubstr("64x128"), HasSubstr("64x129")));
}

TEST(ClusterTest, WorkerOfOtherJobIsRefusedWithBothNames) {
  LocalCluster cluster(Job(1, 1));
  ClientOptions options = cluster.client_options();
  options.job = "another";
  ToyWorker worker(SmallModel());
  const absl::Status status = worker.Connect(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("\"another\""), HasSubstr("\"default\"")));
}

TEST(ClusterTest, ExcessWorkerIsRefusedAndTheJobGoesOn) {
  LocalCluster cluster(Job(1, 1));
  ToyWorker worker(SmallModel());
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  ASSERT_TRUE(worker.Step(0).ok());
  ToyWorker extra(SmallModel());
  const absl::Status status = extra.Connect(cluster.client_options());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(worker.Step(1).ok());
  EXPECT_TRUE(worker.client()->Leave().ok());
}

TEST(ClusterTest, PortInUseIsAnErrorWithTheAddress) {
  LocalCluster cluster(Job(1, 1));
  ServerOptions options = Job(1, 1);
  options.address.control_port = cluster.server(0).control_port();
  const auto control = Server::Start(options);
  EXPECT_EQ(control.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(control.status().message()),
      HasSubstr(absl::StrCat("127.0.0.1:", options.address.control_port)));
  options.address.control_port = 0;
  options.address.data_port = cluster.server(0).data_port();
  const auto data = Server::Start(options);
  EXPECT_FALSE(data.ok());
  EXPECT_THAT(std::string(data.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", options.address.data_port)));
}

TEST(ClusterTest, UnreachableCoordinatorIsAnErrorWithTheAddress) {
  ClientOptions options;
  options.coordinator_address = "127.0.0.1:1";
  options.connect_timeout = absl::Milliseconds(300);
  ToyWorker worker(SmallModel());
  const absl::Status status = worker.Connect(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

// Trains until a step that began in `epoch` or later is done.
absl::Status TrainUntilEpoch(LocalCluster& cluster, ToyWorker& worker,
                             int64_t step, uint64_t epoch) {
  for (;; ++step) {
    const JobStatus status = NEREUS_TRY(
        FetchJobStatus(cluster.coordinator_address(), LocalCluster::kPatience));
    NEREUS_TRY(worker.Step(step));
    if (status.epoch >= epoch) return absl::OkStatus();
  }
}

TEST(ClusterTest, JobGoesOnWithoutADeadWorkerAndWithItsSuccessor) {
  ServerOptions options = Job(3, 2);
  options.spec.lease_seconds = 3600;
  LocalCluster cluster(options);
  std::vector<ToyWorker> workers;
  for (int i = 0; i < 4; ++i) workers.emplace_back(SmallModel());
  const absl::Time start = absl::Now();
  std::atomic<bool> dead{false};
  const auto results = cluster.RunWorkers(4, [&](int i) -> absl::Status {
    ToyWorker& worker = workers[i];
    if (i < 3) {
      NEREUS_TRY(worker.Connect(cluster.client_options()));
      for (int64_t step = 0; step < 3; ++step) {
        NEREUS_TRY(worker.Step(step));
      }
      if (worker.client()->traits().rank == 1) {
        worker.Die();
        dead = true;
        return absl::OkStatus();
      }
      // Epoch 2 is without the dead worker, epoch 3 has its successor.
      NEREUS_TRY(TrainUntilEpoch(cluster, worker, 3, 3));
      return worker.client()->Leave();
    }
    while (!dead) absl::SleepFor(absl::Milliseconds(5));
    absl::Status joined;
    do {  // The successor is refused until the coordinator knows of the death.
      joined = worker.Connect(cluster.client_options());
    } while (absl::IsResourceExhausted(joined));
    NEREUS_TRY(joined);
    EXPECT_EQ(worker.client()->traits().rank, 3);
    return worker.client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  // The closed connection reveals the death, long before the lease ends.
  EXPECT_LT(absl::Now() - start, absl::Minutes(30));
}

// The second worker waits for values that the first worker sends with its next
// push. Before that push, a shard is lost.
TEST(ClusterTest, WorkerJoinsWhileTheJobGoesBackToACheckpoint) {
  ServerOptions options = Job(1, 2);
  options.spec.max_workers = 2;
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  options.spec.options.checkpoint_every = 1;
  options.checkpoint_dir = absl::StrCat(testing::TempDir(), "/goes_back");
  std::filesystem::remove_all(options.checkpoint_dir);
  LocalCluster cluster(options);
  ToyWorker first(SmallModel());
  ASSERT_TRUE(first.Connect(cluster.client_options()).ok());
  ASSERT_TRUE(first.Step(0).ok());
  ToyWorker second(SmallModel());
  absl::Status connected;
  const auto parameters = first.parameters();
  ASSERT_TRUE(first.Step(1).ok());
  EXPECT_TRUE(cluster.AwaitStatus(
      [](const JobStatus& status) { return status.checkpoint.round == 0; }));
  std::thread joins(
      [&] { connected = second.Connect(cluster.client_options()); });
  EXPECT_TRUE(cluster.AwaitStatus(
      [](const JobStatus& status) { return status.epoch == 2; }));
  cluster.Replace(1);
  joins.join();
  ASSERT_TRUE(connected.ok()) << connected;
  EXPECT_EQ(second.parameters(), parameters);
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    ToyWorker& worker = i == 0 ? first : second;
    NEREUS_TRY(worker.Step(1));
    return worker.client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  EXPECT_EQ(first.parameters(), second.parameters());
}

// A job that has gone back to a checkpoint may have another plan, which takes
// no factors. The error of a push must still tell the caller that the job has
// gone back, and a NaN of the undone step must not end the job.
TEST(ClusterTest, PushAfterTheJobWentBackIsOutOfRange) {
  ServerOptions options = Job(2, 2);
  options.spec.rules.forced = Scheme::kFactor;
  options.spec.options.checkpoint_every = 1;
  options.checkpoint_dir = absl::StrCat(testing::TempDir(), "/push_back");
  std::filesystem::remove_all(options.checkpoint_dir);
  LocalCluster cluster(options);
  std::vector<ToyWorker> workers;
  for (int i = 0; i < 2; ++i) workers.emplace_back(SmallModel());
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    NEREUS_TRY(workers[i].Connect(cluster.client_options()));
    return workers[i].Step(0);
  });
  ASSERT_THAT(results, Each(absl::OkStatus()));
  HostClient& client = *workers[0].client();
  ASSERT_TRUE(*client.factor_rows(1) > 0);
  ASSERT_TRUE(cluster.AwaitStatus(
      [](const JobStatus& status) { return status.checkpoint.round >= 0; }));
  cluster.Replace(1);
  const absl::Time deadline = absl::Now() + LocalCluster::kPatience;
  while (client.Interruption().ok() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  const LayerSpec fc = SmallModel()[1];
  const std::vector<float> output_gradient(fc.rows * fc.m);
  std::vector<float> input(fc.rows * fc.n);
  input[0] = std::numeric_limits<float>::quiet_NaN();
  const absl::Status pushed =
      client.PushFactors(1, 1, {output_gradient, input}, /*gradient=*/{});
  EXPECT_TRUE(absl::IsOutOfRange(pushed)) << pushed;
}

// Changes the last byte of shard 1's file of a checkpoint. Its length stays.
void Rot(const std::string& folder, int64_t round) {
  const std::string path = absl::StrCat(folder, "/", CheckpointFolder(round));
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (!absl::StrContains(entry.path().string(), "shard-1-of-2")) continue;
    std::fstream file(entry.path(),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int last = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    return;
  }
  ADD_FAILURE() << path << " has no file of shard 1";
}

// Trains for ten steps with two workers and two servers, and a checkpoint after
// every second step. Returns the parameters. Worker 0 calls `at_step_6` once,
// before step 6.
std::vector<std::vector<float>> TrainTenSteps(
    const std::string& folder,
    const std::function<void(LocalCluster&)>& at_step_6) {
  ServerOptions options = Job(2, 2);
  options.spec.options.checkpoint_every = 2;
  options.checkpoint_dir = folder;
  std::filesystem::remove_all(folder);
  LocalCluster cluster(options);
  ToyWorker first(SmallModel());
  ToyWorker second(SmallModel());
  bool called = false;
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    ToyWorker& worker = i == 0 ? first : second;
    NEREUS_TRY(worker.Connect(cluster.client_options()));
    int64_t done = -1;
    while (done < 9) {
      if (i == 0 && done == 5 && !std::exchange(called, true)) {
        at_step_6(cluster);
      }
      const absl::StatusOr<int64_t> step = worker.NextStep();
      // The job has gone back.
      if (absl::IsOutOfRange(step.status())) continue;
      if (!step.ok()) return step.status();
      done = *step;
      if (i != 0 || done % 2 == 0) continue;
      // The next checkpoint would replace one that waits for the disk.
      EXPECT_TRUE(cluster.AwaitStatus([&](const JobStatus& status) {
        return status.checkpoint.round >= done;
      }));
    }
    return worker.client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  EXPECT_EQ(cluster.server(0).AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(first.parameters(), second.parameters());
  return first.parameters();
}

// A byte of the newest checkpoint changes, and a server is replaced: the job
// goes back to the checkpoint before, and comes to the same values.
TEST(ClusterTest, CheckpointThatHasRottedIsPassedOver) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/rotten");
  const auto expected = TrainTenSteps(folder, [](LocalCluster&) {});
  JobStatus during;
  const auto parameters = TrainTenSteps(folder, [&](LocalCluster& cluster) {
    ASSERT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return status.checkpoint.round == 5; }));
    Rot(folder, 5);
    cluster.Replace(1);
    ASSERT_TRUE(cluster.AwaitStatus([&](const JobStatus& status) {
      during = status;
      return status.epoch == 3;
    }));
  });
  EXPECT_EQ(parameters, expected);
  EXPECT_EQ(during.checkpoint.round, 3);
  EXPECT_THAT(during.checkpoint.damage,
              AllOf(HasSubstr("that of round 5: round-000000000005/shard-1-of"),
                    HasSubstr("has CRC-32C ")));
  EXPECT_THAT(
      Judge(during).text,
      HasSubstr("a checkpoint is damaged and was set aside, that of round 5"));
  EXPECT_TRUE(std::filesystem::exists(
      absl::StrCat(folder, "/set-aside-round-000000000005")));
  // The job has made it again.
  EXPECT_TRUE(std::filesystem::exists(
      absl::StrCat(folder, "/round-000000000005/manifest.json")));
}

TEST(ClusterTest, WrongSizeStepOrLayerIsRefused) {
  LocalCluster cluster(Job(1, 1));
  ToyWorker worker(SmallModel());
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  std::vector<float> three(3);
  const absl::Status wrong_size =
      worker.client()->Push(0, 0, absl::MakeSpan(three));
  EXPECT_THAT(
      std::string(wrong_size.message()),
      AllOf(HasSubstr("3 floats"), HasSubstr("conv"), HasSubstr("210000")));
  std::vector<float> right(300 * 700);
  EXPECT_EQ(worker.client()->Push(0, 5, absl::MakeSpan(right)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(worker.client()->Push(9, 0, absl::MakeSpan(right)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(worker.client()->Wait(0, 0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(worker.Step(0).ok());
}

// Returns the options of the worker with the name w`index`.
ClientOptions Named(const LocalCluster& cluster, int index) {
  ClientOptions options = cluster.client_options();
  options.name = absl::StrCat("w", index);
  return options;
}

// A value that is or becomes infinite, or a NaN, in step 1. Each gradient of a
// sum that overflows is finite: such a job once ended with a model of NaNs and
// without an error. A large gradient makes the second moment of its parameter
// infinite, and then the parameter never changes again. Row 61 and column 125
// of a gradient of 64 x 128 are the product of two factors.
struct Unfit {
  const char* name;
  Scheme scheme;
  int layer;
  float value;
  std::set<int> workers;  // Workers that push the value.
  const char* says;
  UpdateRule rule = UpdateRule::kSgd;
  OptimizerPlace place = OptimizerPlace::kServer;
  WireType wire = WireType::kFloat32;
};

class UnfitValueTest : public testing::TestWithParam<Unfit> {};

TEST_P(UnfitValueTest, EndsTheJobForAllWithItsPlace) {
  ServerOptions options = Job(2, 1);
  options.spec.rules.forced = GetParam().scheme;
  options.spec.rules.wire = GetParam().wire;
  options.spec.options.optimizer.rule = GetParam().rule;
  options.spec.options.optimizer_place = GetParam().place;
  LocalCluster cluster(options);
  const auto results = cluster.RunWorkers(2, [&](int index) -> absl::Status {
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(Named(cluster, index)));
    if (GetParam().workers.contains(index)) {
      worker.Poison(GetParam().layer, 1, GetParam().value);
    }
    NEREUS_TRY(worker.Step(0));
    NEREUS_TRY(worker.Step(1));
    return worker.Step(2);
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kAborted) << result;
    EXPECT_THAT(std::string(result.message()), HasSubstr(GetParam().says));
  }
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr char kNanOfW1[] =
    "worker w1: layer conv, step 1: the gradient has nan at element 209997 of "
    "210000";
constexpr char kSum[] =
    "layer conv, step 1: the gradient has 3e+38 at element 209997 of 210000";
constexpr char kUpdate[] =
    "layer conv, step 1: the update by the mean gradient of all workers has "
    "inf at element 209997 of 210000";

const Unfit kUnfit[] = {
    {"Nan", Scheme::kServer, 0, kNan, {1}, kNanOfW1},
    {"NanOnARing", Scheme::kRing, 0, kNan, {1}, kNanOfW1},
    {"NanDirectly", Scheme::kDirect, 0, kNan, {1}, kNanOfW1},
    {"NanInBfloat16",
     Scheme::kServer,
     0,
     kNan,
     {1},
     kNanOfW1,
     UpdateRule::kSgd,
     OptimizerPlace::kServer,
     WireType::kBfloat16},
    {"NanOnARingInFloat16",
     Scheme::kRing,
     0,
     kNan,
     {1},
     kNanOfW1,
     UpdateRule::kSgd,
     OptimizerPlace::kServer,
     WireType::kFloat16},
    {"Sum", Scheme::kServer, 0, 3e38f, {0, 1}, kSum},
    {"SumOnARing", Scheme::kRing, 0, 3e38f, {0, 1}, kSum},
    {"SumDirectly", Scheme::kDirect, 0, 3e38f, {0, 1}, kSum},
    {"Update", Scheme::kServer, 0, 1e22f, {1}, kUpdate, UpdateRule::kAdam},
    {"UpdateOnARing", Scheme::kRing, 0, 1e22f, {1}, kUpdate, UpdateRule::kAdam},
    {"Product",
     Scheme::kFactor,
     1,
     1e22f,
     {1},
     "layer fc, step 1: the mean gradient of all workers has inf at element "
     "7933 of 8256",
     UpdateRule::kSgd,
     OptimizerPlace::kWorker},
    {"UpdateByAProduct",
     Scheme::kFactor,
     1,
     1e22f,
     {1},
     "layer fc, step 1: the update by the mean gradient of all workers has "
     "-inf at element 7933 of 8256"},
};

INSTANTIATE_TEST_SUITE_P(All, UnfitValueTest, testing::ValuesIn(kUnfit),
                         [](const auto& info) { return info.param.name; });

TEST(ClusterTest, DifferentReplicaEndsTheJobAndNamesTheLayer) {
  ServerOptions options = Job(2, 1);
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  LocalCluster cluster(options);
  const auto results = cluster.RunWorkers(2, [&](int index) -> absl::Status {
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(Named(cluster, index)));
    NEREUS_TRY(worker.Step(0));
    if (index == 1) worker.Spoil(1);
    NEREUS_TRY(worker.Step(1));
    return worker.client()->Leave();
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(result.message()),
                AllOf(HasSubstr("replicas differ after step 1"),
                      HasSubstr("layer fc"), HasSubstr("w0"), HasSubstr("w1")));
  }
}

// After the error each worker destroys its client at once, like a program that
// ends.
TEST(ClusterTest, NanIsReportedThoughItsWorkerHasGone) {
  for (int run = 0; run < 5; ++run) {
    LocalCluster cluster(Job(2, 1));
    const auto results = cluster.RunWorkers(2, [&](int) -> absl::Status {
      ToyWorker worker(SmallModel());
      NEREUS_TRY(worker.Connect(cluster.client_options()));
      NEREUS_TRY(worker.Step(0));
      if (worker.client()->traits().rank == 1) worker.Poison(1, 1);
      return worker.Step(1);
    });
    for (const absl::Status& result : results) {
      EXPECT_THAT(std::string(result.message()),
                  HasSubstr("layer fc, step 1: the output gradient has nan"));
    }
  }
}

TEST(ClusterTest, PushFindsANanInItsFactors) {
  LocalCluster cluster(Job(2, 1));
  const auto results = cluster.RunWorkers(2, [&](int index) -> absl::Status {
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(Named(cluster, index)));
    NEREUS_TRY(worker.Step(0));
    if (index == 0) return worker.Step(1);
    worker.Poison(1, 1);
    const absl::Status refused = worker.Step(1);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("layer fc, step 1: the output gradient has nan at "
                          "element 509 of 512"));
    return worker.client()->Leave();
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(result.message()),
                HasSubstr("worker w1: layer fc, step 1"));
  }
}

// No server and no ring adds up a dense gradient, so no other check finds it.
TEST(ClusterTest, PushFindsANanInAGradientInPlaceOfFactors) {
  constexpr int64_t kStep = 4;  // All workers push dense gradients.
  ServerOptions options = Job(2, 1);
  options.spec.rules.forced = Scheme::kFactor;
  LocalCluster cluster(options);
  const auto results = cluster.RunWorkers(2, [&](int index) -> absl::Status {
    ToyWorker worker(SmallModel());
    worker.set_pushes_dense(true);
    NEREUS_TRY(worker.Connect(Named(cluster, index)));
    for (int64_t step = 0; step < kStep; ++step) {
      NEREUS_TRY(worker.Step(step));
    }
    if (index == 1) worker.Poison(1, kStep);
    return worker.Step(kStep);
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(std::string(result.message()),
                HasSubstr("layer fc, step 4: the gradient has nan"));
  }
}

class SkipTest : public testing::TestWithParam<OptimizerPlace> {};

TEST_P(SkipTest, NanMakesAllWorkersSkipTheStep) {
  ServerOptions options = Job(3, 2);
  options.spec.options.nan = NanPolicy::kSkip;
  options.spec.options.optimizer_place = GetParam();
  LocalCluster cluster(options);
  std::mutex mu;
  std::vector<std::vector<std::vector<float>>> replicas;
  const auto results = cluster.RunWorkers(3, [&](int) -> absl::Status {
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(cluster.client_options()));
    NEREUS_TRY(worker.Step(0));
    const auto before = worker.parameters();
    // In step 1, a layer without factors has a NaN; in step 2, a layer with
    // factors on another worker.
    const int rank = worker.client()->traits().rank;
    if (rank == 1) worker.Poison(0, 1);
    NEREUS_TRY(worker.Step(1));
    EXPECT_EQ(worker.parameters(), before);
    if (rank == 2) worker.Poison(1, 2);
    NEREUS_TRY(worker.Step(2));
    EXPECT_EQ(worker.parameters(), before);
    NEREUS_TRY(worker.Step(3));
    EXPECT_THAT(worker.skipped(), ElementsAre(1, 2));
    EXPECT_NE(worker.parameters(), before);
    {
      const std::lock_guard lock(mu);
      replicas.push_back(worker.parameters());
    }
    return worker.client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  ASSERT_EQ(replicas.size(), 3u);
  EXPECT_EQ(replicas[0], replicas[1]);
  EXPECT_EQ(replicas[0], replicas[2]);
}

INSTANTIATE_TEST_SUITE_P(Places, SkipTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& place) {
                           return std::string(OptimizerPlaceName(place.param));
                         });

TEST(ClusterTest, StatusNamesTheWorkerThatARoundWaitsFor) {
  ServerOptions options = Job(2, 1);
  options.stall_threshold = absl::Milliseconds(500);
  LocalCluster cluster(options);
  const auto results = cluster.RunWorkers(2, [&](int index) -> absl::Status {
    ToyWorker worker(SmallModel());
    // If both shared a host, the shard would name the carrier.
    ClientOptions named = Named(cluster, index);
    named.node = absl::StrCat("host-", index);
    NEREUS_TRY(worker.Connect(named));
    if (index == 1) {
      // This worker waits until the status shows only itself as missing. At
      // first the other worker may be missing too.
      std::string seen;
      EXPECT_TRUE(cluster.AwaitStatus([&](const JobStatus& status) {
        for (const JobStatus::Member& member : status.members) {
          if (!member.stall.has_value()) continue;
          if (member.id.role != Role::kShard) continue;
          EXPECT_EQ(member.stall->round, 0);
          seen = member.stall->missing;
        }
        return seen == "worker w1";
      })) << seen;
    }
    NEREUS_TRY(worker.Step(0));
    return worker.client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
}

TEST(ClusterTest, StatusShowsTheMembers) {
  LocalCluster cluster(Job(1, 2));
  ToyWorker worker(SmallModel());
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  ASSERT_TRUE(worker.Step(0).ok());
  const auto status =
      FetchJobStatus(cluster.coordinator_address(), LocalCluster::kPatience);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->state, JobState::kRunning);
  EXPECT_EQ(status->epoch, 1u);
  ASSERT_EQ(status->members.size(), 3u);
  EXPECT_EQ(status->members[0].id, PeerId::Worker(0));
  EXPECT_EQ(status->members[2].id, PeerId::Shard(1));
  const auto redirect = FetchJobStatus(
      absl::StrCat("127.0.0.1:", cluster.server(1).control_port()),
      LocalCluster::kPatience);
  EXPECT_THAT(std::string(redirect.status().message()),
              HasSubstr(cluster.coordinator_address()));
}

// Returns the ports at which this process listens: those of its servers and
// clients.
std::set<int> ListeningPorts() {
  std::set<int> ports;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 ||
        listens == 0) {
      continue;
    }
    // The port has the same place as in sockaddr_in.
    sockaddr_in6 address = {};
    bytes = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0) {
      ports.insert(ntohs(address.sin6_port));
    }
  }
  return ports;
}

// Writes `bytes` to a port and waits until the other side hangs up, for at most
// a second per read. The port may be closed already.
void SendRaw(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  const timeval second = {.tv_sec = 1, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
      0) {
    char answer[4096];
    if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0 &&
        shutdown(fd, SHUT_WR) == 0) {
      while (recv(fd, answer, sizeof(answer), 0) > 0) continue;
    }
  }
  close(fd);
}

// Returns random bytes. Two of three results begin with the preface of HTTP/2,
// so that gRPC reads on; one of these two also has a valid first frame, an
// empty SETTINGS.
std::string Noise(Random& random) {
  const std::string noise = RandomBytes(random, 1 + random.Below(5000));
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  switch (random.Below(3)) {
    case 0:
      return noise;
    case 1:
      return preface + noise;
    default:
      return preface + std::string("\0\0\0\4\0\0\0\0\0", 9) + noise;
  }
}

// Sends noise to each listening port of this process, again and again, until it
// is destroyed.
class NoiseMaker {
 public:
  // Counts a pass over the ports if there were at least `ports` of them.
  explicit NoiseMaker(size_t ports)
      : ports_(ports), thread_([this] { Run(); }) {}
  ~NoiseMaker() {
    stopping_ = true;
    thread_.join();
  }

  int passes() const { return passes_; }

 private:
  void Run() {
    Random random(1);
    while (!stopping_) {
      const std::set<int> ports = ListeningPorts();
      for (const int port : ports) SendRaw(port, Noise(random));
      if (ports.size() >= ports_) ++passes_;
    }
  }

  const size_t ports_;
  std::atomic<int> passes_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // Must be last: it uses the members above.
};

// Returns the parameters after 40 steps of a deterministic job of two workers
// and two servers. The workers begin the last step when `ready()` returns true.
std::vector<std::vector<float>> TrainDeterministically(
    const std::function<bool()>& ready) {
  ServerOptions options = Job(2, 2);
  options.spec.options.deterministic = true;
  LocalCluster cluster(options);
  std::vector<ToyWorker> workers;
  workers.emplace_back(SmallModel());
  workers.emplace_back(SmallModel());
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    constexpr int64_t kSteps = 40;
    NEREUS_TRY(workers[i].Connect(cluster.client_options()));
    for (int64_t step = 0; step < kSteps - 1; ++step) {
      NEREUS_TRY(workers[i].Step(step));
    }
    // The noise takes less time even if no port closes a connection.
    const absl::Time deadline = absl::Now() + absl::Minutes(10);
    while (!ready()) {
      if (absl::Now() > deadline) {
        return DeadlineExceededError("the test was not ready");
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    NEREUS_TRY(workers[i].Step(kSteps - 1));
    return workers[i].client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  EXPECT_TRUE(workers[0].parameters() == workers[1].parameters());
  return workers[0].parameters();
}

TEST(ClusterTest, RandomBytesToAllPortsChangeNothing) {
  const auto quiet = TrainDeterministically([] { return true; });
  // Each of the two servers and two workers has a control and a data port.
  NoiseMaker noise(/*ports=*/2 * (2 + 2));
  const auto noisy =
      TrainDeterministically([&] { return noise.passes() >= 15; });
  EXPECT_TRUE(quiet == noisy);
}

// Connections that let nothing through.

constexpr absl::Duration kLease = absl::Seconds(3);

// True if an event says that a connection was lost because of its silence.
bool SaysThatNothingArrived(const JobStatus& status) {
  for (const JobStatus::Event& event : status.events) {
    if (event.text.find("lost its connection") != std::string::npos &&
        event.text.find("nothing has arrived for ") != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Members reach the server's two ports through a relay each. Heartbeats go on
// when that of the data port swallows.
TEST(SilentLinkTest, ConnectionThatLetsNothingThroughIsMadeAnew) {
  const HeldPort control;
  const HeldPort data;
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.min_workers = 1;
  options.spec.lease_seconds = absl::ToDoubleSeconds(kLease);
  options.shared_memory = false;
  options.address.host = "127.0.0.2";
  options.address.listen = "127.0.0.1";
  options.address.control_port = control.port();
  options.address.data_port = data.port();
  const TcpRelay messages("127.0.0.2", control.port(), control.port());
  TcpRelay relay("127.0.0.2", data.port(), data.port());
  LocalCluster cluster(options);
  std::atomic<bool> stops = false;
  const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
    if (i == 2) {
      EXPECT_TRUE(cluster.AwaitStatus(
          [](const JobStatus& status) { return status.steps.begun > 2; }));
      relay.SwallowOldest();
      const absl::Time from = SteadyNow();
      EXPECT_TRUE(cluster.AwaitStatus(SaysThatNothingArrived));
      EXPECT_LT(SteadyNow() - from, 2 * kLease);
      // The two make another connection, and training goes on.
      EXPECT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
        return status.epoch == 2 && status.steps.since_begun < absl::Seconds(1);
      }));
      EXPECT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
        return status.members.size() == 3 && status.counts.workers_lost == 0;
      }));
      stops = true;
      return absl::OkStatus();
    }
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(cluster.client_options_on(i)));
    while (!stops) NEREUS_TRY(StatusOf(worker.NextStep()));
    return worker.client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
}

// Answers to health checks.

// Asks as a kubelet does: grpc.health.v1.Health/Check of the service
// "readiness". The messages have one field each, so they are written by hand:
// HealthCheckRequest{service = 1}, HealthCheckResponse{status = 1}.
bool IsReady(const Server& server) {
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", server.control_port()),
                          grpc::InsecureChannelCredentials());
  const std::string service = "readiness";
  const std::string bytes = absl::StrCat(
      "\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(
      &context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  if (!reply.Dump(&slices).ok() || slices.empty()) return false;
  constexpr char kServing[] = "\x08\x01";
  return std::string(slices[0].begin(), slices[0].end()) == kServing;
}

bool AwaitReady(const Server& server, bool ready) {
  const absl::Time limit = absl::Now() + LocalCluster::kPatience;
  while (IsReady(server) != ready) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

// A supervisor ends one server at a time, and the next one only when all are
// ready: without this, a job would lose both servers that have a shard.
TEST(ReadinessTest, ServerIsReadyWhileItsShardsHaveBackups) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 1;
  options.spec.shards = 2;
  options.spec.options.backup = true;
  LocalCluster cluster(options);
  EXPECT_FALSE(IsReady(cluster.server(0)));
  std::vector<float> parameters(4096, 1.0f);
  LayerSpec layer;
  layer.name = "v";
  layer.kind = LayerKind::kVector;
  layer.m = 1;
  layer.n = layer.parameters = 4096;
  layer.rows = 1;
  auto client = Client::Connect(cluster.client_options(),
                                {{layer, absl::MakeSpan(parameters)}});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(AwaitReady(cluster.server(0), true));
  EXPECT_TRUE(AwaitReady(cluster.server(1), true));
  cluster.server(1).Leave();
  std::thread leaver([&] { EXPECT_TRUE(cluster.server(1).AwaitEnd().ok()); });
  EXPECT_TRUE(AwaitReady(cluster.server(1), false));
  // Server 0 now serves both shards, without a backup.
  EXPECT_TRUE(AwaitReady(cluster.server(0), false));
  leaver.join();
  EXPECT_TRUE(cluster.server(1).has_left_early());
  cluster.Replace(1);
  EXPECT_TRUE(AwaitReady(cluster.server(0), true));
  EXPECT_TRUE(AwaitReady(cluster.server(1), true));
}

}  // namespace
}  // namespace nereus
