#include "server/coordinator_host.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "server/checkpoint_files.h"

namespace nereus {
namespace {

// The checkpoint that --restore means; none for "latest" where there is none.
absl::StatusOr<std::optional<FoundCheckpoint>> FindRestored(
    const ServerOptions& options, Storage& storage) {
  if (options.restore == "latest") return FindNewest(storage);
  int64_t round = 0;
  if (!absl::SimpleAtoi(options.restore, &round)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "restore is \"", options.restore, "\", must be latest or a round"));
  }
  NEREUS_ASSIGN_OR_RETURN(FoundCheckpoint found, FindRound(storage, round));
  return found;
}

absl::Status CheckNothingIsOverwritten(const ServerOptions& options,
                                       Storage& storage) {
  NEREUS_ASSIGN_OR_RETURN(const std::optional<FoundCheckpoint> found,
                          FindNewest(storage));
  if (!found.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      options.checkpoint_dir, " has a checkpoint of round ",
      found->record.round, " of job ", found->manifest.job,
      ": go on from it with --restore=latest, or give another --checkpoint-dir "
      "to begin anew"));
}

absl::Status Restore(const ServerOptions& options, Storage& storage,
                     CoordinatorOptions& made) {
  if (options.restore.empty()) {
    return CheckNothingIsOverwritten(options, storage);
  }
  NEREUS_ASSIGN_OR_RETURN(std::optional<FoundCheckpoint> found,
                          FindRestored(options, storage));
  if (!found.has_value()) {
    NEREUS_LOG(Info) << options.checkpoint_dir
                     << " has no checkpoint: the job begins anew";
    return absl::OkStatus();
  }
  const Manifest& manifest = found->manifest;
  if (manifest.optimizer.rule != options.job_options.optimizer.rule ||
      manifest.optimizer_place != options.job_options.optimizer_place) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint of round ", manifest.round,
        " is of --optimizer=", OptimizerPlaceName(manifest.optimizer_place),
        " --update=", UpdateRuleName(manifest.optimizer.rule),
        ", the job's flags say ",
        OptimizerPlaceName(options.job_options.optimizer_place), " and ",
        UpdateRuleName(options.job_options.optimizer.rule)));
  }
  // Values are read later, by shards that then have nothing to go back to.
  NEREUS_LOG(Info) << "verifying the checkpoint of round " << manifest.round
                   << ", " << found->record.bytes() << " bytes";
  NEREUS_RETURN_IF_ERROR(VerifyCheckpoint(storage, manifest));
  made.restored = std::move(found->record);
  made.restored_layers = std::move(found->manifest.layers);
  return absl::OkStatus();
}

}  // namespace

CoordinatorOptions MakeCoordinatorOptions(const ServerOptions& options) {
  CoordinatorOptions made;
  made.job = options.job;
  made.job_id = DrawUniqueId();
  made.workers = options.workers;
  made.shards = options.shards;
  made.forced_scheme = options.forced_scheme;
  made.cost = options.cost;
  made.job_options = options.job_options;
  made.lease = options.lease;
  made.min_workers = options.min_workers;
  made.max_workers = options.max_workers;
  made.has_checkpoints = !options.checkpoint_dir.empty();
  return made;
}

absl::StatusOr<std::unique_ptr<CoordinatorHost>> CoordinatorHost::Start(
    const ServerOptions& options, Storage* storage) {
  auto host = std::make_unique<CoordinatorHost>();
  CoordinatorOptions made = MakeCoordinatorOptions(options);
  std::optional<CoordinatorState> saved;
  if (!options.state_file.empty()) {
    NEREUS_ASSIGN_OR_RETURN(host->store_, JobStore::Open(options.state_file));
    NEREUS_ASSIGN_OR_RETURN(saved, host->store_->Load(options.job));
  }
  if (saved.has_value() && saved->state == JobState::kRunning) {
    NEREUS_LOG(Info) << "going on with job " << options.job << " in epoch "
                     << saved->job->epoch << " from " << options.state_file;
    made.job_id = saved->job->id;
    if (storage != nullptr) {
      // It may have died between a checkpoint's manifest and saying so.
      NEREUS_ASSIGN_OR_RETURN(const std::optional<FoundCheckpoint> newest,
                              FindNewest(*storage));
      if (newest.has_value()) saved->checkpoints.newest = newest->record;
    }
  } else {
    saved.reset();
    if (storage != nullptr) {
      NEREUS_RETURN_IF_ERROR(Restore(options, *storage, made));
    }
  }
  host->service_ = std::make_unique<CoordinatorService>(
      made, std::move(saved),
      CoordinatorDisk{storage, host->store_.get(), options.checkpoints_kept});
  return host;
}

}  // namespace nereus
