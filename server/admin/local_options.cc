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
  std::vector<std::string> arguments = {
      absl::StrCat("--update=", UpdateRuleName(update.rule)),
      absl::StrCat("--learning-rate=", Exact(update.learning_rate)),
      absl::StrCat("--weight-decay=", Exact(update.weight_decay)),
  };
  if (update.rule == UpdateRule::kSgd) {
    arguments.push_back(absl::StrCat("--momentum=", Exact(update.momentum)));
    return arguments;
  }
  arguments.push_back(absl::StrCat("--beta1=", Exact(update.beta1)));
  arguments.push_back(absl::StrCat("--beta2=", Exact(update.beta2)));
  arguments.push_back(absl::StrCat("--epsilon=", Exact(update.epsilon)));
  return arguments;
}

void Append(const std::vector<std::string>& more,
            std::vector<std::string>& arguments) {
  arguments.insert(arguments.end(), more.begin(), more.end());
}

// What all servers are told alike.
std::vector<std::string> SharedArguments(const LocalOptions& options) {
  std::vector<std::string> arguments = {
      absl::StrCat("--servers=", options.servers),
      absl::StrCat("--log-level=", ChildLogLevel(options.log_level)),
  };
  if (!options.checkpoint_dir.empty()) {
    arguments.push_back(
        absl::StrCat("--checkpoint-dir=", options.checkpoint_dir));
  }
  return arguments;
}

// What the server is told that coordinates.
std::vector<std::string> JobArguments(const LocalOptions& options) {
  std::vector<std::string> arguments = {
      absl::StrCat("--workers=", options.workers),
      absl::StrCat("--scheme=", options.rules.scheme_name()),
      absl::StrCat("--cost=", CostKindName(options.rules.cost)),
      absl::StrCat("--wire=", options.rules.wire_name()),
      absl::StrCat("--optimizer=",
                   OptimizerPlaceName(options.job.optimizer_place)),
      absl::StrCat("--lease=", options.lease_seconds),
  };
  Append(UpdateArguments(options.job.optimizer), arguments);
  if (options.job.deterministic) arguments.push_back("--deterministic");
  arguments.push_back(absl::StrCat("--nan=", NanPolicyName(options.job.nan)));
  if (options.job.scale_loss) arguments.push_back("--loss-scale=dynamic");
  arguments.push_back(
      absl::StrCat("--overlap=", OverlapName(options.job.overlap)));
  if (options.job.fusion_bytes != kNoFusion) {
    arguments.push_back(
        options.job.tune_fusion
            ? "--fusion=auto"
            : absl::StrCat("--fusion=", options.job.fusion_bytes));
  }
  if (options.job.quorum != Quorum::kAll) {
    Append({absl::StrCat("--quorum=", QuorumName(options.job.quorum)),
            absl::StrCat("--staleness=", options.job.staleness),
            absl::StrCat("--resync=", options.job.resync_every)},
           arguments);
  }
  if (options.job.sparsity > 0) {
    Append({absl::StrCat("--sparsity=", Exact(options.job.sparsity)),
            absl::StrCat("--block=", options.job.block_elements),
            absl::StrCat("--dense-steps=", options.job.dense_steps)},
           arguments);
  }
  if (options.job.backup) arguments.push_back("--backup=1");
  if (options.checkpoint_dir.empty()) return arguments;
  Append({absl::StrCat("--checkpoint-every=", options.job.checkpoint_every),
          absl::StrCat("--checkpoints-kept=", options.checkpoints_kept)},
         arguments);
  if (!options.restore.empty()) {
    arguments.push_back(absl::StrCat("--restore=", options.restore));
  }
  return arguments;
}

}  // namespace

absl::Status LocalOptions::Validate() const {
  constexpr int64_t kLarge = int64_t{1} << 40;
  NEREUS_RETURN_IF_ERROR(CheckRange("workers", workers, 1, kLocalProcessesMax));
  NEREUS_RETURN_IF_ERROR(CheckRange("servers", servers, 1, kLocalProcessesMax));
  NEREUS_RETURN_IF_ERROR(CheckRange("batch", batch, 1, 65536));
  if (!(delay_in_turn >= 0 && delay_in_turn <= 3600)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "delay_in_turn is ", delay_in_turn, ", not from 0 to 3600"));
  }
  NEREUS_RETURN_IF_ERROR(CheckRange("epochs", epochs, 1, 1000000));
  NEREUS_RETURN_IF_ERROR(CheckRange("seed", seed, 0, kLarge));
  NEREUS_RETURN_IF_ERROR(CheckRange("limit", limit, 0, kLarge));
  NEREUS_RETURN_IF_ERROR(CheckRange("threads", threads, 1, 1024));
  NEREUS_RETURN_IF_ERROR(CheckRange("restarts", restarts, 0, 1000));
  NEREUS_RETURN_IF_ERROR(
      CheckRange("checkpoint_every", job.checkpoint_every, 0, kLarge));
  NEREUS_RETURN_IF_ERROR(
      CheckRange("checkpoints_kept", checkpoints_kept, 1, 1000));
  if (job.backup && servers < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("backup is 1, servers ", servers, ": it needs 2 or more"));
  }
  if (checkpoint_dir.empty() && job.checkpoint_every > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint_every is ", job.checkpoint_every,
                     ", and checkpoint_dir is not given"));
  }
  if (checkpoint_dir.empty() && !restore.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "restore is ", restore, ", and checkpoint_dir is not given"));
  }
  if (!(holdout >= 0 && holdout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("holdout is ", holdout, ", not from 0 to below 1"));
  }
  NEREUS_RETURN_IF_ERROR(job.Validate());
  return RulesFor(job, rules).Validate();
}

std::vector<std::string> ServerArguments(const LocalOptions& options, int shard,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--shard=", shard), "--control-port=0", "--data-port=0",
      absl::StrCat("--shared-memory=", options.shared_memory ? "auto" : "off")};
  Append(SharedArguments(options), arguments);
  if (coordinator.empty()) {
    Append(JobArguments(options), arguments);
  } else {
    arguments.push_back(absl::StrCat("--coordinator=", coordinator));
  }
  return arguments;
}

std::vector<std::string> CoordinatorArguments(const LocalOptions& options,
                                              const std::string& state,
                                              int port) {
  std::vector<std::string> arguments = {"--coordinate-only",
                                        absl::StrCat("--control-port=", port),
                                        absl::StrCat("--state=", state)};
  Append(SharedArguments(options), arguments);
  Append(JobArguments(options), arguments);
  return arguments;
}

std::vector<std::string> WorkerArguments(const LocalOptions& options, int index,
                                         absl::string_view coordinator) {
  std::vector<std::string> arguments = {
      absl::StrCat("--name=", index),
      absl::StrCat("--coordinator=", coordinator),
      "--control-port=0",
      "--data-port=0",
      absl::StrCat("--shared-memory=", options.shared_memory ? "auto" : "off"),
      absl::StrCat("--model=", options.model),
      absl::StrCat("--batch=", options.batch),
      absl::StrCat("--epochs=", options.epochs),
      absl::StrCat("--seed=", options.seed),
      absl::StrCat("--threads=", options.threads),
      absl::StrCat("--device=", options.device),
      absl::StrCat("--holdout=", Exact(options.holdout)),
      absl::StrCat("--limit=", options.limit),
      "--json",
      absl::StrCat("--log-level=", ChildLogLevel(options.log_level)),
  };
  if (!options.data.empty()) {
    arguments.push_back(absl::StrCat("--data=", options.data));
  }
  if (options.delay_in_turn > 0) {
    arguments.push_back(
        absl::StrCat("--delay-in-turn=", Exact(options.delay_in_turn)));
  }
  return arguments;
}

}  // namespace nereus
