#include "server/admin/local_options.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t min,
                        int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", not from ", min, " to ", max));
}

// The fewest digits from which the other process reads the same number.
template <typename Float>
std::string Exact(Float value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, end.ptr);
}

// The lines that are hidden are kept: they tell what led to a failure.
std::string ChildLogLevel(LogLevel level) {
  return level == LogLevel::kDebug ? "debug" : "info";
}

void Append(const std::vector<std::string>& more,
            std::vector<std::string>& arguments) {
  arguments.insert(arguments.end(), more.begin(), more.end());
}

// What all servers are told alike.
std::vector<std::string> SharedArguments(const LocalOptions& options) {
  std::vector<std::string> arguments = {
      absl::StrCat("--log-level=", ChildLogLevel(options.log_level)),
  };
  if (!options.checkpoint_dir.empty()) {
    arguments.push_back(
        absl::StrCat("--checkpoint-dir=", options.checkpoint_dir));
  }
  return arguments;
}

// What the server is told that coordinates.
std::vector<std::string> JobArguments(const LocalOptions& options,
                                      const LocalFiles& files) {
  std::vector<std::string> arguments = {absl::StrCat("--job=", files.job)};
  if (!options.restore.empty()) {
    arguments.push_back(absl::StrCat("--restore=", options.restore));
  }
  return arguments;
}

}  // namespace

JobSpec LocalSpec() {
  JobSpec spec;
  spec.workers = 4;
  spec.shards = 2;
  return spec;
}

absl::Status LocalOptions::Validate() const {
  constexpr int64_t kLarge = int64_t{1} << 40;
  NEREUS_RETURN_IF_ERROR(
      CheckRange("workers", spec.workers, 1, kLocalProcessesMax));
  NEREUS_RETURN_IF_ERROR(
      CheckRange("servers", spec.shards, 1, kLocalProcessesMax));
  NEREUS_RETURN_IF_ERROR(CheckRange("batch", training.batch, 1, 65536));
  if (!(training.delay_in_turn >= 0 && training.delay_in_turn <= 3600)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "delay_in_turn is ", training.delay_in_turn, ", not from 0 to 3600"));
  }
  NEREUS_RETURN_IF_ERROR(CheckRange("epochs", training.epochs, 1, 1000000));
  NEREUS_RETURN_IF_ERROR(CheckRange("seed", training.seed, 0, kLarge));
  NEREUS_RETURN_IF_ERROR(CheckRange("limit", training.limit, 0, kLarge));
  NEREUS_RETURN_IF_ERROR(CheckRange("threads", training.threads, 1, 1024));
  NEREUS_RETURN_IF_ERROR(CheckRange("restarts", restarts, 0, 1000));
  if (checkpoint_dir.empty() && spec.options.checkpoint_every > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint_every is ", spec.options.checkpoint_every,
                     ", and checkpoint_dir is not given"));
  }
  if (checkpoint_dir.empty() && !restore.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "restore is ", restore, ", and checkpoint_dir is not given"));
  }
  if (!(training.holdout >= 0 && training.holdout < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "holdout is ", training.holdout, ", not from 0 to below 1"));
  }
  return spec.Validate();
}

std::vector<std::string> ServerArguments(const LocalOptions& options,
                                         const LocalFiles& files, int shard,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--shard=", shard), "--control-port=0", "--data-port=0",
      absl::StrCat("--shared-memory=", options.shared_memory ? "auto" : "off")};
  Append(SharedArguments(options), arguments);
  if (coordinator.empty()) {
    Append(JobArguments(options, files), arguments);
    return arguments;
  }
  Append({absl::StrCat("--job-name=", options.spec.name),
          absl::StrCat("--coordinator=", coordinator)},
         arguments);
  return arguments;
}

std::vector<std::string> CoordinatorArguments(const LocalOptions& options,
                                              const LocalFiles& files,
                                              int port) {
  std::vector<std::string> arguments = {"--coordinate-only",
                                        absl::StrCat("--control-port=", port),
                                        absl::StrCat("--state=", files.state)};
  Append(SharedArguments(options), arguments);
  Append(JobArguments(options, files), arguments);
  return arguments;
}

std::vector<std::string> WorkerArguments(const LocalOptions& options, int index,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--name=", index),
      absl::StrCat("--job-name=", options.spec.name),
      absl::StrCat("--coordinator=", coordinator),
      "--control-port=0",
      "--data-port=0",
      absl::StrCat("--shared-memory=", options.shared_memory ? "auto" : "off"),
      absl::StrCat("--model=", options.training.model),
      absl::StrCat("--batch=", options.training.batch),
      absl::StrCat("--epochs=", options.training.epochs),
      absl::StrCat("--seed=", options.training.seed),
      absl::StrCat("--threads=", options.training.threads),
      absl::StrCat("--device=", options.training.device),
      absl::StrCat("--holdout=", Exact(options.training.holdout)),
      absl::StrCat("--limit=", options.training.limit),
      "--json",
      absl::StrCat("--log-level=", ChildLogLevel(options.log_level)),
  };
  if (!options.training.data.empty()) {
    arguments.push_back(absl::StrCat("--data=", options.training.data));
  }
  if (options.training.delay_in_turn > 0) {
    arguments.push_back(absl::StrCat("--delay-in-turn=",
                                     Exact(options.training.delay_in_turn)));
  }
  return arguments;
}

}  // namespace nereus
