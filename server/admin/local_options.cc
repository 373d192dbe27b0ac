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

std::vector<std::string> UpdateArguments(const OptimizerOptions& update) {
  return {
      absl::StrCat("--update=", UpdateRuleName(update.rule)),
      absl::StrCat("--learning-rate=", Exact(update.learning_rate)),
      absl::StrCat("--momentum=", Exact(update.momentum)),
      absl::StrCat("--weight-decay=", Exact(update.weight_decay)),
      absl::StrCat("--beta1=", Exact(update.beta1)),
      absl::StrCat("--beta2=", Exact(update.beta2)),
      absl::StrCat("--epsilon=", Exact(update.epsilon)),
  };
}

void Append(const std::vector<std::string>& more,
            std::vector<std::string>& arguments) {
  arguments.insert(arguments.end(), more.begin(), more.end());
}

}  // namespace

std::string LocalOptions::scheme_name() const {
  return forced_scheme.has_value() ? std::string(SchemeName(*forced_scheme))
                                   : "auto";
}

absl::Status LocalOptions::Validate() const {
  constexpr int64_t kLarge = int64_t{1} << 40;
  NEREUS_RETURN_IF_ERROR(CheckRange("workers", workers, 1, kLocalProcessesMax));
  NEREUS_RETURN_IF_ERROR(CheckRange("servers", servers, 1, kLocalProcessesMax));
  NEREUS_RETURN_IF_ERROR(CheckRange("batch", batch, 1, 65536));
  NEREUS_RETURN_IF_ERROR(CheckRange("epochs", epochs, 1, 1000000));
  NEREUS_RETURN_IF_ERROR(CheckRange("seed", seed, 0, kLarge));
  NEREUS_RETURN_IF_ERROR(CheckRange("limit", limit, 0, kLarge));
  NEREUS_RETURN_IF_ERROR(CheckRange("threads", threads, 1, 1024));
  if (!(holdout >= 0 && holdout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("holdout is ", holdout, ", not from 0 to below 1"));
  }
  return job.optimizer.Validate();
}

std::vector<std::string> ServerArguments(const LocalOptions& options, int shard,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--shard=", shard),
      absl::StrCat("--servers=", options.servers),
      absl::StrCat("--workers=", options.workers),
      "--control-port=0",
      "--data-port=0",
      absl::StrCat("--scheme=", options.scheme_name()),
      absl::StrCat("--cost=", CostKindName(options.cost)),
      absl::StrCat("--optimizer=",
                   OptimizerPlaceName(options.job.optimizer_place)),
      absl::StrCat("--log-level=", ChildLogLevel(options.log_level)),
  };
  Append(UpdateArguments(options.job.optimizer), arguments);
  if (shard != 0) {
    arguments.push_back(absl::StrCat("--coordinator=", coordinator));
  }
  if (options.job.deterministic) arguments.push_back("--deterministic");
  return arguments;
}

std::vector<std::string> WorkerArguments(const LocalOptions& options,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--coordinator=", coordinator),
      "--control-port=0",
      "--data-port=0",
      absl::StrCat("--model=", options.model),
      absl::StrCat("--batch=", options.batch),
      absl::StrCat("--epochs=", options.epochs),
      absl::StrCat("--seed=", options.seed),
      absl::StrCat("--threads=", options.threads),
      absl::StrCat("--holdout=", Exact(options.holdout)),
      absl::StrCat("--limit=", options.limit),
      "--json",
      absl::StrCat("--log-level=", ChildLogLevel(options.log_level)),
  };
  if (!options.data.empty()) {
    arguments.push_back(absl::StrCat("--data=", options.data));
  }
  if (options.job.optimizer_place == OptimizerPlace::kWorker) {
    Append(UpdateArguments(options.job.optimizer), arguments);
  }
  return arguments;
}

}  // namespace nereus
