// Tests what a client tells about the times of its GPU: Client::Timeline,
// and a trace of the job.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/trace.h"
#include "common/rpc/admin_client.h"
#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"
#include "worker/public/gpu.h"

namespace nereus {
namespace {

using GpuTimelineTest = NeedsGpu<testing::Test>;

TEST_F(GpuTimelineTest, KeepsCopiesAndComputing) {
  ServerOptions options = GpuJob(1, 1);
  options.spec.options.chunk_bytes = kChunkBytesMax;  // Each layer is one copy.
  LocalCluster cluster(options);
  GpuToyWorker worker;
  GpuOptions gpu;
  gpu.timeline = true;
  ASSERT_TRUE(worker.Connect(cluster.client_options(), gpu).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(worker.NextStep().ok());
  const auto spans = worker.client()->Timeline();
  ASSERT_TRUE(spans.ok()) << spans.status();
  using Which = std::pair<int64_t, int>;  // Step and layer.
  std::map<GpuSpan::Kind, std::vector<Which>> seen;
  std::map<Which, absl::Duration> pushed;
  std::map<Which, absl::Duration> resumed;  // Begin of the span after the wait.
  std::optional<Which> waited;
  for (const GpuSpan& span : *spans) {
    const Which which = {span.step, span.layer};
    seen[span.kind].push_back(which);
    EXPECT_LE(span.begin, span.end);
    if (span.kind == GpuSpan::Kind::kCopyOut) {
      EXPECT_GE(span.begin, pushed.at(which));
    }
    if (span.kind != GpuSpan::Kind::kCompute) continue;
    if (waited.has_value()) resumed[*std::exchange(waited, {})] = span.begin;
    if (!pushed.try_emplace(which, span.end).second) waited = which;
  }
  for (const GpuSpan& span : *spans) {
    const auto next = resumed.find({span.step, span.layer});
    if (span.kind != GpuSpan::Kind::kCopyIn || next == resumed.end()) continue;
    EXPECT_LE(span.end, next->second) << "waiting counts as computing";
  }
  EXPECT_EQ(resumed.size(), 8) << "all waits but the last";
  const std::vector<Which> all = {{0, 2}, {0, 1}, {0, 0}, {1, 2}, {1, 1},
                                  {1, 0}, {2, 2}, {2, 1}, {2, 0}};
  EXPECT_EQ(seen[GpuSpan::Kind::kCompute].size(), 2 * all.size());
  EXPECT_EQ(seen[GpuSpan::Kind::kCopyOut], all);
  EXPECT_EQ(seen[GpuSpan::Kind::kCopyIn].size(), all.size());
}

// A trace of the job has the work of the GPU, on the clock of the host.
TEST_F(GpuTimelineTest, TraceShowsComputingAndCopiesOfTheGpu) {
  LocalCluster cluster(GpuJob(1, 1));
  GpuToyWorker worker;
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  std::atomic<bool> is_over = false;
  absl::StatusOr<JobTrace> trace = absl::UnknownError("not traced");
  std::thread operating([&] {
    trace = FetchTrace(cluster.client_options().coordinator_address,
                       {.first_step = -1, .steps = 3}, absl::Seconds(60),
                       [](const JobTrace&, int64_t) {});
    is_over = true;
  });
  while (!is_over) {
    ASSERT_TRUE(worker.NextStep().ok());
    absl::SleepFor(absl::Milliseconds(5));
  }
  operating.join();
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::map<SpanKind, std::set<std::pair<int64_t, int>>> seen;
  std::map<std::pair<int64_t, int>, absl::Time> pushed;
  for (const Span& span : trace->members.front().spans) {
    seen[span.kind].insert({span.round - trace->first_step, span.layer});
    const std::pair<int64_t, int> which = {span.round, span.layer};
    if (span.kind == SpanKind::kCompute) pushed.try_emplace(which, span.end);
    if (span.kind == SpanKind::kCopyOut) {
      EXPECT_GE(span.begin, pushed.at(which));
    }
  }
  const std::set<std::pair<int64_t, int>> all = {
      {0, 2}, {0, 1}, {0, 0}, {1, 2}, {1, 1}, {1, 0}, {2, 2}, {2, 1}, {2, 0}};
  EXPECT_EQ(seen[SpanKind::kCompute], all);
  EXPECT_EQ(seen[SpanKind::kCopyOut], all);
  EXPECT_EQ(seen[SpanKind::kCopyIn], all);
  // A round is done after its gradient was computed. The GPU's times are late.
  constexpr absl::Duration kWakeUp = absl::Milliseconds(5);
  for (const Span& span : trace->members.front().spans) {
    if (span.kind == SpanKind::kDone) {
      EXPECT_GE(span.end + kWakeUp, pushed.at({span.round, span.layer}));
    }
  }
}

}  // namespace
}  // namespace nereus
