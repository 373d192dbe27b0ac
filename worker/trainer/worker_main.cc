// nereus-worker: the reference trainer. Trains a small classifier of images as
// one worker of a job, or alone with --standalone; with --replay it only moves
// gradients, on a CPU or a GPU.
//
// Read from the end: main reads the flags and calls Run. Run loads the data,
// makes the network, and joins the job. If the coordinator has counted this
// worker as dead, Run joins again. JoinAndTrain connects; TrainAndLeave trains,
// leaves and collects the report.

#include <signal.h>

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

#include "common/base/descriptor_limit.h"
#include "common/base/exit_codes.h"
#include "common/base/logging.h"
#include "common/base/signal_exit.h"
#include "common/base/status.h"
#include "common/compute/gemm.h"
#include "common/flags/model_file.h"
#include "common/plan/compute_times.h"
#include "worker/measure/copy_times.h"
#include "worker/public/client.h"
#include "worker/public/leave_signal.h"
#include "worker/trainer/dataset.h"
#include "worker/trainer/device.h"
#include "worker/trainer/gpu_device.h"
#include "worker/trainer/idx_file.h"
#include "worker/trainer/network.h"
#include "worker/trainer/replay.h"
#include "worker/trainer/replay_report.h"
#include "worker/trainer/report.h"
#include "worker/trainer/standalone_client.h"
#include "worker/trainer/trainer.h"
#include "worker/trainer/worker_flags.h"

namespace nereus {
namespace {

// Share of skipped steps above which the worker warns.
constexpr double kSkippedShareMax = 0.1;

// Number of generated images without --data. Their seed does not depend on
// --seed, so that runs with different seeds train on the same images.
constexpr int64_t kSyntheticCount = 10000;
constexpr uint64_t kSyntheticSeed = 1;

// Loads the images of --data; without --data, generates images.
absl::StatusOr<DataSplit> LoadData(const WorkerFlags& flags) {
  const auto& [folder, holdout, limit] = flags.data;
  if (!folder.empty()) return LoadDirectory(folder, holdout, limit);
  const int64_t count =
      limit > 0 ? std::min(limit, kSyntheticCount) : kSyntheticCount;
  return Split(GenerateSynthetic(kSyntheticSeed, count), holdout);
}

void LogProgress(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    NEREUS_LOG(Info, {LogEvent::kProgress}) << line;
  }
}

// Writes a line to standard output, for `nereusctl local` and scripts.
absl::Status PrintLine(const std::string& line) {
  if (std::printf("%s\n", line.c_str()) >= 0 && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return UnavailableError("cannot write to standard output");
}

// Writes the timeline to `path`, the file of --trace. Logs the share of the
// copies' time in which the GPU also computed.
absl::Status WriteTrace(const std::string& path,
                        const std::vector<GpuSpan>& spans,
                        const std::vector<LayerSpec>& specs) {
  std::ofstream file(path);
  file << TraceJson(spans, specs) << "\n";
  file.close();
  if (!file) return UnavailableError("cannot write ", path);
  CopyTimes copies = CopyTimesOf(spans, GpuSpan::Kind::kCopyOut);
  copies += CopyTimesOf(spans, GpuSpan::Kind::kCopyIn);
  NEREUS_LOG(Info) << "timeline: " << path << "; the GPU computed during "
                   << std::lround(100.0 * copies.hidden_share())
                   << " % of the time that copies took";
  return absl::OkStatus();
}

// Returns the options of the training. `client` must outlive them.
TrainerOptions MakeTrainerOptions(const WorkerFlags& flags,
                                  const Client& client) {
  TrainerOptions options;
  options.epochs = flags.epochs;
  options.seed = flags.seed;
  options.delay = absl::Seconds(flags.straggler.delay_seconds);
  options.delay_in_turn = absl::Seconds(flags.straggler.in_turn_seconds);
  options.progress = [&client,
                      json = flags.json](const TrainProgress& progress) {
    const WorkerProgress event = MakeProgress(
        client.traits().rank, progress, TotalBytes(client.Report().peers));
    if (!json) {
      NEREUS_LOG(Info, {LogEvent::kProgress}) << ProgressText(event);
      return;
    }
    // If standard output is closed, training goes on. Then the last line,
    // which Run prints, fails.
    PrintLine(FormatWorkerEvent(event)).IgnoreError();
  };
  return options;
}

// Outcome of a worker's training.
struct Outcome {
  std::optional<WorkerResult> report;  // Empty if the worker left early.
  bool was_signalled = false;          // True if it left because of SIGTERM.
  int64_t last_step = -1;              // Its last step, if it left early.
};

// Exit code of the program, and the last line of its log.
struct Ending {
  int code = kExitDone;
  std::string text;
};

// Trains until the end of the job, leaves, and measures the accuracy.
absl::StatusOr<Outcome> TrainAndLeave(const WorkerFlags& flags,
                                      const DataSplit& data, Network* network,
                                      OptimizerState* state, Client* client,
                                      const LeaveSignal& signal) {
  const Stream stream = network->device().stream();
  const int rank = client->traits().rank;
  const int64_t initial_bytes = TotalBytes(client->Report().peers);

  TrainerOptions options = MakeTrainerOptions(flags, *client);
  options.should_leave = [&] { return signal.is_set(); };
  TrainResult trained;
  absl::Status left;
  do {
    absl::StatusOr<TrainResult> result =
        Train(options, data, network, state, client);
    // A NaN of this worker has ended the job.
    if (absl::IsFailedPrecondition(result.status())) {
      return AbortedError(result.status().message());
    }
    NEREUS_TRY(result.status());
    result->Add(trained);
    trained = *result;
    // Leaves before Accuracy, so that no other worker waits meanwhile.
    left = trained.leaves_early ? client->LeaveEarly(stream)
                                : client->Leave(stream);
    // If the job goes back while this worker leaves, its last steps must be
    // done again.
  } while (absl::IsOutOfRange(left));
  NEREUS_TRY(left);
  if (trained.leaves_early) {
    return Outcome{std::nullopt, signal.is_set(), trained.last_step};
  }
  if (!flags.trace.empty()) {
    const std::vector<GpuSpan> spans = NEREUS_TRY(client->Timeline());
    NEREUS_TRY(WriteTrace(flags.trace, spans, network->specs()));
  }
  // Reports after Leave, when the last frames to slower peers count, too.
  WorkerResult report = MakeResult(trained, client->Report(), network->specs());
  report.rank = rank;
  report.initial_bytes = initial_bytes;
  report.parameter_checksum =
      absl::StrCat(absl::Hex(ParameterChecksum(*network), absl::kZeroPad8));
  // Each worker measures the accuracy, because any other worker can die.
  if (data.test.count() > 0) {
    report.test_accuracy = Accuracy(data.test, data.normalisation, network);
  }
  NEREUS_TRY(network->device().status());
  return Outcome{std::move(report)};
}

void LogTraining(const WorkerFlags& flags, const DataSplit& data,
                 const Client& client) {
  NEREUS_LOG(Info) << "training " << flags.model << " on " << data.train.count()
                   << " images of " << data.classes() << " classes, testing on "
                   << data.test.count() << ", on device " << flags.device
                   << "; batch " << flags.batch << ", epochs " << flags.epochs
                   << ", seed " << flags.seed << ", rank "
                   << client.traits().rank;
}

// Joins the job and trains. Errors: kCancelled, this worker counts as dead and
// may join again; all other errors end the program.
absl::StatusOr<Outcome> JoinAndTrain(const WorkerFlags& flags,
                                     const DataSplit& data, Network* network) {
  OptimizerState state;
  std::vector<LayerBinding> layers = NEREUS_TRY(BindLayers(network, &state));
  const std::unique_ptr<Client> client = NEREUS_TRY(
      flags.standalone ? StandaloneClient::Create(
                             flags.spec.options.optimizer, std::move(layers),
                             flags.spec.options.rate_schedule)
                       : ConnectOn(network->device(), flags.client,
                                   std::move(layers), !flags.trace.empty()));
  LogTraining(flags, data, *client);
  return TrainAndLeave(flags, data, network, &state, client.get(),
                       LeaveSignal());
}

// Returns the settings that must be equal on all workers, so that together they
// train one model on shares of one set of images.
std::vector<Setting> TrainingSettings(const WorkerFlags& flags,
                                      const DataSplit& data) {
  return {
      {"--model", flags.model},
      {"--batch", absl::StrCat(flags.batch)},
      {"--epochs", absl::StrCat(flags.epochs)},
      {"--seed", absl::StrCat(flags.seed)},
      {"--limit", absl::StrCat(flags.data.limit)},
      {"--holdout", absl::StrCat(flags.data.holdout)},
      {"--data",
       absl::StrCat(data.train.count(), " images with checksum ",
                    absl::Hex(ChecksumOf(data.train), absl::kZeroPad8))},
  };
}

// Warns if most classes have no image: then one label is probably wrong.
void WarnOfLabels(const Dataset& train) {
  const int64_t absent = train.ClassesWithoutImages();
  if (2 * absent <= train.classes()) return;
  NEREUS_LOG(Warning) << "labels go up to " << train.classes() - 1 << ", but "
                      << absent << " of these " << train.classes()
                      << " classes have no image to train with: is a label "
                         "wrong?";
}

absl::StatusOr<std::shared_ptr<Device>> MakeDevice(const WorkerFlags& flags) {
  return flags.on_gpu() ? MakeGpuDevice(*GpuNumber(flags.device))
                        : MakeCpuDevice(flags.replay.spins);
}

// Returns the ending of a worker that has left the job early, after its step
// `last_step`; -1: it has done none. `was_signalled`: because of SIGTERM.
Ending LeftEarly(int64_t last_step, bool was_signalled) {
  return {was_signalled ? LeaveSignal::kExitCode : kExitDone,
          absl::StrCat("left the job early, ",
                       last_step < 0 ? "before its first step"
                                     : absl::StrCat("after step ", last_step),
                       was_signalled ? ", because of SIGTERM"
                                     : ", as an operator has asked for")};
}

// Runs a replay (--replay).
absl::StatusOr<Ending> RunReplay(const WorkerFlags& flags) {
  ReplayOptions options;
  options.layers = NEREUS_TRY(LoadModelOrFile(flags.model, flags.batch));
  options.times =
      NEREUS_TRY(LoadComputeTrace(flags.replay.times_file, options.layers));
  options.steps = flags.replay.steps;
  options.waits_at_end = flags.replay.waits_at_end;
  options.delay = absl::Seconds(flags.straggler.delay_seconds);
  options.delay_in_turn = absl::Seconds(flags.straggler.in_turn_seconds);
  NEREUS_TRY(options.Validate());
  ClientOptions client = flags.client;
  client.settings = {{"--model", flags.model},
                     {"--batch", absl::StrCat(flags.batch)},
                     {"--steps", absl::StrCat(flags.replay.steps)}};
  const std::shared_ptr<Device> device = NEREUS_TRY(MakeDevice(flags));
  const LeaveSignal signal;
  options.should_leave = [&] { return signal.is_set(); };
  const ReplayReport report = NEREUS_TRY(Replay(options, client, device.get()));
  if (report.result.left_early) {
    return LeftEarly(report.result.last_step, signal.is_set());
  }
  if (report.timeline.has_value() && !flags.trace.empty()) {
    NEREUS_TRY(WriteTrace(flags.trace, *report.timeline, options.layers));
  }
  if (flags.json) {
    NEREUS_TRY(PrintLine(ReplayJson(report)));
  } else {
    LogProgress(ReplayText(report));
  }
  return Ending{kExitDone, "the replay is done"};
}

// Does the work of the program.
absl::StatusOr<Ending> Run(WorkerFlags flags) {
  SetGemmThreads(flags.threads);
  if (flags.is_replay()) return RunReplay(flags);
  const std::shared_ptr<Device> device = NEREUS_TRY(MakeDevice(flags));
  absl::StatusOr<DataSplit> loaded = LoadData(flags);
  // Whatever is wrong with the data, another start would not help.
  if (!loaded.ok()) return InvalidArgumentError(loaded.status().message());
  const DataSplit data = *std::move(loaded);
  if (flags.batch > data.train.count()) {
    return InvalidArgumentError("--batch is ", flags.batch,
                                ", must be at most ", data.train.count(),
                                ", the number of images to train with");
  }
  WarnOfLabels(data.train);
  flags.client.settings = TrainingSettings(flags, data);
  const std::unique_ptr<Network> network = NEREUS_TRY(Network::Create(
      flags.model, data.train.image, data.classes(), flags.batch, device));
  network->Initialize(flags.seed);
  absl::StatusOr<Outcome> outcome = JoinAndTrain(flags, data, network.get());
  // A worker that was silent for too long counts as dead (kCancelled), and
  // joins again as a new worker.
  int joins = 1;
  while (absl::IsCancelled(outcome.status())) {
    NEREUS_LOG(Warning, {LogEvent::kMemberLost})
        << outcome.status().message() << "; joining again";
    ++joins;
    outcome = JoinAndTrain(flags, data, network.get());
  }
  if (joins > 1 && absl::IsOutOfRange(outcome.status())) {
    return Ending{kExitDone,
                  absl::StrCat(outcome.status().message(),
                               ": the other workers have finished the job")};
  }
  NEREUS_TRY(outcome.status());
  std::optional<WorkerResult>& report = outcome->report;
  if (!report.has_value()) {
    return LeftEarly(outcome->last_step, outcome->was_signalled);
  }
  report->joins = joins;
  if (report->steps.skipped >
      kSkippedShareMax * static_cast<double>(report->steps.done)) {
    NEREUS_LOG(Warning, {LogEvent::kSkippedStep})
        << report->steps.skipped << " of " << report->steps.done
        << " steps were skipped for a NaN: is --learning-rate "
           "too high?";
  }
  if (flags.json) {
    NEREUS_TRY(PrintLine(FormatWorkerEvent(*report)));
  } else {
    LogProgress(DoneText(*report));
  }
  return Ending{kExitDone, "left the job after its last step"};
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) {
  nereus::RaiseDescriptorLimit();
  signal(SIGPIPE, SIG_IGN);  // Standard output may close; training goes on.
  nereus::ExitOnSignals();
  nereus::WorkerFlags flags;
  const int exit_code = nereus::ReadWorkerFlags(argc, argv, flags);
  if (exit_code >= 0) return exit_code;
  const absl::StatusOr<nereus::Ending> ending = nereus::Run(flags);
  if (ending.ok()) {
    NEREUS_LOG(Info, {nereus::LogEvent::kEnd}) << ending->text;
    return ending->code;
  }
  NEREUS_LOG(Error, {nereus::LogEvent::kEnd}) << ending.status().ToString();
  return nereus::ExitCodeOf(ending.status());
}
