#include "server/coordinator/join_rules.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace nereus {

absl::Status CheckTexts(const JoinRequest& request) {
  NEREUS_RETURN_IF_ERROR(CheckName("name", request.name));
  NEREUS_RETURN_IF_ERROR(CheckName("build", request.build));
  NEREUS_RETURN_IF_ERROR(CheckName("job", request.job));
  NEREUS_RETURN_IF_ERROR(CheckName("data address", request.data_address));
  NEREUS_RETURN_IF_ERROR(CheckName("products", request.products));
  if (request.settings.size() > kSettingsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.name, " has ", request.settings.size(),
                     " settings, at most ", kSettingsMax));
  }
  for (const Setting& setting : request.settings) {
    NEREUS_RETURN_IF_ERROR(CheckName("setting's name", setting.name));
    NEREUS_RETURN_IF_ERROR(CheckText("setting's value", setting.value));
  }
  return absl::OkStatus();
}

absl::Status CheckBuild(const JoinRequest& request) {
  if (request.incarnation == 0) {
    return absl::InvalidArgumentError("a member's incarnation must not be 0");
  }
  if (request.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "protocol version differs: ", request.name, " (build ", request.build,
        ") speaks ", request.protocol_version, ", the coordinator (build ",
        kVersion, ") speaks ", kProtocolVersion));
  }
  return absl::OkStatus();
}

absl::Status JoinRules::CheckModel(const JoinRequest& request) const {
  NEREUS_RETURN_IF_ERROR(ValidateLayers(request.layers));
  NEREUS_RETURN_IF_ERROR(CheckState(request));
  if (job == nullptr && options.restored.has_value()) {
    NEREUS_RETURN_IF_ERROR(CheckRestored(request));
  }
  NEREUS_RETURN_IF_ERROR(CheckProducts(request));
  if (job != nullptr) {
    return CompareModels(request.layers, job->model(), "the job");
  }
  for (const JoinedWorker& worker : workers) {
    return CompareModels(request.layers, worker.request->layers, worker.name);
  }
  return absl::OkStatus();
}

absl::Status JoinRules::CheckProducts(const JoinRequest& request) const {
  if (!MayUseFactors(options.rules, request.layers)) return absl::OkStatus();
  for (const JoinedWorker& worker : workers) {
    if (worker.request->products == request.products) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        request.name, " multiplies factors on \"", request.products, "\", ",
        worker.name, " on \"", worker.request->products,
        "\": their replicas would differ. Let all use the same --device, or "
        "start the servers with --scheme=server or ring"));
  }
  return absl::OkStatus();
}

absl::Status JoinRules::CheckRestored(const JoinRequest& request) const {
  // Batches may have another size, and layers may travel another way.
  std::vector<LayerSpec> restored = options.restored_layers;
  for (size_t i = 0; i < restored.size() && i < request.layers.size(); ++i) {
    restored[i].has_factors = request.layers[i].has_factors;
    restored[i].rows = request.layers[i].rows;
  }
  return CompareModels(
      request.layers, restored,
      absl::StrCat("the checkpoint of round ", options.restored->round));
}

absl::Status JoinRules::CheckState(const JoinRequest& request) const {
  if (request.state_arrays < 0 || request.state_arrays > kStateArraysMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        request.name, " keeps ", request.state_arrays,
        " arrays of optimizer state, must be in [0, ", kStateArraysMax, "]"));
  }
  if (options.job_options.optimizer_place == OptimizerPlace::kServer) {
    return absl::OkStatus();
  }
  if (job != nullptr && job->state_arrays != request.state_arrays) {
    return absl::FailedPreconditionError(absl::StrCat(
        request.name, " keeps ", request.state_arrays,
        " arrays of optimizer state, the job ", job->state_arrays));
  }
  if (job == nullptr && options.restored.has_value() &&
      options.restored_state_arrays != request.state_arrays) {
    return absl::FailedPreconditionError(absl::StrCat(
        request.name, " keeps ", request.state_arrays,
        " arrays of optimizer state, the checkpoint of round ",
        options.restored->round, " has ", options.restored_state_arrays));
  }
  for (const JoinedWorker& worker : workers) {
    if (worker.request->state_arrays == request.state_arrays) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat(request.name, " keeps ", request.state_arrays,
                     " arrays of optimizer state, ", worker.name, " ",
                     worker.request->state_arrays));
  }
  return absl::OkStatus();
}

absl::Status JoinRules::CheckSettings(const JoinRequest& request) const {
  if (request.role == Role::kShard) {
    return CompareSettings(request.name, request.settings, "the coordinator",
                           options.server_settings);
  }
  const OptimizerPlace place = options.job_options.optimizer_place;
  if (request.optimizer.value_or(place) != place) {
    const bool servers_update = place == OptimizerPlace::kServer;
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", request.name,
        " has optimizer=", OptimizerPlaceName(*request.optimizer), ", the job ",
        OptimizerPlaceName(place),
        servers_update
            ? ": both would update the parameters. Start the coordinator with "
              "--optimizer=worker, or leave the update to the servers"
            : ": nobody would update the parameters. Let the caller run its "
              "optimizer (ClientOptions::optimizer), or start the coordinator "
              "with --optimizer=server"));
  }
  for (const JoinedWorker& worker : workers) {
    return CompareSettings(absl::StrCat("worker ", request.name),
                           request.settings, worker.name,
                           worker.request->settings);
  }
  return absl::OkStatus();
}

absl::Status JoinRules::CheckFolder(const JoinRequest& request) const {
  if (options.has_checkpoints == request.has_checkpoints) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(request.name, ", shard ", request.shard, ", has ",
                   request.has_checkpoints ? "a" : "no",
                   " --checkpoint-dir, the coordinator",
                   options.has_checkpoints ? " has" : " has not",
                   ": it must be one folder that all servers share"));
}

}  // namespace nereus
