// Measures what it costs a coordinator to say how its job is: its metrics and
// its status, with many workers.
//
//   status_benchmark --workers=64,1024
//
// The coordinator has members that say what those of a job say, but no
// connections. Prints a line for each number of workers: bytes, and the median
// time of 20 answers.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/flags/flags.h"
#include "common/metrics/process_pages.h"
#include "server/report/job_metrics.h"
#include "server/report/status_report.h"
#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

constexpr int kServers = 8;
constexpr int kLayers = 200;
constexpr int kAnswers = 20;

// Heartbeat of a worker that has done `steps` steps. Each computes for another
// time, so that some are late.
Heartbeat BeatOf(int worker, int64_t steps) {
  Heartbeat beat = HeartbeatOf(steps, steps - 1);
  beat.activity.steps = steps;
  beat.activity.times = {steps * absl::Milliseconds(20 + worker % 7),
                         steps * absl::Milliseconds(40), absl::ZeroDuration(),
                         steps * absl::Milliseconds(10 - worker % 7)};
  beat.activity.bytes_sent = beat.activity.bytes_received = steps << 20;
  beat.activity.busiest = BusyLink{PeerId::Shard(worker % kServers), 0.3, 0.2};
  return beat;
}

Measured MeasuredOf() {
  Measured measured;
  measured.times.assign(kLayers,
                        {absl::Microseconds(100), absl::Microseconds(200)});
  measured.step_time = absl::Milliseconds(70);
  measured.sync_times.assign(kLayers, absl::Milliseconds(5));
  return measured;
}

void StartJob(int workers, CoordinatorDriver& driver) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < kLayers; ++i) {
    const std::string name =
        absl::StrCat("transformer.block.", i, ".mlp.projection.weight");
    layers.push_back(
        {name, LayerKind::kFullyConnected, 512, 512, 512 * 512, 32, true});
  }
  for (int shard = 0; shard < kServers; ++shard) {
    driver.Say(kShard0 + shard, ShardRequest(shard));
  }
  for (int worker = 0; worker < workers; ++worker) {
    JoinRequest request = WorkerRequest(absl::StrCat("train-worker-", worker));
    request.layers = layers;
    driver.Say(kWorker0 + worker, std::move(request));
  }
  for (int64_t second = 1; second <= 12; ++second) {
    for (int worker = 0; worker < workers; ++worker) {
      driver.Say(kWorker0 + worker, BeatOf(worker, second * 14));
      if (second % 5 == 1) driver.Say(kWorker0 + worker, MeasuredOf());
    }
    driver.Pass(absl::Seconds(1));
  }
}

void Time(int workers, const char* what,
          const std::function<std::string()>& answer) {
  std::vector<double> times;
  size_t bytes = 0;
  for (int i = 0; i < kAnswers; ++i) {
    const absl::Time from = absl::Now();
    bytes = answer().size();
    times.push_back(absl::ToDoubleMilliseconds(absl::Now() - from));
  }
  absl::c_sort(times);
  std::printf("%d workers, %s: %zu bytes in %.2f ms (%.2f to %.2f)\n", workers,
              what, bytes, times[kAnswers / 2], times.front(), times.back());
}

int Main(int argc, char** argv) {
  std::vector<int> counts = {64, 1024};
  CLI::App app("Times the metrics and the status of a coordinator.");
  AddFlag(app, "workers", counts, "numbers of workers; a job for each")
      ->delimiter(',');
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  SetLogLevel(LogLevel::kError);
  for (const int workers : counts) {
    CoordinatorDriver driver(OptionsOf(workers, kServers));
    StartJob(workers, driver);
    Time(workers, "/metrics", [&] {
      MetricList metrics;
      AddProcessMetrics(metrics);
      AddJobMetrics(driver.Status(), absl::Now(), metrics);
      return metrics.ToText();
    });
    Time(workers, "/status.json", [&] { return StatusJson(driver.Status()); });
  }
  return 0;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
