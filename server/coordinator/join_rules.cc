// Read in this order: CheckJoin at the end calls the checks in their order;
// each check is a function above. A process is told only of the first error. So
// cheap and general checks come first: of texts and versions, then of the job,
// the caller, the settings, the place, and last of the model.

#include "server/coordinator/join_rules.h"

#include <tuple>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/version.h"

namespace nereus {
namespace {

// Checks texts that log lines and errors repeat.
absl::Status CheckTexts(const JoinRequest& request) {
  NEREUS_TRY(CheckName("name", request.name));
  NEREUS_TRY(CheckName("build", request.build));
  NEREUS_TRY(CheckName("job", request.job));
  NEREUS_TRY(CheckName("data address", request.data_address));
  NEREUS_TRY(CheckName("products", request.products));
  if (!request.host.node.empty()) {
    NEREUS_TRY(CheckName("node", request.host.node));
  }
  if (!request.host.machine.empty()) {
    NEREUS_TRY(CheckName("machine", request.host.machine));
  }
  if (request.settings.size() > kSettingsMax) {
    return InvalidArgumentError(request.name, " has ", request.settings.size(),
                                " settings, at most ", kSettingsMax);
  }
  for (const Setting& setting : request.settings) {
    NEREUS_TRY(CheckName("setting's name", setting.name));
    NEREUS_TRY(CheckText("setting's value", setting.value));
  }
  return absl::OkStatus();
}

absl::Status CheckIncarnation(uint64_t incarnation) {
  if (incarnation != 0) return absl::OkStatus();
  return InvalidArgumentError("a process's incarnation must not be 0");
}

// `name`: name of the process, for messages.
absl::Status CheckVersion(absl::string_view name, absl::string_view build,
                          uint32_t protocol_version) {
  if (protocol_version == kProtocolVersion) return absl::OkStatus();
  return FailedPreconditionError("protocol version differs: ", name, " (build ",
                                 build, ") speaks ", protocol_version,
                                 ", the coordinator (build ", kVersion,
                                 ") speaks ", kProtocolVersion);
}

absl::Status CheckPhase(absl::string_view name, absl::string_view job,
                        const JobToJoin& to) {
  if (job != to.options.spec.name) {
    return NotFoundError(name, " asks for job \"", job,
                         "\", this coordinator serves job \"",
                         to.options.spec.name, "\"");
  }
  return CheckNotOver(to);
}

// True if all workers have left, and the job waits for its last checkpoint.
bool IsEnding(const JobToJoin& to) {
  return to.job != nullptr && to.roster.AllLeft();
}

absl::Status EndingError(const JobToJoin& to) {
  return OutOfRangeError("job ", to.options.spec.name,
                         " is finished except for its last checkpoint");
}

// Returns the place of the optimizer if the worker joins. If neither the job
// nor an earlier worker has decided it, the claim of this worker does.
DecidedPlace PlaceWith(const JoinRequest& request, const JobToJoin& to) {
  if (to.job != nullptr) return {to.job->options.optimizer_place, "the job"};
  DecidedPlace decided = DecidePlace(to.options.spec, to.roster);
  if (decided.by.empty()) {
    decided.place = request.caller.optimizer.value_or(decided.place);
  }
  return decided;
}

// Checks the place of the optimizer that the worker's caller names. The first
// worker that names a place decides it, unless the job's flags do. The place
// must not contradict the other flags (CheckExclusions).
absl::Status CheckOptimizer(const JoinRequest& request, const JobToJoin& to) {
  const std::optional<OptimizerPlace> claim = request.caller.optimizer;
  if (!claim.has_value()) return absl::OkStatus();
  const auto [place, by] = PlaceWith(request, to);
  if (*claim == place) {
    JobSpec spec = to.options.spec;
    spec.options.optimizer_place = place;
    spec.optimizer_by_worker = false;
    return Prefixed(spec.CheckExclusions(), "worker ", request.name,
                    " has optimizer=", OptimizerPlaceName(place), ": ");
  }
  return FailedPreconditionError(
      "worker ", request.name, " has optimizer=", OptimizerPlaceName(*claim),
      ", ", by, " ", OptimizerPlaceName(place),
      to.options.spec.optimizer_by_worker
          ? ": the callers of all workers must run the optimizer, or none must "
            "(ClientOptions::optimizer)"
      : place == OptimizerPlace::kServer
          ? ": both would update the parameters. Start the coordinator with "
            "--optimizer=worker, or leave the update to the servers"
          : ": no process would update the parameters. Let the caller run its "
            "optimizer (ClientOptions::optimizer), or start the coordinator "
            "with --optimizer=server");
}

// Checks the claims of a worker about its caller (CallerClaim).
absl::Status CheckCaller(const JoinRequest& request, const JobToJoin& to) {
  NEREUS_TRY(CheckOptimizer(request, to));
  if (to.options.spec.options.scale_loss && !request.caller.scales_loss) {
    return FailedPreconditionError(
        "the job has --loss-scale=dynamic, and worker ", request.name,
        " does not multiply its loss by the loss scale: its gradients would be "
        "too small by that factor. Let the caller multiply by "
        "StepInfo::loss_scale and set ClientOptions::scales_loss, or start the "
        "coordinator with --loss-scale=off");
  }
  return absl::OkStatus();
}

// Checks the settings, which must be equal for all workers, and for all
// servers.
absl::Status CheckSettings(const JoinRequest& request, const JobToJoin& to) {
  if (request.role == Role::kShard) {
    return CompareSettings(request.name, request.settings, "the coordinator",
                           to.options.server_settings);
  }
  for (const MemberRecord& member : to.roster.members()) {
    if (!member.is_worker()) continue;
    return CompareSettings(absl::StrCat("worker ", request.name),
                           request.settings, member.Name(),
                           member.request.settings);
  }
  return absl::OkStatus();
}

// A worker that is away gives its place to a process of the same name.
absl::Status CheckWorkersPlace(const JoinRequest& request,
                               const JobToJoin& to) {
  const CoordinatorOptions& options = to.options;
  if (to.roster.next_rank() >= kRanksMax) {
    return ResourceExhaustedError("job ", options.spec.name,
                                  " has given out all ", kRanksMax, " ranks");
  }
  if (IsEnding(to)) return EndingError(to);
  const MemberRecord* const holder = to.roster.FindHolder(request);
  if (holder != nullptr && !holder->is_away()) {
    return AlreadyExistsError(request.name, " is the name of a worker at ",
                              holder->request.data_address,
                              "; --name gives each worker its own");
  }
  const int most =
      to.job == nullptr ? options.spec.workers : options.spec.workers_max();
  const int others = to.roster.WorkersHere() - (holder != nullptr ? 1 : 0);
  if (others < most) return absl::OkStatus();
  return ResourceExhaustedError("job ", options.spec.name, " has all its ",
                                most, " workers; ", request.name,
                                " would be one too many");
}

// A number out of range is a mistake of the launcher.
absl::Status CheckLaunchRank(const JoinRequest& request) {
  const int32_t rank = request.launch_rank.value_or(0);
  if (rank >= 0 && rank < kRanksMax) return absl::OkStatus();
  return InvalidArgumentError("worker ", request.name, " has the rank ", rank,
                              " from its launcher, must be in [0, ", kRanksMax,
                              ")");
}

absl::Status CheckShardsPlace(const JoinRequest& request, const JobToJoin& to) {
  if (request.shard < 0 || request.shard >= to.options.spec.shards) {
    return InvalidArgumentError(request.name, " says it is shard ",
                                request.shard, " of a job with ",
                                to.options.spec.shards, " shards");
  }
  const MemberRecord* const holder = to.roster.FindHolder(request);
  if (holder == nullptr || holder->is_away()) return absl::OkStatus();
  return AlreadyExistsError(request.name, " says it is shard ", request.shard,
                            ", which is ", holder->request.name, " at ",
                            holder->request.data_address,
                            "; --shard gives each server its own");
}

// If the callers run the optimizer, they decide how many arrays of optimizer
// state they keep. All workers must keep the same number.
absl::Status CheckStateArrays(const JoinRequest& request, const JobToJoin& to) {
  const int32_t arrays = request.caller.state_arrays;
  if (arrays < 0 || arrays > kStateArraysMax) {
    return InvalidArgumentError("worker ", request.name, " keeps ", arrays,
                                " arrays of optimizer state, must be in [0, ",
                                kStateArraysMax, "]");
  }
  const CoordinatorOptions& options = to.options;
  if (PlaceWith(request, to).place == OptimizerPlace::kServer) {
    return absl::OkStatus();
  }
  std::vector<std::pair<std::string, int32_t>> others;
  if (to.job != nullptr) others.emplace_back("the job", to.job->state_arrays);
  if (to.job == nullptr && options.start_checkpoint.has_value()) {
    others.emplace_back(absl::StrCat("the checkpoint of round ",
                                     options.start_checkpoint->round),
                        options.restored_state_arrays);
  }
  for (const MemberRecord& member : to.roster.members()) {
    if (!member.is_worker()) continue;
    others.emplace_back(member.Name(), member.request.caller.state_arrays);
  }
  for (const auto& [whose, theirs] : others) {
    if (theirs == arrays) continue;
    return FailedPreconditionError("worker ", request.name, " keeps ", arrays,
                                   " arrays of optimizer state, ", whose,
                                   " has ", theirs);
  }
  return absl::OkStatus();
}

// Checks that all workers multiply factors in the same way, if layers may go by
// factors. Otherwise their replicas would differ.
absl::Status CheckProducts(const JoinRequest& request, const JobToJoin& to) {
  if (!MayUseFactors(to.options.spec.rules, request.layers))
    return absl::OkStatus();
  for (const MemberRecord& member : to.roster.members()) {
    if (!member.is_worker() || member.request.products == request.products) {
      continue;
    }
    return FailedPreconditionError(
        request.name, " multiplies factors on \"", request.products, "\", ",
        member.Name(), " on \"", member.request.products,
        "\": their replicas would differ. Let all use the same --device, or "
        "start the servers with --scheme=server or ring");
  }
  return absl::OkStatus();
}

// Compares the model of the worker with the job's. Before the job runs,
// compares it with the checkpoint's and with the first worker's.
absl::Status CheckLayers(const JoinRequest& request, const JobToJoin& to) {
  for (const LayerSpec& layer : request.layers) {
    if (layer.rows != kFactorsLost) continue;
    return InvalidArgumentError(
        "layer ", layer.name, " of ", request.name,
        " has lost its factors, and only a running job learns that: join with ",
        kRowsNotKnown, " rows");
  }
  if (to.job != nullptr) {
    // The worker need not know what the job has learnt from its workers.
    return CompareModels(WithRowsOf(to.job->model(), request.layers),
                         to.job->model(), "the job");
  }
  if (to.options.start_checkpoint.has_value()) {
    // The size of batches, and whether layers may go by factors, may differ
    // from the checkpoint's.
    std::vector<LayerSpec> restored = to.options.restored_layers;
    for (size_t i = 0; i < restored.size() && i < request.layers.size(); ++i) {
      restored[i].has_factors = request.layers[i].has_factors;
      restored[i].rows = request.layers[i].rows;
    }
    NEREUS_TRY(CompareModels(request.layers, restored,
                             absl::StrCat("the checkpoint of round ",
                                          to.options.start_checkpoint->round)));
  }
  for (const MemberRecord& member : to.roster.members()) {
    if (!member.is_worker()) continue;
    return CompareModels(request.layers, member.request.layers, member.Name());
  }
  return absl::OkStatus();
}

absl::Status CheckFolder(const JoinRequest& request, const JobToJoin& to) {
  const bool has_folder = to.options.has_checkpoints;
  if (has_folder == request.has_checkpoints) return absl::OkStatus();
  return FailedPreconditionError(request.name, ", shard ", request.shard,
                                 ", has ", request.has_checkpoints ? "a" : "no",
                                 " --checkpoint-dir, and the coordinator has ",
                                 has_folder ? "one" : "none",
                                 ": all servers must share one folder");
}

}  // namespace

DecidedPlace DecidePlace(const JobSpec& spec, const MemberList& roster) {
  if (!spec.optimizer_by_worker) {
    return {spec.options.optimizer_place, "the job"};
  }
  for (const MemberRecord& member : roster.members()) {
    const std::optional<OptimizerPlace>& claim =
        member.request.caller.optimizer;
    if (member.is_worker() && claim.has_value()) {
      return {*claim, member.Name()};
    }
  }
  return {spec.options.optimizer_place, ""};
}

absl::Status CheckNotOver(const JobToJoin& job) {
  const std::string& name = job.options.spec.name;
  if (job.state == JobState::kFinished) {
    return OutOfRangeError("job ", name, " is finished");
  }
  if (!IsOver(job.state)) return absl::OkStatus();
  return Prefixed(OutcomeOf({job.state, job.reason}), "job ", name,
                  " is over: ");
}

absl::Status CheckSameProcess(const JoinRequest& member,
                              const JoinRequest& request) {
  const auto identity = [](const JoinRequest& of) {
    return std::tie(of.job, of.role, of.shard, of.name, of.data_address);
  };
  if (identity(member) == identity(request)) return absl::OkStatus();
  return AlreadyExistsError(
      "another process of the job has the same incarnation. Each process draws "
      "its own: start this one again");
}

absl::Status CheckLobby(const LobbyGather& gather, const JobToJoin& job) {
  NEREUS_TRY(CheckName("build", gather.build));
  NEREUS_TRY(CheckName("job", gather.job));
  NEREUS_TRY(CheckIncarnation(gather.incarnation));
  const std::string name = absl::StrCat("process ", gather.number);
  NEREUS_TRY(CheckVersion(name, gather.build, gather.protocol_version));
  NEREUS_TRY(CheckPhase(name, gather.job, job));
  if (IsEnding(job)) return EndingError(job);
  const int workers = job.options.spec.workers;
  if (gather.count != workers) {
    return FailedPreconditionError(
        name, " was started as one of ", gather.count, " processes, and job ",
        job.options.spec.name, " begins with ", workers,
        " workers (--workers): the numbers must be equal");
  }
  if (gather.number < 0 || gather.number >= gather.count) {
    return InvalidArgumentError(name, " is none of ", gather.count,
                                " processes, which have the numbers from 0");
  }
  const auto bytes = static_cast<int64_t>(gather.value.size());
  if (bytes <= kGatheredBytesMax) return absl::OkStatus();
  return InvalidArgumentError(name, " gathers a value of ", bytes,
                              " bytes, must be at most ", kGatheredBytesMax);
}

absl::Status CheckJoin(const JoinRequest& request, const JobToJoin& job) {
  NEREUS_TRY(CheckTexts(request));
  NEREUS_TRY(CheckIncarnation(request.incarnation));
  NEREUS_TRY(
      CheckVersion(request.name, request.build, request.protocol_version));
  NEREUS_TRY(CheckPhase(request.name, request.job, job));
  const bool is_worker = request.role == Role::kWorker;
  if (is_worker) NEREUS_TRY(CheckCaller(request, job));
  NEREUS_TRY(CheckSettings(request, job));
  if (!is_worker) {
    NEREUS_TRY(CheckShardsPlace(request, job));
    return CheckFolder(request, job);
  }
  NEREUS_TRY(CheckLaunchRank(request));
  NEREUS_TRY(CheckWorkersPlace(request, job));
  NEREUS_TRY(ValidateLayers(request.layers));
  NEREUS_TRY(CheckStateArrays(request, job));
  NEREUS_TRY(CheckProducts(request, job));
  return CheckLayers(request, job);
}

}  // namespace nereus
