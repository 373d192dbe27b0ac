#include "worker/trainer/worker_flags.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/base/exit_codes.h"
#include "common/base/identity.h"
#include "common/base/status.h"
#include "common/flags/given_options.h"
#include "common/flags/model_file.h"
#include "worker/trainer/idx_file.h"
#include "worker/trainer/network.h"
#include "worker/trainer/trainer.h"

// Flags of nereus-worker. They are added in groups, one function each, in the
// order in which --help lists them. After parsing, CheckFlags refuses a flag
// that has no effect in this mode, such as --data with --replay, because its
// user expects an effect.

namespace nereus {
namespace {

void AddMemberFlags(CLI::App& app, WorkerFlags& flags) {
  ClientOptions& client = flags.client;
  client.means_in_place = false;  // The trainer reads Client::Mean.
  // The trainer runs the optimizer if the job asks for that.
  client.optimizer = std::nullopt;
  client.scales_loss = true;
  AddFlag(app, "coordinator", client.coordinator_address,
          "HOST:PORT of the coordinator's control port: that of shard 0, or of "
          "the server with --coordinate-only");
  AddFlag(app, "job-name", client.job, "name of the job to join");
  AddFlag(app, "name", client.name,
          "name of this worker in messages; empty: HOST:PID. A worker with the "
          "name of a dead worker takes its place");
  app.add_option("--rank", client.rank,
                 "number of this worker among those that are started together, "
                 "from 0: its rank at the start of the job; without it, the "
                 "order of joining decides")
      ->envname(FlagVariable("rank"));
  AddAddressFlags(app, client.address, client.connect_timeout,
                  "port for health checks; 0: a free port",
                  "port for the other workers; 0: a free port",
                  "port for metrics (/metrics); 0: none");
  AddSharedMemoryFlag(app, client.shared_memory);
  AddNodeFlag(app, client.node);
  AddFlag(app, "share", client.share.folder,
          "folder of a device that other jobs use, too: their workers take "
          "turns, step by step (docs/sharing.md); empty: the device is not "
          "shared");
  AddNumber(app, "share-weight", client.share.weight, 0.01, 100.0,
            "share of the job in the device, relative to those of the others; "
            "must be equal on all workers");
  AddChoice(app, "share-optional", client.share.is_optional,
            {{"off", false}, {"on", true}},
            "on: if the device cannot be shared, warn, and train without "
            "turns");
}

void AddTrainingFlags(CLI::App& app, WorkerFlags& flags) {
  AddFlag(
      app, "model", flags.model,
      "network to train: mlp or cnn; with --replay, " + DescribeModelFlag());
  AddNumber(app, "batch", flags.batch, 1, kBatchLengthMax,
            "images of this worker in a step");
  AddNumber(app, "threads", flags.threads, 1, 1024,
            "threads that compute, on a CPU");
  AddSwitch(app, "json", flags.json,
            "report as JSON objects, one per line, on standard output");
}

void AddDeviceFlags(CLI::App& app, WorkerFlags& flags) {
  AddFlag(app, "device", flags.device,
          "cpu, or cuda:N; several workers may share a GPU");
  AddFlag(app, "trace", flags.trace,
          "with --device=cuda:N: write a timeline of the first steps, "
          "computing and copies, to this file, in the format of Chrome's "
          "traces");
}

// Adds the flags that a replay does not use.
void AddDataFlags(CLI::App& app, WorkerFlags& flags) {
  AddNumber(app, "epochs", flags.epochs, 1, kEpochsMax,
            "passes over the training images");
  AddSeedFlag(
      app, "seed", flags.seed,
      "seed of the initial parameters and of the order of the images; must "
      "be equal on all workers");
  AddFlag(app, "data", flags.data.folder,
          "folder with the files of MNIST (IDX, plain or .gz); empty: "
          "generated images");
  AddFlag(app, "holdout", flags.data.holdout,
          "share of the images to test with; not used if the folder of --data "
          "has images for tests");
  AddNumber(app, "limit", flags.data.limit, 0, kIdxBytesMax,
            "use only the first images of each set; 0: all");
}

void AddReplayFlags(CLI::App& app, WorkerFlags& flags) {
  AddFlag(app, "replay", flags.replay.times_file,
          "train nothing: keep --device busy for the layers' times in this "
          "file (JSON, see nereusctl simulate --compute-trace) and exchange "
          "gradients of --model's sizes for --batch samples");
  AddNumber(app, "steps", flags.replay.steps, 1, int64_t{1} << 30,
            "steps of a replay");
  AddSwitch(app, "spin", flags.replay.spins,
            "with --replay, on a CPU: use a core for the layers' times instead "
            "of sleeping, so that jobs on one core slow each other down");
  AddSwitch(app, "waits-at-end", flags.replay.waits_at_end,
            "with --replay: wait for all layers at the end of a step, and not "
            "for each layer before its next forward");
  AddNumber(app, "delay", flags.straggler.delay_seconds, 0.0, 3600.0,
            "seconds to wait before each forward: a straggler, for tests");
  AddNumber(app, "delay-in-turn", flags.straggler.in_turn_seconds, 0.0, 3600.0,
            "seconds to wait before the forward of each step in which it is "
            "this worker's turn; all workers take turns");
}

// Names of flags, in groups. All flags of a group have an effect, or none has.
struct FlagGroups {
  std::vector<std::string> member;  // Flags of a member of a job.
  std::vector<std::string> data;    // Flags of training, not of a replay.
  std::vector<std::string> update;  // Flags of the optimizer.
};

// Returns an error if the values of `flags` do not go together.
absl::Status CheckValues(const WorkerFlags& flags) {
  if (!flags.standalone) NEREUS_TRY(flags.client.Validate());
  // A rule refuses the flags if its condition holds. The first such rule is
  // reported.
  const struct {
    bool is_wrong;
    std::string message;
  } rules[] = {
      {!flags.is_replay() && flags.model != "mlp" && flags.model != "cnn",
       absl::StrCat("--model: \"", flags.model, "\" is neither mlp nor cnn")},
      {flags.on_gpu() && !GpuNumber(flags.device).has_value(),
       absl::StrCat("--device: \"", flags.device,
                    "\" is neither cpu nor cuda:N")},
      {!(flags.data.holdout > 0 && flags.data.holdout < 1),
       absl::StrCat("--holdout is ", flags.data.holdout,
                    ", must be > 0 and < 1")},
      {!flags.on_gpu() && !flags.trace.empty(),
       "--trace records the work of a GPU: it needs --device=cuda:N"},
      {flags.on_gpu() && flags.standalone,
       "--standalone trains on a CPU; on a GPU, use a job of one worker"},
      {flags.is_replay() && flags.standalone,
       "--replay measures the network of a job: it needs a --coordinator, not "
       "--standalone"},
  };
  for (const auto& rule : rules) {
    if (rule.is_wrong) return InvalidArgumentError(rule.message);
  }
  return absl::OkStatus();
}

// Returns an error if the command line has a flag of a group that has no effect
// in this mode, or if CheckValues does.
absl::Status CheckFlags(const CLI::App& app, int argc, char** argv,
                        const WorkerFlags& flags, const FlagGroups& groups) {
  const auto refuse = [&](const std::vector<std::string>& names,
                          const std::string& why) {
    return RefuseFlags(app, argc, argv, names, why);
  };
  // Goes on after an error, because each `refuse` also logs the environment
  // variables that have no effect.
  absl::Status status =
      flags.standalone
          ? refuse(groups.member, "with --standalone: there is no job")
          : refuse(groups.update,
                   "in a job: its coordinator's flags decide how parameters "
                   "are updated");
  status.Update(flags.is_replay()
                    ? refuse(groups.data, "with --replay: nothing is trained")
                    : refuse({"--steps", "--spin", "--waits-at-end"},
                             "without --replay: see --epochs"));
  if (flags.standalone) {
    status.Update(RefuseIdleJobFlags(app, argc, argv, flags.spec, {}));
  }
  status.Update(CheckValues(flags));
  return status;
}

// Sets up the log of this process, and writes its first line.
void BeginLog(WorkerFlags& flags, const std::string& text) {
  flags.log.Apply();
  if (flags.client.name.empty()) flags.client.name = ProcessName();
  ChangeLogContext([&](LogContext& context) {
    if (flags.standalone) {
      context.role = "standalone";
    } else {
      context.job = flags.client.job;
      context.role = "worker";
      context.name = flags.client.name;
    }
  });
  NEREUS_LOG(Info, {LogEvent::kStart}) << text;
}

}  // namespace

std::optional<int> GpuNumber(absl::string_view device) {
  int number = 0;
  if (!absl::ConsumePrefix(&device, "cuda:") ||
      !absl::SimpleAtoi(device, &number) || number < 0) {
    return std::nullopt;
  }
  return number;
}

int ReadWorkerFlags(int argc, char** argv, WorkerFlags& flags) {
  CLI::App app("Trains a classifier of images as one worker of a Nereus job.",
               "nereus-worker");
  app.footer(kExitCodesHelp);
  AddCommonFlags(app, "nereus-worker", flags.log);
  FlagGroups groups;
  groups.member = FlagsAddedBy(app, [&] { AddMemberFlags(app, flags); });
  AddSwitch(app, "standalone", flags.standalone,
            "train alone, without servers");
  AddTrainingFlags(app, flags);
  AddDeviceFlags(app, flags);
  groups.data = FlagsAddedBy(app, [&] { AddDataFlags(app, flags); });
  AddReplayFlags(app, flags);
  groups.update = FlagsAddedBy(app, [&] {
    AddJobOptions(app, flags.spec,
                  {"update", "learning-rate", "learning-rate-schedule",
                   "momentum", "weight-decay", "beta1", "beta2", "epsilon"});
  });
  // Ends the program for --help, --version, or a mistake that the parser finds.
  const auto begin_log = [&] {
    BeginLog(flags, DescribeStart(app, argc, argv));
  };
  if (const int code = ParseFlags(app, argc, argv, begin_log); code >= 0) {
    return code;
  }
  const absl::Status status = CheckFlags(app, argc, argv, flags, groups);
  if (status.ok()) return -1;
  return RefuseCommandLine(
      app, WithFlagNames(app, status.message(),
                         {{"coordinator_address", "--coordinator"}}));
}

}  // namespace nereus
