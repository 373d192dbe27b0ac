// A worker joins a running job and is closed at once, again and again. The job
// must keep most of its steps (JoinBrake).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "tests/testing/local_cluster.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

using testing::Each;
using testing::HasSubstr;

// Worker with a layer of 1,000 values.
struct Worker {
  Worker() {
    spec.name = "layer";
    spec.m = 1;
    spec.n = 1000;
    spec.parameters = 1000;
    spec.rows = 1;
  }
  absl::Status Join(const ClientOptions& options) {
    client =
        NEREUS_TRY(Client::Join(options, {{spec, absl::MakeSpan(parameters)}}));
    return absl::OkStatus();
  }
  absl::Status Step() {
    const StepInfo info = NEREUS_TRY(client->BeginStep());
    step = info.step;
    NEREUS_TRY(client->Push(0, step, absl::MakeSpan(gradient)));
    return client->WaitAll(step);
  }

  LayerSpec spec;
  std::vector<float> parameters = std::vector<float>(1000);
  std::vector<float> gradient = std::vector<float>(1000, 1.0f);
  std::unique_ptr<Client> client;
  int64_t step = -1;
};

// Two workers that make steps until they are told to end, each on its thread.
class RunningJob {
 public:
  RunningJob() : cluster_(Options()) {
    runner_ = std::thread([this] {
      statuses_ = cluster_.RunWorkers(2, [this](int index) {
        Worker worker;
        ClientOptions options = cluster_.client_options();
        options.name = absl::StrCat("old-", index);
        NEREUS_TRY(worker.Join(options));
        NEREUS_TRY(worker.client->AwaitJoined(LocalCluster::kPatience));
        while (worker.step < last_step_) {
          NEREUS_TRY(worker.Step());
          if (index == 0) step_ = worker.step;
        }
        return worker.client->Leave();
      });
    });
  }
  // Ends the job a few steps later.
  void End() {
    last_step_ = step_ + 20;
    runner_.join();
    EXPECT_THAT(statuses_, Each(absl::OkStatus()));
  }

  LocalCluster& cluster() { return cluster_; }
  double StepsPerSecond(absl::Duration time) const {
    const int64_t before = step_;
    const absl::Time start = absl::Now();
    absl::SleepFor(time);
    return static_cast<double>(step_ - before) /
           absl::ToDoubleSeconds(absl::Now() - start);
  }

 private:
  static ServerOptions Options() {
    ServerOptions options = PlainServerOptions();
    options.spec.workers = 2;
    options.spec.max_workers = 4;
    return options;
  }

  LocalCluster cluster_;
  std::thread runner_;
  std::vector<absl::Status> statuses_;
  std::atomic<int64_t> step_{-1};
  std::atomic<int64_t> last_step_{std::numeric_limits<int64_t>::max()};
};

TEST(CrashLoopTest, JobKeepsMostOfItsSteps) {
  RunningJob job;
  ASSERT_TRUE(job.cluster().AwaitStatus(
      [](const JobStatus& status) { return status.steps.begun > 50; }));
  const double alone = job.StepsPerSecond(absl::Seconds(3));
  std::atomic<bool> is_over{false};
  std::thread loop([&] {
    for (int i = 0; !is_over; ++i) {
      Worker newcomer;
      ClientOptions options = job.cluster().client_options();
      options.name = absl::StrCat("loop-", i);
      if (newcomer.Join(options).ok()) {
        newcomer.client->AwaitJoined(absl::Milliseconds(300)).IgnoreError();
      }
      newcomer.client.reset();
      absl::SleepFor(absl::Milliseconds(30));
    }
  });
  absl::SleepFor(absl::Seconds(4));  // The first one joins at once.
  const double beside = job.StepsPerSecond(absl::Seconds(10));
  // The status says why newcomers wait.
  EXPECT_TRUE(job.cluster().AwaitStatus([](const JobStatus& status) {
    return !status.newcomers.empty() &&
           testing::Value(status.newcomers[0],
                          HasSubstr("because processes that joined lately "
                                    "ended soon"));
  }));
  is_over = true;
  loop.join();
  EXPECT_GE(beside, 0.7 * alone);
  EXPECT_TRUE(job.cluster().AwaitStatus([](const JobStatus& status) {
    return status.members.size() == 3;  // The server and two workers.
  }));
  job.End();
}

}  // namespace
}  // namespace nereus
