// A worker that synchronises one layer again and again, for sync_benchmark.py.
// The script starts the servers.
//
//   nereus_sync --coordinator=HOST:PORT --bytes=67108864 --repeats=20
//
// A round lasts from BeginStep to the return of Wait. Then the mean is in
// Client::Mean, or, with --in-place, in the gradient's memory. Rounds follow
// each other without a pause. The first mean is checked. For each timed round,
// rank 0 prints "time SECONDS". At the end each worker prints "process
// CPU_SECONDS PEAK_BYTES"; the CPU time covers all rounds, the warm-up
// included.

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

struct Flags {
  ClientOptions client;
  int64_t bytes = int64_t{64} << 20;
  int64_t rows = 0;
  int warmup = 3;
  int repeats = 20;
  bool in_place = false;
};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) /
             1e6;
}

int64_t PeakBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Returns a vector layer, or, for factors, a square matrix of about as many
// bytes.
LayerSpec SpecOf(const Flags& flags) {
  const int64_t elements = flags.bytes / static_cast<int64_t>(sizeof(float));
  if (flags.rows == 0) {
    return {"layer", LayerKind::kConvolution, 1, elements, elements, 1};
  }
  const auto side =
      static_cast<int64_t>(std::sqrt(static_cast<double>(elements)));
  return {
      "layer", LayerKind::kFullyConnected, side, side, side * side, flags.rows,
      true};
}

// The values of the layer on one worker.
struct Values {
  explicit Values(const LayerSpec& spec)
      : parameters(spec.parameters), gradient(spec.parameters) {}
  std::vector<float> parameters;
  std::vector<float> gradient;
  std::vector<float> output_gradient;
  std::vector<float> input;
};

absl::Status Push(Client& client, int64_t step, Values& values) {
  if (values.input.empty()) {
    return client.Push(0, step, absl::MakeSpan(values.gradient));
  }
  return client.PushFactors(0, step, {values.output_gradient, values.input},
                            absl::MakeSpan(values.gradient));
}

// Returns the expected mean of the first step. `own` is this worker's value:
// rank + 1, or a sum of several rows of it.
absl::Status CheckMean(const Flags& flags, int workers,
                       absl::Span<const float> mean) {
  const float expected = static_cast<float>(workers + 1) / 2.0f *
                         static_cast<float>(std::max<int64_t>(flags.rows, 1));
  for (const float value : mean) {
    if (value == expected) continue;
    return InternalError("the mean is ", value, ", must be ", expected);
  }
  return absl::OkStatus();
}

absl::Status Work(const Flags& flags) {
  const LayerSpec spec = SpecOf(flags);
  Values values(spec);
  ClientOptions options = flags.client;
  options.means_in_place = flags.in_place;
  options.optimizer = OptimizerPlace::kWorker;
  auto client = NEREUS_TRY(
      Client::Connect(options, {{spec, absl::MakeSpan(values.parameters)}}));
  const auto own = static_cast<float>(client->traits().rank + 1);
  absl::c_fill(values.gradient, own);
  values.output_gradient.assign(flags.rows * spec.m, own);
  values.input.assign(flags.rows * spec.n, 1.0f);
  double cpu = 0.0;
  for (int64_t round = 0; round < flags.warmup + flags.repeats; ++round) {
    if (round == 0) cpu = CpuSeconds();
    const absl::Time start = absl::Now();
    const StepInfo step = NEREUS_TRY(client->BeginStep());
    NEREUS_TRY(Push(*client, step.step, values));
    NEREUS_TRY(client->Wait(0, step.step));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    if (round == 0) {
      const absl::Span<const float> mean = NEREUS_TRY(client->Mean(0));
      NEREUS_TRY(CheckMean(flags, step.workers, mean));
    }
    if (client->traits().rank == 0 && round >= flags.warmup) {
      std::printf("time %.9f\n", seconds);
    }
  }
  std::printf("process %.6f %lld\n", CpuSeconds() - cpu,
              static_cast<long long>(PeakBytes()));
  return client->Leave();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("One worker of sync_benchmark.py.");
  AddFlag(app, "coordinator", flags.client.coordinator_address,
          "HOST:PORT of shard 0's control port");
  AddFlag(app, "host", flags.client.address.host, "address to listen at");
  AddSharedMemoryFlag(app, flags.client.shared_memory);
  AddNodeFlag(app, flags.client.node);
  AddFlag(app, "bytes", flags.bytes, "bytes of the layer")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32));
  AddFlag(app, "rows", flags.rows,
          "batch rows of a fully connected layer; 0: a vector layer")
      ->check(CLI::Range(int64_t{0}, int64_t{65536}));
  AddFlag(app, "warmup", flags.warmup, "untimed rounds before the timed rounds")
      ->check(CLI::Range(1, 4000));
  AddFlag(app, "repeats", flags.repeats, "timed rounds")
      ->check(CLI::Range(1, 100000));
  AddSwitch(app, "in-place", flags.in_place,
            "the mean replaces the gradient that was pushed");
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  SetLogLevel(LogLevel::kWarning);
  const absl::Status status = Work(flags);
  if (!status.ok()) NEREUS_LOG(Error) << status.message();
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
