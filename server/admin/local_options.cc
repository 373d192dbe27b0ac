#include "server/admin/local_options.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "common/flags/given_options.h"
#include "common/flags/job_file.h"
#include "common/flags/model_file.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

constexpr double kSeedMax = 1e12;
constexpr double kImagesMax = 4294967296;  // kIdxBytesMax of the worker.

// Flags that `local` passes on to workers. AddLocalFlags checks the ranges of
// numbers, so that most mistakes show before any process starts.
constexpr TrainingFlag kTrainingFlags[] = {
    {"model", "cnn", "TEXT", 0, 0, "model to train: mlp or cnn"},
    {"data", "", "TEXT", 0, 0,
     "folder with images (MNIST's files); without it, images are generated"},
    {"holdout", "0.2", "FLOAT", 0.999, 0.001,
     "share of the images that is kept for the test"},
    {"batch", "32", "INT", 65536, 1, "images of each worker in a step"},
    {"epochs", "8", "INT", 1e6, 1, "passes over the images"},
    {"seed", "1", "INT", kSeedMax, 0,
     "seed of the initial parameters and of the images' order"},
    {"limit", "0", "INT", kImagesMax, 0, "number of images to use; 0: all"},
    {"threads", "1", "INT", 1024, 1, "computing threads of each worker"},
    {"device", "cpu", "TEXT", 0, 0,
     "device that all workers compute on: cpu, or cuda:N for GPU N"},
    {"delay-in-turn", "0", "FLOAT", 3600, 0,
     "seconds that one worker is late, another one in each step; for tests"},
};

// Adds the flags of the log. The processes write lines of level info even if
// only higher levels are shown, because these lines explain a failure.
void AddLogArguments(const LocalJobOptions& options,
                     std::vector<std::string>& arguments) {
  const bool is_debug = options.log.level == LogLevel::kDebug;
  arguments.push_back(
      absl::StrCat("--log-level=", is_debug ? "debug" : "info"));
  if (options.log.format == LogFormat::kJson) {
    arguments.push_back("--log-format=json");
  }
}

// Returns the flag --shared-memory, which servers and workers get.
std::string SharedMemoryArgument(const LocalJobOptions& options) {
  return absl::StrCat("--shared-memory=",
                      options.shared_memory ? "auto" : "off");
}

// Returns the name of a host. Processes of one machine with the same value of
// --node are one host.
std::string HostName(int64_t host) { return absl::StrCat("host-", host); }

// Adds the arguments that a server or a separate coordinator gets for its job.
// A process that coordinates gets the job file and --restore, others the
// coordinator's address.
void AddJobArguments(const LocalJobOptions& options, const LocalFiles& files,
                     absl::string_view coordinator,
                     std::vector<std::string>& arguments) {
  AddLogArguments(options, arguments);
  if (!options.checkpoint_dir.empty()) {
    arguments.push_back(
        absl::StrCat("--checkpoint-dir=", options.checkpoint_dir));
  }
  if (!coordinator.empty()) {
    arguments.push_back(absl::StrCat("--job-name=", options.spec.name));
    arguments.push_back(absl::StrCat("--coordinator=", coordinator));
    arguments.push_back("--http-port=0");
    return;
  }
  arguments.push_back(absl::StrCat("--job=", files.job));
  arguments.push_back(absl::StrCat("--last-status=", files.last_status));
  arguments.push_back(absl::StrCat("--http-port=", options.http_port));
  if (!options.restore.empty()) {
    arguments.push_back(absl::StrCat("--restore=", options.restore));
  }
}

}  // namespace

absl::Span<const TrainingFlag> TrainingFlags() { return kTrainingFlags; }

std::map<std::string, std::string> LocalOptions::DefaultTraining() {
  std::map<std::string, std::string> values;
  for (const TrainingFlag& flag : kTrainingFlags) {
    values[flag.name] = flag.value;
  }
  return values;
}

int64_t LocalOptions::batch() const {
  int64_t images = 0;
  return absl::SimpleAtoi(training.at("batch"), &images) ? images : 0;
}

// The number of processes has a limit here, because a job may have far more
// workers than one computer can run.
absl::Status LocalJobOptions::Validate() const {
  const std::pair<const char*, int> counts[] = {{"--workers", spec.workers},
                                                {"--servers", spec.shards}};
  for (const auto& [flag, count] : counts) {
    if (count >= 1 && count <= kLocalProcessesMax) continue;
    return InvalidArgumentError(flag, " is ", count, ", must be from 1 to ",
                                kLocalProcessesMax, " on one machine");
  }
  if (hosts < 0 || hosts > spec.workers) {
    return InvalidArgumentError("--hosts is ", hosts, ", must be from 1 to ",
                                spec.workers, ", the value of --workers");
  }
  if (!share.empty() && share.front() != '/') {
    return InvalidArgumentError("--share is ", share,
                                ", must be an absolute path");
  }
  const std::string every = FindJobOption("checkpoint-every")->get(spec);
  const std::pair<const char*, std::string> need_folder[] = {
      {"--checkpoint-every", every == "0" ? "" : every},
      {"--restore", restore}};
  for (const auto& [flag, value] : need_folder) {
    if (value.empty() || !checkpoint_dir.empty()) continue;
    return InvalidArgumentError(flag, " is ", value,
                                ", and --checkpoint-dir is not given");
  }
  if (!restore.empty()) NEREUS_TRY(CheckRestore(restore));
  return spec.Validate();
}

// --help shows the flags in this order: training, job, all others.
void AddLocalFlags(CLI::App& app, LocalOptions& options, JobFlags& job) {
  for (const TrainingFlag& flag : kTrainingFlags) {
    std::string& value = options.training[flag.name];
    const std::string name = absl::StrCat("--", flag.name);
    const auto set = [&flag, &value, name](const std::string& text) {
      const absl::string_view type = flag.type;
      value = text;
      if (type == "INT") {  // In decimal, if it is 0x20.
        value =
            absl::StrCat(NumberOf(name, text, static_cast<int64_t>(flag.min),
                                  static_cast<int64_t>(flag.max)));
      } else if (type == "FLOAT") {
        NumberOf(name, text, flag.min, flag.max);
      }
      return absl::OkStatus();
    };
    AddTextFlag(app, flag.name, value, set, flag.help)->type_name(flag.type);
  }
  AddLocalJobFlags(app, options, job);
}

void AddLocalJobFlags(CLI::App& app, LocalJobOptions& options, JobFlags& job) {
  job.spec = options.spec;
  AddJobFlags(app, job);
  AddSharedMemoryFlag(app, options.shared_memory);
  CLI::Option* const hosts = AddNumber(
      app, "hosts", options.hosts, 1, kLocalProcessesMax,
      "number of hosts to play, from 1 to --workers: a host sends the "
      "sum of its workers' gradients once");
  if (options.hosts == 0) {
    hosts->default_str("")->description(
        hosts->get_description() +
        ". Without it each worker plays a host of its own, as on a cluster");
  }
  AddFlag(app, "share", options.share,
          "folder, such as /dev/shm/nereus, of the devices that this job "
          "shares with other jobs on this computer: worker i of each takes "
          "turns with worker i of the others (docs/sharing.md); empty: it "
          "shares none");
  AddNumber(app, "share-weight", options.share_weight, 0.01, 100.0,
            "share of this job in the devices, relative to those of the "
            "others");
  AddNumber(
      app, "restarts", options.restarts, 0, 1000,
      "number of restarts of processes that died, of all together, before "
      "the job fails");
  AddFlag(app, "checkpoint-dir", options.checkpoint_dir,
          "folder for checkpoints");
  AddFlag(app, "restore", options.restore,
          "checkpoint to begin from: its round, or latest");
  AddNumber(app, "http-port", options.http_port, 0, 65535,
            "port of a page about the job, at 127.0.0.1; 0: none");
  AddCommonFlags(app, "nereusctl", options.log);
}

absl::Status RefuseIdleLocalFlags(const CLI::App& app, int argc, char** argv,
                                  const LocalJobOptions& options,
                                  const JobFlags& job) {
  NEREUS_TRY(RefuseIdleJobFlags(app, argc, argv, job.spec, job.file_options));
  if (options.share.empty()) {
    NEREUS_TRY(
        RefuseFlags(app, argc, argv, {"--share-weight"}, "without --share"));
  }
  if (!options.checkpoint_dir.empty()) return absl::OkStatus();
  return RefuseFlags(app, argc, argv,
                     {"--checkpoint-every", "--checkpoints-kept", "--restore"},
                     "without --checkpoint-dir");
}

void BeginLocalLog(const CLI::App& app, int argc, char** argv,
                   const LocalJobOptions& options, const JobFlags& job) {
  ChangeLogContext([](LogContext& context) { context.role = "nereusctl"; });
  if (options.log.level > LogLevel::kInfo) return;
  NEREUS_LOG(Info, {LogEvent::kStart}) << DescribeStart(app, argc, argv, &job);
}

// Port 0 picks a free port, so that several jobs can run on one computer.
absl::StatusOr<LocalFiles> MakeLocalFiles(const JobSpec& spec) {
  std::error_code error;
  const std::filesystem::path temporary =
      std::filesystem::temp_directory_path(error);
  if (error) {
    const char* const given = std::getenv("TMPDIR");
    return UnavailableError("no folder for temporary files: TMPDIR is ",
                            given == nullptr ? "not set" : given, ": ",
                            error.message());
  }
  std::string folder = (temporary / "nereus-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return UnavailableError("cannot make ", folder, ": ", strerror(errno));
  }
  LocalFiles files = {folder + "/job.conf", folder + "/coordinator.sqlite",
                      folder + "/status.json"};
  NEREUS_TRY(WriteTextFile(files.job, JobText(spec)));
  return files;
}

std::vector<std::string> ServerArguments(const LocalJobOptions& options,
                                         const LocalFiles& files, int shard,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--shard=", shard), "--control-port=0", "--data-port=0",
      SharedMemoryArgument(options),
      "--node=" + HostName(options.cluster().HostOfServer(shard))};
  AddJobArguments(options, files, coordinator, arguments);
  return arguments;
}

std::vector<std::string> CoordinatorArguments(const LocalJobOptions& options,
                                              const LocalFiles& files,
                                              absl::string_view port) {
  std::vector<std::string> arguments = {
      "--coordinate-only", absl::StrCat("--control-port=", port),
      absl::StrCat("--state=", files.state), "--once"};
  AddJobArguments(options, files, /*coordinator=*/"", arguments);
  return arguments;
}

std::string PageText(const LocalJobOptions& options) {
  if (options.http_port == 0) return "";
  return absl::StrCat(", as http://127.0.0.1:", options.http_port, "/ does");
}

std::string NodeOfWorker(const LocalJobOptions& options, int index) {
  return HostName(options.cluster().HostOfWorker(index));
}

absl::Status MakeShareFolder(const std::string& folder) {
  if (folder.empty() || mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("cannot make --share=", folder, ": ",
                              strerror(errno));
}

std::string ShareFolderOf(const LocalJobOptions& options, int index) {
  return options.share.empty() ? "" : absl::StrCat(options.share, "/", index);
}

std::vector<std::string> WorkerArguments(const LocalOptions& options, int index,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--name=", index),
      absl::StrCat("--rank=", index),
      absl::StrCat("--job-name=", options.spec.name),
      absl::StrCat("--coordinator=", coordinator),
      "--control-port=0",
      "--data-port=0",
      "--http-port=0",
      "--json",
      SharedMemoryArgument(options),
      "--node=" + NodeOfWorker(options, index)};
  if (!options.share.empty()) {
    arguments.push_back("--share=" + ShareFolderOf(options, index));
    arguments.push_back(absl::StrCat("--share-weight=", options.share_weight));
  }
  AddLogArguments(options, arguments);
  const std::map<std::string, std::string> defaults =
      LocalOptions::DefaultTraining();
  for (const auto& [name, value] : options.training) {
    // Skips only what is empty by default: the worker refuses another empty
    // value.
    if (value.empty() && defaults.at(name).empty()) continue;
    arguments.push_back(absl::StrCat("--", name, "=", value));
  }
  return arguments;
}

}  // namespace nereus
