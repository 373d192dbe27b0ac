#include "server/process/coordinator_host.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/file_storage.h"
#include "server/process/checkpoint_files.h"
#include "server/process/disk_thread.h"

// How a coordinator starts, by what is on disk:
//
//   state file has a running job? --yes--> CheckSaved, go on with it
//            no
//   it has one that has not begun? --yes--> new job, as below, with the answers
//            no                             of the processes that have gathered
//   it has one that is over, and --once is given? --yes--> tell its members
//            no
//   --restore given? --no--> CheckNothingIsOverwritten, new job
//            yes
//   checkpoint found? --no ("latest" only)--> new job
//            yes                 "latest" passes over damaged ones
//   CheckOptimizer, VerifyCheckpoint, job as of the checkpoint
//
// If a check fails, the coordinator does not start. So a new job never replaces
// the checkpoints of an earlier job. And a running job never goes on with
// another value of an option that must stay the same (JobOption::is_kept).

namespace nereus {
namespace {

// Returns the checkpoint of the round that --restore names. If the folder has
// none, the error lists the rounds of its checkpoints.
absl::StatusOr<FoundCheckpoint> FindNamed(const ServerOptions& options,
                                          Storage& storage) {
  NEREUS_TRY(CheckRestore(options.restore));
  int64_t round = 0;
  NEREUS_CHECK(absl::SimpleAtoi(options.restore, &round));
  absl::StatusOr<FoundCheckpoint> found = FindRound(storage, round);
  if (found.ok()) return found;
  if (!absl::IsNotFound(found.status())) {
    return WithOthers(found.status(), round, "--restore", storage);
  }
  const CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  std::vector<int64_t> rounds;
  for (const Manifest& manifest : list.complete) {
    rounds.push_back(manifest.round);
  }
  return NotFoundError("--restore=", round, ": ", options.checkpoint_dir,
                       rounds.empty()
                           ? " has no checkpoint"
                           : absl::StrCat(" has the checkpoints of rounds ",
                                          absl::StrJoin(rounds, ", ")));
}

// Refuses a folder with checkpoints, because a new job would sooner or later
// remove the checkpoints of the earlier job.
absl::Status CheckNothingIsOverwritten(const ServerOptions& options,
                                       Storage& storage) {
  const CheckpointList list = NEREUS_TRY(ListCheckpoints(storage));
  std::string what;
  if (const UnusableCheckpoint* const damaged = list.NewestIfDamaged()) {
    what = absl::StrCat("a damaged checkpoint of round ", damaged->round);
  } else if (!list.complete.empty()) {
    what = absl::StrCat("a checkpoint of round ", list.complete.front().round,
                        " of job ", list.complete.front().job);
  } else {
    return absl::OkStatus();
  }
  return FailedPreconditionError(
      options.checkpoint_dir, " has ", what,
      ": go on from it with --restore=latest, or give another --checkpoint-dir "
      "to begin anew");
}

// Checks that the job's flags name the place and rule of the optimizer with
// which `what` (a saved job or a checkpoint) was made: another optimizer could
// not use the saved state. --optimizer=auto agrees with any place.
absl::Status CheckOptimizer(absl::string_view what, OptimizerPlace place,
                            UpdateRule rule, const JobSpec& flags) {
  const OptimizerPlace named =
      flags.optimizer_by_worker ? place : flags.options.optimizer_place;
  if (rule == flags.options.optimizer.rule && place == named) {
    return absl::OkStatus();
  }
  return FailedPreconditionError(
      what, " is of --optimizer=", OptimizerPlaceName(place),
      " --update=", UpdateRuleName(rule), ", the job's flags say ",
      OptimizerPlaceName(named), " and ",
      UpdateRuleName(flags.options.optimizer.rule));
}

// Returns the options that a restarted coordinator may not change
// (JobOption::is_kept), by the names of their flags.
std::vector<Setting> SettingsOf(const JobOptions& options) {
  const JobSpec spec = SpecOf(options);
  std::vector<Setting> settings;
  for (const JobOption& option : JobOptionTable()) {
    if (option.is_kept) settings.push_back({option.flag(), option.get(spec)});
  }
  return settings;
}

// Checks that the flags agree with a saved job on the number of servers, the
// optimizer, the options that may not change, and the folder of checkpoints.
absl::Status CheckSaved(const ServerOptions& options,
                        const std::vector<Setting>& settings,
                        const CoordinatorState& saved) {
  const Job& job = *saved.epoch.job;
  const std::string what =
      absl::StrCat("job ", options.spec.name, " in ", options.state_file);
  if (job.shards() != options.spec.shards) {
    return FailedPreconditionError(what, " has ", job.shards(),
                                   " servers, --servers says ",
                                   options.spec.shards);
  }
  NEREUS_TRY(CheckOptimizer(what, job.options.optimizer_place,
                            job.options.optimizer.rule, options.spec));
  NEREUS_TRY(CompareSettings("the coordinator that is started",
                             SettingsOf(options.spec.options), what,
                             SettingsOf(job.options)));
  const bool had_folder = saved.checkpoints.newest.has_value() ||
                          absl::c_any_of(saved.members, [](const auto& m) {
                            return m.request.has_checkpoints;
                          });
  if (had_folder == !options.checkpoint_dir.empty()) {
    for (const CoordinatorState::Member& member : saved.members) {
      if (member.id.role != Role::kShard) continue;
      NEREUS_TRY(
          CompareSettings("the coordinator that is started", settings,
                          absl::StrCat(PeerName(member.id), " of ", what),
                          member.request.settings));
    }
    return absl::OkStatus();
  }
  return FailedPreconditionError(
      had_folder ? absl::StrCat(what,
                                " has a folder for checkpoints, and "
                                "--checkpoint-dir is empty")
                 : absl::StrCat(what,
                                " has no folder for checkpoints, "
                                "--checkpoint-dir says ",
                                options.checkpoint_dir));
}

// True if `saved` is of a job that has not begun, and has answers of gatherings
// of `workers` processes.
bool HasLobby(const std::optional<CoordinatorState>& saved, int workers) {
  return saved.has_value() && saved->state == JobState::kWaiting &&
         absl::c_all_of(saved->lobby, [&](const LobbyGathered& answer) {
           return !answer.error.empty() || std::ssize(answer.values) == workers;
         });
}

// Checks a checkpoint before its files are read.
absl::Status CheckBeforeVerifying(const ServerOptions& options,
                                  const FoundCheckpoint& found) {
  const Manifest& manifest = found.manifest;
  NEREUS_TRY(CheckOptimizer(
      absl::StrCat("the checkpoint of round ", manifest.round),
      manifest.optimizer_place, manifest.optimizer.rule, options.spec));
  NEREUS_LOG(Info, {LogEvent::kCheckpoint, manifest.round})
      << "verifying the checkpoint of round " << manifest.round << ", "
      << found.record.bytes() << " bytes";
  return absl::OkStatus();
}

// Returns the checkpoint that --restore names. Verifies the values now: the
// shards read them later, when it costs more to find another checkpoint. With
// "latest", takes the newest one that is not damaged, and returns nothing if
// there is no checkpoint.
absl::StatusOr<std::optional<FoundCheckpoint>> FindRestored(
    const ServerOptions& options, Storage& storage, const TellProgress& tell) {
  if (options.restore == "latest") {
    return FindNewestWhole(
        storage,
        [&](const FoundCheckpoint& found) {
          return CheckBeforeVerifying(options, found);
        },
        tell);
  }
  FoundCheckpoint found = NEREUS_TRY(FindNamed(options, storage));
  NEREUS_TRY(CheckBeforeVerifying(options, found));
  if (const absl::Status whole = VerifyTold(storage, found, tell);
      !whole.ok()) {
    return WithOthers(whole, found.record.round, "--restore", storage);
  }
  return found;
}

// If --restore asks for a checkpoint and there is one, sets aside all later
// ones, and sets the fields of `made` that make the job start from it. Without
// --restore, checks that the folder has no checkpoint.
absl::Status Restore(const ServerOptions& options, Storage& storage,
                     const TellProgress& tell, CoordinatorOptions& made) {
  if (options.restore.empty()) {
    return CheckNothingIsOverwritten(options, storage);
  }
  std::optional<FoundCheckpoint> found =
      NEREUS_TRY(FindRestored(options, storage, tell));
  if (!found.has_value()) {
    NEREUS_LOG(Warning, {LogEvent::kCheckpoint})
        << options.checkpoint_dir << " has no checkpoint: the job begins anew";
    return SetAsideAfter(storage, kInitialRound, /*unfinished=*/true);
  }
  const Manifest& manifest = found->manifest;
  if (manifest.job != options.spec.name) {
    NEREUS_LOG(Warning, {LogEvent::kCheckpoint})
        << "job " << options.spec.name << " goes on from a checkpoint"
        << " of job " << manifest.job;
  }
  const std::string before = DescribeOptimizer(manifest.optimizer);
  const std::string now = DescribeOptimizer(options.spec.options.optimizer);
  if (before != now) {
    NEREUS_LOG(Warning, {LogEvent::kCheckpoint})
        << "updates go on with " << now << "; the checkpoint was made with "
        << before;
  }
  NEREUS_TRY(SetAsideAfter(storage, manifest.round, /*unfinished=*/true));
  made.start_checkpoint = std::move(found->record);
  made.spec.options.optimizer_place = manifest.optimizer_place;
  made.spec.optimizer_by_worker = false;
  made.restored_state_arrays = manifest.state_arrays;
  made.restored_layers = std::move(found->manifest.layers);
  made.restored_settings = std::move(found->manifest.worker_settings);
  return absl::OkStatus();
}

// State file, null without one, and what it has of the job.
struct OpenedState {
  std::shared_ptr<JobStore> store;
  std::optional<CoordinatorState> saved;
};

absl::StatusOr<OpenedState> OpenState(const ServerOptions& options) {
  if (options.state_file.empty()) return OpenedState();
  const DiskWatch watch(absl::StrCat("reading --state=", options.state_file),
                        absl::Seconds(options.spec.lease_seconds));
  auto opened = JobStore::Open(options.state_file);
  if (!opened.ok()) {
    return Prefixed(opened.status(), "--state=");
  }
  OpenedState state = {*std::move(opened), std::nullopt};
  state.saved = NEREUS_TRY(state.store->Load(options.spec.name));
  return state;
}

// Describes the job and where it is saved, for the first line of the
// coordinator's log.
std::string DescribeJob(const ServerOptions& options) {
  std::string text =
      absl::StrCat("coordinates job ", options.spec.name, ": ",
                   DescribeJobSpec(options.spec, /*told=*/false));
  absl::StrAppend(&text, "; ",
                  options.checkpoint_dir.empty()
                      ? "nothing is saved (--checkpoint-dir)"
                      : absl::StrCat("checkpoints in ", options.checkpoint_dir),
                  "; ",
                  options.state_file.empty()
                      ? "a coordinator that dies ends the job (--state)"
                      : absl::StrCat("state in ", options.state_file));
  return text;
}

}  // namespace

absl::StatusOr<std::vector<Setting>> ServerSettings(
    const ServerOptions& options) {
  std::vector<Setting> settings;
  if (!options.checkpoint_dir.empty()) {
    const std::string id = NEREUS_TRY(FolderId(options.checkpoint_dir));
    settings.push_back(
        {"--checkpoint-dir", "the folder whose nereus-folder-id is " + id});
  }
  return settings;
}

CoordinatorOptions MakeCoordinatorOptions(const ServerOptions& options) {
  CoordinatorOptions made;
  made.spec = options.spec;
  made.job_id = DrawUniqueId();
  made.own_shard = options.coordinate_only ? -1 : options.shard;
  made.has_checkpoints = !options.checkpoint_dir.empty();
  return made;
}

absl::StatusOr<std::unique_ptr<CoordinatorHost>> CoordinatorHost::Start(
    const ServerOptions& options, std::shared_ptr<Storage> storage,
    const std::vector<Setting>& settings, const TellProgress& tell) {
  NEREUS_LOG(Info, {LogEvent::kJobState}) << DescribeJob(options);
  auto host = std::make_unique<CoordinatorHost>();
  CoordinatorOptions made = MakeCoordinatorOptions(options);
  made.server_settings = settings;
  if (!settings.empty() && !options.checkpoint_dir.empty()) {
    const DiskWatch watch(
        absl::StrCat("locking --checkpoint-dir=", options.checkpoint_dir),
        absl::Seconds(options.spec.lease_seconds));
    absl::StatusOr<FolderLock> folder =
        FolderLock::Take(options.checkpoint_dir);
    if (!folder.ok()) {
      return Prefixed(folder.status(), "--checkpoint-dir: ");
    }
    host->folder_.emplace(*std::move(folder));
  }
  auto [store, saved] = NEREUS_TRY(OpenState(options));
  const bool is_running =
      saved.has_value() && saved->state == JobState::kRunning;
  const bool has_job = saved.has_value() && saved->epoch.job != nullptr;
  const bool stays_over = has_job && options.once && IsOver(saved->state);
  if (is_running || stays_over) {
    NEREUS_TRY(CheckSaved(options, settings, *saved));
    NEREUS_LOG(Info, {LogEvent::kJobState})
        << (is_running ? "going on with job " : "found job ")
        << options.spec.name << " in epoch " << saved->epoch.job->epoch
        << " from " << options.state_file;
    made.job_id = saved->epoch.job->id;
    if (storage != nullptr && is_running) {
      NEREUS_TRY(UpdateNewest(*storage, options.spec.name, made.job_id,
                              saved->checkpoints));
    }
  } else {
    if (has_job) {
      made.past_job = PastJob{saved->epoch.job->id, saved->state, saved->reason,
                              saved->checkpoints.newest.has_value()
                                  ? saved->checkpoints.newest->round
                                  : kInitialRound};
    }
    if (!HasLobby(saved, options.spec.workers)) saved.reset();
    if (storage != nullptr) {
      NEREUS_TRY(Restore(options, *storage, tell, made));
    }
  }
  host->service_ = std::make_unique<CoordinatorService>(
      made, std::move(saved),
      CoordinatorDisk{std::move(storage), std::move(store),
                      options.spec.checkpoints_kept});
  return host;
}

}  // namespace nereus
