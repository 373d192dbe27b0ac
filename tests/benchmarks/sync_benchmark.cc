// Time of one synchronisation of one layer: from Push to the return of Wait, on
// worker 0, every worker and every server a process of its own, over loopback.
//
//   sync_benchmark --bytes=67108864 --workers=2 --servers=2 --repeats=20
//
// Rounds follow each other without a pause, so that all workers push at about
// the same time. The optimizer runs on the workers: the servers average, as an
// all-reduce does. The mean of the first round is checked. One line per run;
// with --json, an object.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/flags/flags.h"
#include "server/server.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

struct BenchmarkOptions {
  int64_t bytes = int64_t{64} << 20;
  int workers = 2;
  int servers = 2;
  int repeats = 20;
  int warmup = 3;
  Scheme scheme = Scheme::kServer;
  TransportType transport = TransportType::kSocket;
  bool json = false;
};

// Runs `body` in a child process, which must not have used gRPC before.
pid_t Spawn(const std::function<absl::Status()>& body) {
  const pid_t child = fork();
  NEREUS_CHECK(child >= 0) << "fork failed";
  if (child > 0) return child;
  const absl::Status status = body();
  if (!status.ok()) NEREUS_LOG(Error) << status.message();
  _exit(status.ok() ? 0 : 1);
}

void WriteAll(int fd, const void* data, size_t bytes) {
  // Fewer bytes than a pipe holds: one write takes them all.
  NEREUS_CHECK(write(fd, data, bytes) == static_cast<ssize_t>(bytes))
      << "pipe closed";
}

// `coordinator`: not used for shard 0. `port_pipe`: of shard 0 alone.
absl::Status Serve(const BenchmarkOptions& options, int shard,
                   const std::string& coordinator, int port_pipe) {
  ServerOptions server_options;
  server_options.shard = shard;
  server_options.shards = options.servers;
  server_options.workers = options.workers;
  server_options.coordinator_address = coordinator;
  server_options.transport = options.transport;
  server_options.rules.forced = options.scheme;
  server_options.job_options.optimizer_place = OptimizerPlace::kWorker;
  NEREUS_ASSIGN_OR_RETURN(const auto server, Server::Start(server_options));
  const int port = server->control_port();
  if (shard == 0) WriteAll(port_pipe, &port, sizeof(port));
  return server->AwaitEnd();
}

absl::Status CheckMean(const std::vector<float>& gradient, int workers) {
  // Worker r pushed r + 1 everywhere.
  const float mean = static_cast<float>(workers + 1) / 2.0f;
  for (const float value : gradient) {
    if (value != mean) {
      return absl::InternalError(
          absl::StrCat("the mean is ", value, ", must be ", mean));
    }
  }
  return absl::OkStatus();
}

absl::Status Work(const BenchmarkOptions& options,
                  const std::string& coordinator, int times_pipe) {
  const int64_t elements = options.bytes / static_cast<int64_t>(sizeof(float));
  std::vector<float> parameters(elements);
  std::vector<float> gradient(elements);
  const LayerSpec spec = {
      "layer", LayerKind::kConvolution, 1, elements, elements, 1};
  ClientOptions client_options;
  client_options.coordinator_address = coordinator;
  client_options.transport = options.transport;
  NEREUS_ASSIGN_OR_RETURN(
      auto client,
      Client::Connect(client_options, {{spec, absl::MakeSpan(parameters)}}));
  std::fill(gradient.begin(), gradient.end(),
            static_cast<float>(client->rank() + 1));
  for (int round = 0; round < options.warmup + options.repeats; ++round) {
    NEREUS_RETURN_IF_ERROR(client->BeginStep().status());
    const absl::Time start = absl::Now();
    NEREUS_RETURN_IF_ERROR(client->Push(0, round, absl::MakeSpan(gradient)));
    NEREUS_RETURN_IF_ERROR(client->Wait(0, round));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    if (round == 0) {
      NEREUS_RETURN_IF_ERROR(CheckMean(gradient, options.workers));
    }
    if (client->rank() == 0 && round >= options.warmup) {
      WriteAll(times_pipe, &seconds, sizeof(seconds));
    }
  }
  return client->Leave();
}

void Report(const BenchmarkOptions& options, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  // As nccl-tests define them: bytes over time, and times 2 (P - 1) / P.
  const double algorithm = static_cast<double>(options.bytes) / median / 1e9;
  const double bus = algorithm * 2 * (options.workers - 1) / options.workers;
  if (options.json) {
    std::printf(
        "{\"system\":\"nereus\",\"transport\":\"%s\",\"scheme\":\"%s\","
        "\"processes\":%d,\"servers\":%d,\"bytes\":%lld,"
        "\"seconds_median\":%.6f,\"seconds_min\":%.6f,"
        "\"seconds_max\":%.6f}\n",
        std::string(TransportTypeName(options.transport)).c_str(),
        std::string(SchemeName(options.scheme)).c_str(), options.workers,
        options.servers, static_cast<long long>(options.bytes), median,
        times.front(), times.back());
    return;
  }
  std::printf(
      "%s, %s, %d workers, %d servers, %.1f MiB: median %.1f ms (%.1f to "
      "%.1f), "
      "algorithm %.2f GB/s, bus %.2f GB/s\n",
      std::string(TransportTypeName(options.transport)).c_str(),
      std::string(SchemeName(options.scheme)).c_str(), options.workers,
      options.servers, static_cast<double>(options.bytes) / (1 << 20),
      median * 1e3, times.front() * 1e3, times.back() * 1e3, algorithm, bus);
}

// Starts all processes; the times of worker 0 come through `times_pipe`. No
// child has a writing end that is not its own: reading ends when a writer does.
absl::StatusOr<std::vector<pid_t>> SpawnAll(const BenchmarkOptions& options,
                                            int times_pipe[2]) {
  int ports[2];
  if (pipe(ports) != 0) return absl::InternalError("no pipe");
  std::vector<pid_t> children;
  children.push_back(Spawn([&] { return Serve(options, 0, "", ports[1]); }));
  close(ports[1]);
  int port = 0;
  const bool started = read(ports[0], &port, sizeof(port)) == sizeof(port);
  close(ports[0]);
  if (!started) return absl::InternalError("shard 0 did not start");
  const std::string coordinator = absl::StrCat("127.0.0.1:", port);
  for (int shard = 1; shard < options.servers; ++shard) {
    children.push_back(Spawn(
        [&] { return Serve(options, shard, coordinator, /*port_pipe=*/-1); }));
  }
  if (pipe(times_pipe) != 0) return absl::InternalError("no pipe");
  for (int worker = 0; worker < options.workers; ++worker) {
    children.push_back(
        Spawn([&] { return Work(options, coordinator, times_pipe[1]); }));
  }
  close(times_pipe[1]);
  return children;
}

// Waits for all; ends the others as soon as one fails.
bool WaitForAll(std::vector<pid_t> children) {
  bool ok = true;
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = wait(&status);
    if (ended < 0) return false;
    children.erase(std::find(children.begin(), children.end(), ended));
    if (status == 0) continue;
    if (ok) {
      for (const pid_t child : children) kill(child, SIGTERM);
    }
    ok = false;
  }
  return ok;
}

int Run(const BenchmarkOptions& options) {
  int times_pipe[2];
  const auto children = SpawnAll(options, times_pipe);
  if (!children.ok()) {
    NEREUS_LOG(Error) << children.status().message();
    return 1;
  }
  // The pipe holds all times until then.
  if (!WaitForAll(*children)) return 1;
  std::vector<double> times;
  double time = 0.0;
  while (read(times_pipe[0], &time, sizeof(time)) == sizeof(time)) {
    times.push_back(time);
  }
  if (static_cast<int>(times.size()) != options.repeats) return 1;
  Report(options, times);
  return 0;
}

int Main(int argc, char** argv) {
  BenchmarkOptions options;
  CLI::App app("Times one synchronisation of one layer over loopback.");
  AddFlag(app, "bytes", options.bytes, "bytes of the layer")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32));
  AddFlag(app, "workers", options.workers, "worker processes")
      ->check(CLI::Range(1, 64));
  AddFlag(app, "servers", options.servers, "server processes")
      ->check(CLI::Range(1, 64));
  AddFlag(app, "repeats", options.repeats, "rounds timed")
      ->check(CLI::Range(1, 4000));
  AddFlag(app, "warmup", options.warmup, "rounds before those")
      ->check(CLI::Range(1, 4000));
  AddChoice(app, "scheme", options.scheme,
            {{"server", Scheme::kServer}, {"ring", Scheme::kRing}},
            "how the layer travels");
  AddTransportFlag(app, options.transport);
  AddSwitch(app, "json", options.json, "one JSON object instead of a line");
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  SetLogLevel(LogLevel::kWarning);
  return Run(options);
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
