// Jobs that share a device take turns: real servers and clients in one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job_options.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/toy_worker.h"
#include "worker/client/host_client.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

ServerOptions Job(const std::string& name, int workers) {
  ServerOptions options = PlainServerOptions();
  options.spec.name = name;
  options.spec.workers = workers;
  options.spec.shards = 1;
  options.spec.options.deterministic = true;
  return options;
}

class SharingTest : public testing::Test {
 protected:
  SharingTest() {
    folder_ = testing::TempDir() + "/share_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  // Options of a worker of a job that shares device `device`.
  ClientOptions Options(const LocalCluster& cluster, const std::string& job,
                        int device = 0) const {
    ClientOptions options = cluster.client_options();
    options.job = job;
    options.share.folder = absl::StrCat(folder_, "/", device);
    // No worker is passed in these tests: each gives its turn back.
    options.share.limit = absl::Seconds(100);
    return options;
  }

  std::string folder_;
};

// A layer with two values.
LayerSpec Line() {
  LayerSpec spec;
  spec.name = "line";
  spec.m = 1;
  spec.n = 2;
  spec.parameters = 2;
  spec.rows = 1;
  return spec;
}

// A worker of one layer with two values.
class OneLayer {
 public:
  explicit OneLayer(const ClientOptions& options) {
    const LayerSpec spec = Line();
    auto joined =
        Client::Connect(options, {{spec, absl::MakeSpan(parameters_)}});
    EXPECT_TRUE(joined.ok()) << joined.status();
    client_ = *std::move(joined);
  }
  Client& client() { return *client_; }
  absl::StatusOr<int64_t> Begin(
      absl::Duration timeout = LocalCluster::kPatience) {
    const StepInfo step = NEREUS_TRY(client_->BeginStep(timeout));
    return step.step;
  }
  absl::Status Push(int64_t step) {
    return client_->Push(0, step, absl::MakeSpan(gradient_));
  }
  absl::Status Do() {
    const int64_t step = NEREUS_TRY(Begin());
    NEREUS_TRY(Push(step));
    return client_->WaitAll(step);
  }

 private:
  std::vector<float> parameters_ = {0, 0};
  std::vector<float> gradient_ = {1, 1};
  std::unique_ptr<Client> client_;
};

constexpr absl::Duration kShort = absl::Milliseconds(50);

// Begins steps with a short timeout until the error has these words.
bool WaitsFor(OneLayer& worker, const std::string& words) {
  const absl::Time until = absl::Now() + LocalCluster::kPatience;
  while (absl::Now() < until) {
    const absl::Status status = worker.Begin(kShort).status();
    if (absl::StrContains(status.message(), words)) return true;
    if (!absl::IsDeadlineExceeded(status)) return false;
  }
  return false;
}

TEST_F(SharingTest, JobsTrainAsAlone) {
  constexpr int kWorkers = 2;
  constexpr int64_t kSteps = 20;
  const auto train = [&](const std::string& name, bool shares) {
    LocalCluster cluster(Job(name, kWorkers));
    std::vector<std::unique_ptr<ToyWorker>> workers;
    for (int i = 0; i < kWorkers; ++i) {
      workers.push_back(std::make_unique<ToyWorker>(SmallModel()));
    }
    for (const absl::Status& status : cluster.RunWorkers(kWorkers, [&](int i) {
           ClientOptions options = Options(cluster, name, i);
           if (!shares) options.share.folder.clear();
           options.rank = i;
           return workers[i]->Train(options, kSteps);
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    return workers.front()->parameters();
  };
  const auto alone = train("alone", /*shares=*/false);
  std::vector<std::vector<float>> found[2];
  std::thread other([&] { found[1] = train("b", /*shares=*/true); });
  found[0] = train("a", /*shares=*/true);
  other.join();
  EXPECT_EQ(found[0], alone);
  EXPECT_EQ(found[1], alone);
}

TEST_F(SharingTest, AStepBeginsWhenTheOtherJobHasPushedItsLastLayer) {
  LocalCluster one(Job("a", 1));
  LocalCluster two(Job("b", 1));
  OneLayer a(Options(one, "a"));
  OneLayer b(Options(two, "b"));
  ASSERT_EQ(*a.Begin(), 0);
  EXPECT_TRUE(WaitsFor(b, "waits for its turn at "));
  EXPECT_TRUE(WaitsFor(b, "job a, worker 0 has the device for"));
  ASSERT_EQ(a.Push(0), absl::OkStatus());
  EXPECT_EQ(*b.Begin(), 0);
  EXPECT_TRUE(WaitsFor(a, "job b, worker 0 has the device for"));
  ASSERT_EQ(b.Push(0), absl::OkStatus());
  EXPECT_EQ(*a.Begin(), 1);
}

// Each job waits for its second worker, in the middle of a step: if it kept the
// turn meanwhile, the two jobs would wait for each other.
TEST_F(SharingTest, AWorkerThatWaitsForOthersHasNoTurn) {
  LocalCluster one(Job("a", 2));
  LocalCluster two(Job("b", 1));
  std::unique_ptr<OneLayer> waits;
  std::thread joins(
      [&] { waits = std::make_unique<OneLayer>(Options(one, "a")); });
  ClientOptions alone = Options(one, "a");
  alone.share.folder.clear();
  OneLayer other(alone);
  joins.join();
  OneLayer b(Options(two, "b"));
  ASSERT_EQ(*waits->Begin(), 0);
  absl::Status gathered;
  std::thread gathers([&] {
    gathered = waits->client().Gather("x", LocalCluster::kPatience).status();
  });
  EXPECT_EQ(b.Do(), absl::OkStatus());
  EXPECT_EQ(b.Do(), absl::OkStatus());
  ASSERT_EQ(*other.Begin(), 0);
  EXPECT_TRUE(other.client().Gather("y", LocalCluster::kPatience).ok());
  gathers.join();
  EXPECT_EQ(gathered, absl::OkStatus());
  // Worker 0 of job a has the turn again.
  EXPECT_FALSE(b.Begin(kShort).ok());
  ASSERT_EQ(waits->Push(0), absl::OkStatus());
  EXPECT_EQ(*b.Begin(), 2);
  ASSERT_EQ(b.Push(2), absl::OkStatus());
  ASSERT_EQ(other.Push(0), absl::OkStatus());
  EXPECT_EQ(waits->client().WaitAll(0), absl::OkStatus());
}

// A worker waits for the layers of a step in the forward pass of the next one.
// `on_device`: the pushes are queued on a device, and the
// last one ends the turn.
TEST_F(SharingTest, AWorkerThatWaitsInItsForwardHasNoTurn) {
  for (const bool on_device : {false, true}) {
    LocalCluster one(Job("a", 2));
    LocalCluster two(Job("b", 1));
    std::vector<float> parameters = {0, 0};
    std::vector<float> gradient = {1, 1};
    const LayerSpec spec = Line();
    HostClientOptions options = {.client = Options(one, "a")};
    if (on_device) {
      options.has_queued_all = [](int64_t step) { return step == 0; };
    }
    std::unique_ptr<HostClient> waits;
    std::thread joins([&] {
      waits = *HostClient::Connect(
          options, {{LayerBinding{spec, absl::MakeSpan(parameters)}}});
    });
    ClientOptions alone = Options(one, "a");
    alone.share.folder.clear();
    OneLayer other(alone);
    joins.join();
    OneLayer b(Options(two, "b"));
    ASSERT_EQ(waits->BeginStep()->step, 0);
    ASSERT_EQ(waits->Push(0, 0, absl::MakeSpan(gradient)), absl::OkStatus());
    EXPECT_EQ(b.Do(), absl::OkStatus());
    ASSERT_EQ(waits->BeginStep()->step, 1);
    EXPECT_TRUE(WaitsFor(b, "job a"));
    absl::Status waited;
    std::thread forward([&] { waited = waits->WaitForward(0); });
    EXPECT_EQ(*b.Begin(), 1);
    ASSERT_EQ(b.Push(1), absl::OkStatus());
    ASSERT_EQ(*other.Begin(), 0);
    ASSERT_EQ(other.Push(0), absl::OkStatus());
    forward.join();
    EXPECT_EQ(waited, absl::OkStatus());
    EXPECT_TRUE(WaitsFor(b, "job a"));
  }
}

TEST_F(SharingTest, ComputingOutsideOfStepsTakesATurn) {
  LocalCluster one(Job("a", 1));
  LocalCluster two(Job("b", 1));
  OneLayer a(Options(one, "a"));
  OneLayer b(Options(two, "b"));
  {
    const auto turn = a.client().TakeDeviceTurn();
    ASSERT_TRUE(turn.ok()) << turn.status();
    EXPECT_THAT(b.client().TakeDeviceTurn(kShort).status(),
                IsError(absl::StatusCode::kDeadlineExceeded,
                        "job a, worker 0 has the device"));
    EXPECT_FALSE(b.Begin(kShort).ok());
  }
  EXPECT_EQ(*b.Begin(), 0);
  // Within its step a worker has the turn already.
  EXPECT_TRUE(b.client().TakeDeviceTurn(kShort).ok());
  EXPECT_FALSE(a.client().TakeDeviceTurn(kShort).ok());
  ASSERT_EQ(b.Push(0), absl::OkStatus());
  EXPECT_TRUE(a.client().TakeDeviceTurn().ok());
}

TEST_F(SharingTest, AJobWaitsForMemoryThatAnotherOneKeeps) {
  LocalCluster one(Job("a", 1));
  LocalCluster two(Job("b", 1));
  OneLayer a(Options(one, "a"));
  ASSERT_EQ(a.Do(), absl::OkStatus());
  EXPECT_THAT(a.client().SetDeviceMemory(-1, 0),
              IsInvalidArgument("resident_bytes is -1, must be from 0 to"));
  ASSERT_EQ(a.client().SetDeviceMemory(int64_t{60} << 20, int64_t{30} << 20),
            absl::OkStatus());
  ClientOptions options = Options(two, "b");
  options.share.memory_bytes = int64_t{100} << 20;
  options.share.resident_bytes = int64_t{20} << 20;
  OneLayer b(options);
  EXPECT_TRUE(WaitsFor(b,
                       "keeps 20 MiB and needs 0 MiB in its turn, which "
                       "does not fit into the 100 MiB of the device beside "
                       "job a, worker 0 (keeps 60 MiB, turn 30 MiB)"));
  ASSERT_EQ(a.client().SetDeviceMemory(int64_t{60} << 20, int64_t{20} << 20),
            absl::OkStatus());
  EXPECT_EQ(b.Do(), absl::OkStatus());
}

TEST_F(SharingTest, AClosedClientFreesTheDevice) {
  LocalCluster one(Job("a", 1));
  LocalCluster two(Job("b", 1));
  auto a = std::make_unique<OneLayer>(Options(one, "a"));
  OneLayer b(Options(two, "b"));
  ASSERT_EQ(*a->Begin(), 0);
  EXPECT_FALSE(b.Begin(kShort).ok());
  a.reset();
  EXPECT_EQ(*b.Begin(), 0);
}

TEST_F(SharingTest, AFolderThatCannotBeUsedIsNamedUnlessSharingIsOptional) {
  LocalCluster one(Job("a", 1));
  ClientOptions options = Options(one, "a");
  options.share.folder = "devices";
  const auto refused = ToyWorker(SmallModel()).Connect(options);
  EXPECT_THAT(refused,
              IsInvalidArgument("is \"devices\", must be an absolute"));
  options.share.is_optional = true;
  OneLayer trains(options);
  EXPECT_EQ(trains.Do(), absl::OkStatus());
}

TEST_F(SharingTest, ABoardThatIsRemovedEndsTheWaitForATurn) {
  LocalCluster one(Job("a", 1));
  LocalCluster two(Job("b", 1));
  OneLayer a(Options(one, "a"));
  OneLayer b(Options(two, "b"));
  ASSERT_EQ(*a.Begin(), 0);
  std::filesystem::remove_all(folder_);
  EXPECT_THAT(b.Begin().status(),
              IsFailedPrecondition("/board was removed or cut"));
}

}  // namespace
}  // namespace nereus
