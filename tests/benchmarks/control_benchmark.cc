// Measures the cost of a job besides its bytes: the time until all clients have
// done a first step, and the time of a round of small layers.
//
//   control_benchmark --clients=64 --layers=10,40,160
//
// Servers and clients are all in this process; each has its own threads and
// ports. In a step, a client pushes each layer, last layer first, and waits for
// all; it computes nothing. Prints a line for each number of layers, or an
// object with --json.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "server/process/server.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

struct Flags {
  int clients = 64;
  int servers = 2;
  std::vector<int> layers = {10, 40, 160};
  int64_t elements = 1024;
  int rounds = 20;
  bool json = false;
};

// A client on its own thread.
class Worker {
 public:
  Worker(const Flags& flags, int layers, const std::string& coordinator)
      : rounds_(flags.rounds),
        values_(layers, std::vector<float>(flags.elements)),
        gradients_(values_) {
    options_.optimizer = std::nullopt;  // The job decides on the optimizer.
    options_.coordinator_address = coordinator;
    for (int i = 0; i < layers; ++i) {
      specs_.push_back({absl::StrCat("layer", i), LayerKind::kConvolution, 1,
                        flags.elements, flags.elements, 1});
    }
  }

  absl::Status Run() {
    std::vector<LayerBinding> layers;
    for (size_t i = 0; i < specs_.size(); ++i) {
      layers.push_back({specs_[i], absl::MakeSpan(values_[i])});
    }
    auto client = NEREUS_TRY(Client::Connect(options_, layers));
    connected = absl::Now();
    for (int round = 0; round <= rounds_; ++round) {
      const absl::Time start = absl::Now();
      const StepInfo step = NEREUS_TRY(client->BeginStep());
      for (size_t i = specs_.size(); i-- > 0;) {
        NEREUS_TRY(client->Push(static_cast<int>(i), step.step,
                                absl::MakeSpan(gradients_[i])));
      }
      NEREUS_TRY(client->WaitAll(step.step));
      if (round == 0) {
        first_step = absl::Now();
      } else {
        times.push_back(absl::ToDoubleSeconds(absl::Now() - start));
      }
    }
    return client->Leave();
  }

  absl::Time connected;
  absl::Time first_step;
  std::vector<double> times;  // Seconds of the later rounds.

 private:
  const int rounds_;
  ClientOptions options_;
  std::vector<LayerSpec> specs_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float>> gradients_;
};

struct Result {
  // Seconds from the start until all clients are connected.
  double connected = 0.0;
  // Seconds from the start until all clients have done a step.
  double first_step = 0.0;
  std::vector<double> times;
};

absl::StatusOr<std::vector<std::unique_ptr<Server>>> StartServers(
    const Flags& flags) {
  std::vector<std::unique_ptr<Server>> servers;
  for (int shard = 0; shard < flags.servers; ++shard) {
    ServerOptions options;
    options.spec.rules.cost = CostKind::kBytes;
    options.shard = shard;
    options.spec.shards = flags.servers;
    options.spec.workers = flags.clients;
    if (shard > 0) {
      options.coordinator_address =
          absl::StrCat("127.0.0.1:", servers[0]->control_port());
    }
    auto server = NEREUS_TRY(Server::Start(options));
    servers.push_back(std::move(server));
  }
  return servers;
}

absl::StatusOr<Result> Measure(const Flags& flags, int layers) {
  const absl::Time start = absl::Now();
  const auto servers = NEREUS_TRY(StartServers(flags));
  const std::string coordinator =
      absl::StrCat("127.0.0.1:", servers[0]->control_port());
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<absl::Status> outcomes(flags.clients);
  std::vector<std::thread> threads;
  for (int i = 0; i < flags.clients; ++i) {
    workers.push_back(std::make_unique<Worker>(flags, layers, coordinator));
    threads.emplace_back([&outcomes, i, worker = workers.back().get()] {
      outcomes[i] = worker->Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) {
    NEREUS_TRY(outcome);
  }
  for (const auto& server : servers) {
    NEREUS_TRY(server->AwaitEnd());
  }
  Result result;
  for (const auto& worker : workers) {
    result.connected = std::max(
        result.connected, absl::ToDoubleSeconds(worker->connected - start));
    result.first_step = std::max(
        result.first_step, absl::ToDoubleSeconds(worker->first_step - start));
    result.times.insert(result.times.end(), worker->times.begin(),
                        worker->times.end());
  }
  absl::c_sort(result.times);
  return result;
}

void Report(const Flags& flags, int layers, const Result& result) {
  const double median = result.times[result.times.size() / 2];
  const char* const format =
      flags.json
          ? "{\"clients\":%d,\"servers\":%d,\"layers\":%d,"
            "\"seconds_connected\":%.3f,\"seconds_first_step\":%.3f,"
            "\"seconds_median\":%.6f,\"seconds_min\":%.6f,"
            "\"seconds_max\":%.6f,\"seconds_per_layer\":%.9f}\n"
          : "%d clients, %d servers, %d layers: all connected after %.3f s, a "
            "step done after %.3f s; a round takes %.6f s (%.6f to %.6f), "
            "%.9f s a layer\n";
  std::printf(format, flags.clients, flags.servers, layers, result.connected,
              result.first_step, median, result.times.front(),
              result.times.back(), median / layers);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Times the start of a job, and rounds of small layers.");
  AddFlag(app, "clients", flags.clients, "workers of the job")
      ->check(CLI::Range(1, 256));
  AddFlag(app, "servers", flags.servers, "shards of the job")
      ->check(CLI::Range(1, 64));
  AddFlag(app, "layers", flags.layers, "layer counts; a job runs for each")
      ->delimiter(',')
      ->check(CLI::Range(1, 10000));
  AddFlag(app, "elements", flags.elements, "float32 values per layer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  AddFlag(app, "rounds", flags.rounds, "timed rounds")
      ->check(CLI::Range(1, 100000));
  AddSwitch(app, "json", flags.json, "prints a JSON object per line");
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  SetLogLevel(LogLevel::kWarning);
  for (const int layers : flags.layers) {
    const absl::StatusOr<Result> result = Measure(flags, layers);
    if (!result.ok()) {
      NEREUS_LOG(Error) << result.status().message();
      return 1;
    }
    Report(flags, layers, *result);
  }
  return 0;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
