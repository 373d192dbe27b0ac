// Traces of a job whose members come and go, with all processes' threads in
// this process, for ThreadSanitizer.

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/admin_client.h"
#include "gtest/gtest.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

constexpr int kTraces = 3;  // Traces that must be made.
constexpr int64_t kStepsOfGuest = 8;

// Joins the job, does some steps, and leaves early or dies, perhaps while it
// sends its spans.
absl::Status VisitJob(const LocalCluster& cluster, int visit) {
  ToyWorker worker(SmallModel());
  NEREUS_TRY(worker.Connect(cluster.client_options()));
  for (int64_t i = 0; i < kStepsOfGuest; ++i) {
    NEREUS_TRY(worker.NextStep().status());
  }
  if (visit % 2 == 0) return worker.client()->LeaveEarly();
  worker.Die();
  return absl::OkStatus();
}

TEST(TraceThreadsTest, MembersComeAndGoWhileTheJobIsTraced) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.max_workers = 3;
  options.spec.shards = 2;
  LocalCluster cluster(options);
  std::atomic<bool> traced{false};
  std::atomic<bool> done{false};  // The guests have gone, too.

  std::thread guests([&] {
    EXPECT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return status.steps.begun > 5; }));
    for (int visit = 0; !traced; ++visit) {
      const absl::Status visited = VisitJob(cluster, visit);
      // The place of a dead worker is free only when it counts as dead.
      const bool is_full = absl::IsResourceExhausted(visited);
      EXPECT_TRUE(visited.ok() || is_full) << visited;
      if (is_full) absl::SleepFor(absl::Milliseconds(100));
    }
    done = true;
  });
  std::thread operators([&] {
    int made = 0;
    const absl::Time deadline = absl::Now() + LocalCluster::kPatience;
    while (made < kTraces && absl::Now() < deadline) {
      const auto trace =
          FetchTrace(cluster.coordinator_address(), {.steps = 3},
                     absl::Seconds(5), [](const JobTrace&, int64_t) {});
      if (!trace.ok()) continue;  // A member has gone.
      ++made;
      EXPECT_GE(trace->members.size(), 4u);
    }
    EXPECT_EQ(made, kTraces);
    traced = true;
  });
  const auto results = cluster.RunWorkers(2, [&](int) -> absl::Status {
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(cluster.client_options()));
    while (!done) NEREUS_TRY(worker.NextStep().status());
    return worker.client()->Leave();
  });
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
  operators.join();
  guests.join();
}

}  // namespace
}  // namespace nereus
