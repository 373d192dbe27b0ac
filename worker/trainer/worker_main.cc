// nereus-worker: the reference trainer. Trains a small classifier of images as
// one worker of a job, or alone with --standalone.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/descriptor_limit.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/compute/gemm.h"
#include "common/compute/optimizer.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "common/plan/compute_times.h"
#include "worker/public/client.h"
#include "worker/replay/replay.h"
#include "worker/trainer/device.h"
#include "worker/trainer/gpu_worker.h"
#include "worker/trainer/idx_file.h"
#include "worker/trainer/network.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/report.h"
#include "worker/trainer/standalone_client.h"
#include "worker/trainer/synthetic.h"
#include "worker/trainer/trainer.h"

namespace nereus {
namespace {

// Of a run that may have learnt something in spite of NaNs.
constexpr double kSkippedShareMax = 0.1;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// Images that are generated where no --data is given. Their seed doesn't depend
// on --seed, so that runs with different ones compare.
constexpr int64_t kSyntheticCount = 10000;
constexpr uint64_t kSyntheticSeed = 1;

constexpr char kCpu[] = "cpu";

// Of "cuda:0"; nothing: it is not of that form.
std::optional<int> GpuNumber(absl::string_view device) {
  int number = 0;
  if (!absl::ConsumePrefix(&device, "cuda:") ||
      !absl::SimpleAtoi(device, &number) || number < 0) {
    return std::nullopt;
  }
  return number;
}

struct Flags {
  ClientOptions client;
  // For --standalone; a job has its own.
  JobSpec spec;  // Its optimizer: --standalone has no job to ask.
  std::string model = "cnn";
  std::string device = kCpu;
  std::string trace;
  std::string data;
  LogLevel log_level = LogLevel::kInfo;
  double holdout = 0.2;
  int64_t limit = 0;
  int64_t batch = 32;
  int64_t epochs = 8;
  uint64_t seed = 1;
  int threads = 1;
  bool standalone = false;
  bool json = false;

  // Instead of training: the times of the model's layers are slept.
  std::string replay;
  int64_t steps = 100;
  double delay_seconds = 0.0;
  double delay_in_turn_seconds = 0.0;
};

void AddMemberFlags(CLI::App& app, Flags& flags) {
  ClientOptions& client = flags.client;
  client.means_in_place = false;    // The trainer looks where they are.
  client.optimizer = std::nullopt;  // It does what the job says.
  AddFlag(app, "coordinator", client.coordinator_address,
          "HOST:PORT of the coordinator: shard 0's control port");
  AddFlag(app, "job-name", client.job, "name of the job to join");
  AddFlag(app, "name", client.name,
          "what messages call this worker; empty: HOST:PID. A worker with the "
          "name of a dead one takes its place");
  AddFlag(app, "host", client.host,
          "address to listen at, and that the others are told");
  AddFlag(app, "control-port", client.control_port,
          "port for health checks; 0: a free one")
      ->check(CLI::Range(0, 65535));
  AddFlag(app, "data-port", client.data_port,
          "port for the other workers; 0: a free one")
      ->check(CLI::Range(0, 65535));
  AddSharedMemoryFlag(app, client.shared_memory);
}

void AddTrainingFlags(CLI::App& app, Flags& flags) {
  AddFlag(
      app, "model", flags.model,
      "network to train: mlp or cnn; with --replay, " + DescribeModelFlag());
  AddFlag(app, "batch", flags.batch, "images of this worker in a step")
      ->check(CLI::Range(int64_t{1}, kBatchLengthMax));
  AddFlag(app, "threads", flags.threads, "threads that compute, on a CPU")
      ->check(CLI::Range(1, 1024));
  AddSwitch(app, "json", flags.json,
            "report as JSON objects, a line each, on standard output");
}

// Of training, as a replay does none.
void AddDataFlags(CLI::App& app, Flags& flags) {
  AddFlag(app, "epochs", flags.epochs, "passes over the training images")
      ->check(CLI::Range(int64_t{1}, kEpochsMax));
  AddFlag(app, "seed", flags.seed,
          "of the initial parameters and of the images' order; the same on all "
          "workers");
  AddFlag(app, "device", flags.device,
          "cpu, or cuda:N, which several workers may share");
  AddFlag(app, "trace", flags.trace,
          "of a GPU: file for a timeline of its first steps, computing and "
          "copies, in the format of Chrome's traces");
  AddFlag(
      app, "data", flags.data,
      "folder of MNIST's files (IDX, plain or .gz); none: generated images");
  AddFlag(app, "holdout", flags.holdout,
          "share of the images to test with, where there is one set alone");
  AddFlag(app, "limit", flags.limit, "use the first images alone; 0: all")
      ->check(CLI::Range(int64_t{0}, kIdxBytesMax));
}

void AddReplayFlags(CLI::App& app, Flags& flags) {
  AddFlag(app, "replay", flags.replay,
          "train nothing: sleep for the layers' times in this file (JSON, "
          "see nereusctl simulate --compute-trace) and exchange gradients of "
          "--model's sizes for --batch samples");
  AddFlag(app, "steps", flags.steps, "of a replay")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  AddFlag(app, "delay", flags.delay_seconds,
          "seconds to sleep before each forward: a straggler, for tests")
      ->check(CLI::Range(0.0, 3600.0));
  AddFlag(app, "delay-in-turn", flags.delay_in_turn_seconds,
          "the same of another worker in each step, if all say so")
      ->check(CLI::Range(0.0, 3600.0));
}

absl::StatusOr<DataSplit> LoadData(const Flags& flags) {
  if (!flags.data.empty()) {
    return LoadDirectory(flags.data, flags.holdout, flags.limit);
  }
  const int64_t count = flags.limit > 0 ? std::min(flags.limit, kSyntheticCount)
                                        : kSyntheticCount;
  return Split(GenerateSynthetic(kSyntheticSeed, count), flags.holdout);
}

absl::Status PrintLine(const std::string& line) {
  if (std::printf("%s\n", line.c_str()) >= 0 && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("cannot write to standard output");
}

absl::Status WriteTrace(const std::string& path, Replica& replica) {
  NEREUS_ASSIGN_OR_RETURN(const std::vector<GpuSpan> spans, replica.Timeline());
  std::ofstream file(path);
  file << TraceJson(spans, replica.network().specs()) << "\n";
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  NEREUS_LOG(Info) << "timeline: " << path << "; the GPU computed in "
                   << std::lround(100.0 * HiddenShare(spans))
                   << " % of the time that copies took";
  return absl::OkStatus();
}

absl::StatusOr<WorkerReport> TrainAndLeave(const Flags& flags,
                                           const DataSplit& data,
                                           Replica* replica) {
  const Client* const client = &replica->client();
  Network* const network = &replica->network();
  WorkerReport report;
  report.rank = client->traits().rank;
  report.initial_bytes = TotalBytes(client->Report().peers);
  report.specs = network->specs();

  TrainerOptions options;
  options.epochs = flags.epochs;
  options.seed = flags.seed;
  options.delay = absl::Seconds(flags.delay_seconds);
  options.delay_in_turn = absl::Seconds(flags.delay_in_turn_seconds);
  options.progress = [&](const TrainProgress& progress) {
    const int64_t bytes = TotalBytes(client->Report().peers);
    if (flags.json) {
      // A reader that went away doesn't stop the job's training; the last line
      // below does report it.
      PrintLine(ProgressJson(report.rank, progress, bytes)).IgnoreError();
    } else {
      NEREUS_LOG(Info) << ProgressText(progress, bytes);
    }
  };
  absl::Status left;
  do {
    NEREUS_ASSIGN_OR_RETURN(report.result, Train(options, data, replica));
    // Before the evaluation: the others needn't wait for it.
    left = replica->Leave();
  } while (absl::IsOutOfRange(left));  // The job has gone back meanwhile.
  NEREUS_RETURN_IF_ERROR(left);
  if (!flags.trace.empty()) {
    NEREUS_RETURN_IF_ERROR(WriteTrace(flags.trace, *replica));
  }
  report.workers = report.result.workers;
  // Now that the last frames to slower peers are out, too.
  ClientReport costs = client->Report();
  report.saved_round = costs.saved_round;
  report.layers = std::move(costs.layers);
  report.measured = std::move(costs.measured);
  report.traffic = std::move(costs.peers);
  report.parameter_checksum = ParameterChecksum(*network);
  // Each one, since any of them may die on the way.
  if (data.test.count() > 0) {
    report.test_accuracy = Accuracy(data.test, data.normalisation, network);
  }
  NEREUS_RETURN_IF_ERROR(network->device().status());
  return report;
}

void SayTraining(const Flags& flags, const DataSplit& data,
                 const Client& client) {
  NEREUS_LOG(Info) << "training " << flags.model << " on " << data.train.count()
                   << " images, testing on " << data.test.count()
                   << ", on device " << flags.device << "; batch "
                   << flags.batch << ", epochs " << flags.epochs << ", seed "
                   << flags.seed << ", rank " << client.traits().rank;
}

absl::StatusOr<WorkerReport> JoinAndTrain(const Flags& flags,
                                          const DataSplit& data,
                                          Network* network) {
  if (flags.device != kCpu) {
    NEREUS_ASSIGN_OR_RETURN(
        const std::unique_ptr<Replica> replica,
        JoinWithGpu(flags.client, network, !flags.trace.empty()));
    SayTraining(flags, data, replica->client());
    return TrainAndLeave(flags, data, replica.get());
  }
  OptimizerState state;
  std::vector<LayerBinding> layers = BindLayers(network, &state);
  NEREUS_ASSIGN_OR_RETURN(
      const std::unique_ptr<Client> client,
      flags.standalone ? StandaloneClient::Create(flags.spec.options.optimizer,
                                                  std::move(layers))
                       : Client::Connect(flags.client, std::move(layers)));
  SayTraining(flags, data, *client);
  absl::StatusOr<WorkerReport> report = TrainAndLeave(
      flags, data, MakeHostReplica(network, &state, client.get()).get());
  // A loss that is no number would be the same for any worker that comes.
  if (absl::IsFailedPrecondition(report.status())) {
    return client->Abort(report.status().message());
  }
  return report;
}

// What all workers of the job must have in common, so that together they train
// one model on shares of one set of images.
std::vector<Setting> TrainingSettings(const Flags& flags,
                                      const DataSplit& data) {
  return {
      {"--model", flags.model},
      {"--batch", absl::StrCat(flags.batch)},
      {"--epochs", absl::StrCat(flags.epochs)},
      {"--seed", absl::StrCat(flags.seed)},
      {"--limit", absl::StrCat(flags.limit)},
      {"--holdout", absl::StrCat(flags.holdout)},
      {"--data",
       absl::StrCat(data.train.count(), " images with checksum ",
                    absl::Hex(ChecksumOf(data.train), absl::kZeroPad8))},
  };
}

absl::Status RunReplay(const Flags& flags) {
  ReplayOptions options;
  NEREUS_ASSIGN_OR_RETURN(options.layers,
                          LoadModelOrFile(flags.model, flags.batch));
  NEREUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.replay));
  NEREUS_ASSIGN_OR_RETURN(options.times,
                          ParseComputeTrace(text, options.layers));
  options.steps = flags.steps;
  options.delay = absl::Seconds(flags.delay_seconds);
  options.delay_in_turn = absl::Seconds(flags.delay_in_turn_seconds);
  NEREUS_RETURN_IF_ERROR(options.Validate());
  Replay replay(std::move(options));
  ClientOptions client_options = flags.client;
  client_options.settings = {{"--model", flags.model},
                             {"--batch", absl::StrCat(flags.batch)},
                             {"--steps", absl::StrCat(flags.steps)}};
  NEREUS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                          Client::Connect(client_options, replay.Bindings()));
  NEREUS_ASSIGN_OR_RETURN(const ReplayResult result, replay.Run(client.get()));
  const ClientReport costs = client->Report();
  return PrintLine(
      ReplayJson(client->traits().rank, result, costs.layers, costs.peers));
}

absl::Status Run(Flags flags) {
  SetGemmThreads(flags.threads);
  if (!flags.replay.empty()) return RunReplay(flags);
  std::shared_ptr<Device> device = MakeCpuDevice();
  if (flags.device != kCpu) {
    NEREUS_ASSIGN_OR_RETURN(device, MakeGpuDevice(*GpuNumber(flags.device)));
  }
  NEREUS_ASSIGN_OR_RETURN(const DataSplit data, LoadData(flags));
  if (flags.batch > data.train.count()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch is ", flags.batch, ", must be at most ", data.train.count(),
        ", the number of images to train with"));
  }
  flags.client.settings = TrainingSettings(flags, data);
  NEREUS_ASSIGN_OR_RETURN(const std::unique_ptr<Network> network,
                          Network::Create(flags.model, data.train.image,
                                          data.classes(), flags.batch, device));
  network->Initialize(flags.seed);
  absl::StatusOr<WorkerReport> report =
      JoinAndTrain(flags, data, network.get());
  // It stood still for too long, and the others went on: so does it, as a new
  // worker.
  int joins = 1;
  while (absl::IsCancelled(report.status())) {
    NEREUS_LOG(Warning) << report.status().message() << "; joining again";
    ++joins;
    report = JoinAndTrain(flags, data, network.get());
  }
  if (joins > 1 && absl::IsOutOfRange(report.status())) {
    NEREUS_LOG(Warning) << report.status().message()
                        << ": the others have ended it without this worker";
    return absl::OkStatus();
  }
  if (!report.ok()) return report.status();
  report->joins = joins;
  if (report->result.skipped >
      kSkippedShareMax * static_cast<double>(report->result.steps)) {
    NEREUS_LOG(Warning) << report->result.skipped << " of "
                        << report->result.steps
                        << " steps were skipped for a NaN: is --learning-rate "
                           "too high?";
  }
  if (flags.json) return PrintLine(DoneJson(*report));
  for (const std::string& line : DoneText(*report)) NEREUS_LOG(Info) << line;
  return absl::OkStatus();
}

// Ends the process at once, whatever its threads wait for. That is safe since a
// worker owns nothing that outlives it: parameters and optimizer state are the
// servers', it writes no files, and to its peers it looks as if it had died,
// which they handle anyway.
void ExitOnSignal(int signal_number) { _exit(128 + signal_number); }

void InstallSignalHandlers() {
  struct sigaction action = {};
  action.sa_handler = ExitOnSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

// Names of flags that count together, or not at all.
struct FlagGroups {
  std::vector<std::string> member;
  std::vector<std::string> data;
  std::vector<std::string> update;
};

// OK if the flags make sense, alone and together.
absl::Status CheckFlags(const CLI::App& app, int argc, char** argv,
                        const Flags& flags, const FlagGroups& groups) {
  const auto refuse = [&](const std::vector<std::string>& names,
                          const std::string& why) {
    return RefuseFlags(app, argc, argv, names, why);
  };
  absl::Status status;
  if (flags.standalone) {
    status.Update(refuse(groups.member, "with --standalone: there is no job"));
  } else {
    status.Update(refuse(groups.update,
                         "in a job: its coordinator's flags decide how "
                         "parameters are updated"));
  }
  if (flags.replay.empty()) {
    status.Update(refuse({"--steps"}, "without --replay: see --epochs"));
  } else {
    status.Update(refuse(groups.data, "with --replay: nothing is trained"));
  }
  if (!flags.standalone) status.Update(flags.client.Validate());
  if (flags.replay.empty() && flags.model != "mlp" && flags.model != "cnn") {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("--model: \"", flags.model, "\" is neither mlp nor cnn")));
  }
  if (flags.device != kCpu && !GpuNumber(flags.device).has_value()) {
    status.Update(absl::InvalidArgumentError(absl::StrCat(
        "--device: \"", flags.device, "\" is neither cpu nor cuda:N")));
  }
  if (flags.device == kCpu && !flags.trace.empty()) {
    status.Update(absl::InvalidArgumentError(
        "--trace is of a GPU's work: it needs --device=cuda:N"));
  }
  if (flags.device != kCpu && flags.standalone) {
    status.Update(absl::InvalidArgumentError(
        "--standalone trains on a CPU; a job of one worker may be on a GPU"));
  }
  if (!flags.replay.empty() && flags.standalone) {
    status.Update(absl::InvalidArgumentError(
        "--replay is of a job's network: it does nothing --standalone"));
  }
  return status;
}

// The exit code if the program ends here, or -1.
int ReadFlags(int argc, char** argv, Flags& flags) {
  CLI::App app("Trains a classifier of images as one worker of a Nereus job.",
               "nereus-worker");
  AddCommonFlags(app, "nereus-worker", flags.log_level);
  const auto member_flags =
      FlagsAddedBy(app, [&] { AddMemberFlags(app, flags); });
  AddSwitch(app, "standalone", flags.standalone,
            "train alone, without servers");
  AddTrainingFlags(app, flags);
  const auto data_flags = FlagsAddedBy(app, [&] { AddDataFlags(app, flags); });
  AddReplayFlags(app, flags);
  const auto update_flags = FlagsAddedBy(app, [&] {
    AddJobOptions(app, flags.spec,
                  {"update", "learning-rate", "momentum", "weight-decay",
                   "beta1", "beta2", "epsilon"});
  });
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  const absl::Status status = CheckFlags(
      app, argc, argv, flags, {member_flags, data_flags, update_flags});
  if (status.ok()) return -1;
  std::fprintf(stderr, "nereus-worker: %s\nRun with --help for the flags.\n",
               WithFlagNames(app, status.message(),
                             {{"coordinator_address", "--coordinator"}})
                   .c_str());
  return kExitUsage;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) {
  nereus::RaiseDescriptorLimit();
  signal(SIGPIPE, SIG_IGN);  // Its reader may go; the job goes on.
  nereus::InstallSignalHandlers();
  nereus::Flags flags;
  const int exit_code = nereus::ReadFlags(argc, argv, flags);
  if (exit_code >= 0) return exit_code;
  nereus::SetLogLevel(flags.log_level);
  if (flags.client.name.empty()) flags.client.name = nereus::ProcessName();
  nereus::SetLogName(flags.standalone ? "standalone"
                                      : "worker " + flags.client.name);
  const absl::Status status = nereus::Run(flags);
  if (status.ok()) return 0;
  NEREUS_LOG(Error) << status.ToString();
  return nereus::kExitFailure;
}
