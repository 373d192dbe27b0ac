#include "common/messages/job_messages.h"

#include <set>
#include <string>
#include <utility>

#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/messages/enums.h"
#include "common/messages/fields.h"
#include "common/protocol/job_spec.h"

// Conversion of jobs. Below each ToProto comes its FromProto; both name the
// same fields in the same order. Options travel as text, by the names of their
// flags (OptionsToProto). So a new option needs no change here, and if a member
// does not know an option, its error has the option's name. The block layer of
// a sparse job does not travel: MakeJob makes it again on each member.

namespace nereus {
v1::LayerSpec ToProto(const LayerSpec& layer) {
  v1::LayerSpec message;
  message.set_name(layer.name);
  message.set_kind(EnumToProto(layer.kind));
  message.set_m(layer.m);
  message.set_n(layer.n);
  message.set_parameters(layer.parameters);
  message.set_rows(layer.rows);
  message.set_has_factors(layer.has_factors);
  return message;
}

absl::StatusOr<LayerSpec> FromProto(const v1::LayerSpec& message) {
  LayerSpec layer;
  layer.name = message.name();
  layer.kind =
      NEREUS_TRY(EnumFromProto<LayerKind>("a layer's kind", message.kind()));
  layer.m = message.m();
  layer.n = message.n();
  layer.parameters = message.parameters();
  layer.rows = message.rows();
  layer.has_factors = message.has_factors();
  return layer;
}

absl::StatusOr<std::vector<LayerSpec>> LayersFromProto(
    const google::protobuf::RepeatedPtrField<v1::LayerSpec>& messages) {
  if (messages.size() > kLayersMax) {
    return InvalidArgumentError(messages.size(), " layers, at most ",
                                kLayersMax, " are allowed");
  }
  std::vector<LayerSpec> layers;
  for (const v1::LayerSpec& message : messages) {
    LayerSpec layer = NEREUS_TRY(FromProto(message));
    layers.push_back(std::move(layer));
  }
  return layers;
}

namespace {

// Returns the wire type of a route. The Protobuf numbers are the numbers of
// WireType. kNone, the number 0, is an error, because each layer has values.
absl::StatusOr<WireType> WireFromProto(v1::Route::Wire wire) {
  const auto type = static_cast<WireType>(wire);
  for (const WireType each : kWireTypes) {
    if (each == type) return type;
  }
  return UnknownEnum("a route's wire type", wire);
}

}  // namespace

v1::Route RouteToProto(const Route& route,
                       const RouteExplanation& explanation) {
  v1::Route message;
  message.set_scheme(EnumToProto(route.scheme));
  message.set_wire(static_cast<v1::Route::Wire>(route.wire));
  message.set_server_elements(explanation.server_elements);
  message.set_ring_elements(explanation.ring_elements);
  if (explanation.factor_elements.has_value()) {
    message.set_factor_elements(*explanation.factor_elements);
  }
  message.set_reason(TextField(explanation.reason));
  return message;
}

absl::StatusOr<Route> RouteFromProto(const v1::Route& message) {
  Route route;
  route.scheme =
      NEREUS_TRY(EnumFromProto<Scheme>("a route's scheme", message.scheme()));
  route.wire = NEREUS_TRY(WireFromProto(message.wire()));
  return route;
}

RouteExplanation ExplanationFromProto(const v1::Route& message) {
  RouteExplanation explanation;
  explanation.server_elements = message.server_elements();
  explanation.ring_elements = message.ring_elements();
  if (message.has_factor_elements()) {
    explanation.factor_elements = message.factor_elements();
  }
  explanation.reason = message.reason();
  return explanation;
}

namespace {

// Writes the options of JobOptionTable that the coordinator sends to members.
// Then writes the fields of JobOptions that can change with the epoch, or that
// belong to no option.
void OptionsToProto(const JobOptions& options, v1::JobOptions& message) {
  const JobSpec spec = SpecOf(options);
  for (const JobOption& option : JobOptionTable()) {
    if (!option.is_sent_to_members) continue;
    v1::Setting* const added = message.add_settings();
    added->set_name(option.name);
    added->set_value(option.get(spec));
  }
  message.set_fusion_bytes(options.fusion_bytes);
  message.set_measure(options.measure);
  message.set_has_checkpoints(options.has_checkpoints);
}

// Reads what OptionsToProto writes. Each option must come exactly once. If a
// missing option were no error, it would have its default value, and this
// member would follow other rules than its peers.
absl::StatusOr<JobOptions> OptionsFromProto(const v1::JobOptions& message) {
  JobSpec spec;
  std::set<std::string> seen;
  for (const v1::Setting& setting : message.settings()) {
    const JobOption* const option = FindJobOption(setting.name());
    if (option == nullptr || !option->is_sent_to_members) {
      return InvalidArgumentError(
          "\"", Printable(setting.name().substr(0, 64)),
          "\" is not an option that the coordinator sends to members");
    }
    if (!seen.insert(option->name).second) {
      return InvalidArgumentError("the job's ", option->name,
                                  " is given twice");
    }
    const absl::Status set = option->set(setting.value(), spec);
    if (!set.ok()) {
      return InvalidArgumentError("the job's ", option->name, ": ",
                                  set.message());
    }
  }
  for (const JobOption& option : JobOptionTable()) {
    if (!option.is_sent_to_members || seen.contains(option.name)) continue;
    return InvalidArgumentError("the job's ", option.name, " is missing");
  }
  if (spec.optimizer_by_worker) {
    return InvalidArgumentError(
        "the job's optimizer is auto, must be server or worker in a job that "
        "runs");
  }
  // While the coordinator tunes fusion, the threshold of the epoch can differ
  // from the first one, which the option "fusion" has set above.
  spec.options.fusion_bytes = message.fusion_bytes();
  spec.options.measure = message.measure();
  spec.options.has_checkpoints = message.has_checkpoints();
  return spec.options;
}

}  // namespace

v1::Member ToProto(PeerId peer) {
  v1::Member message;
  message.set_role(EnumToProto(peer.role));
  message.set_rank(peer.rank);
  return message;
}

absl::StatusOr<PeerId> FromProto(const v1::Member& message) {
  if (message.rank() < 0 || message.rank() >= kRanksMax) {
    return InvalidArgumentError("a member's rank is ", message.rank(),
                                ", must be in [0, ", kRanksMax, ")");
  }
  const Role role =
      NEREUS_TRY(EnumFromProto<Role>("a member's role", message.role()));
  return PeerId{role, message.rank()};
}

v1::StepVerdict ToProto(const StepVerdict& verdict) {
  v1::StepVerdict message;
  message.set_step(verdict.step);
  message.set_skipped(verdict.skipped);
  return message;
}

StepVerdict FromProto(const v1::StepVerdict& message) {
  return {message.step(), message.skipped()};
}

v1::ShardServers ToProto(const ShardServers& servers) {
  v1::ShardServers message;
  message.set_primary(servers.primary);
  message.set_backup(servers.backup);
  message.set_backup_is_current(servers.backup_is_current);
  return message;
}

ShardServers FromProto(const v1::ShardServers& message) {
  return {message.primary(), message.backup(), message.backup_is_current()};
}

// Writes the layers of the model. The block layer of a sparse job, which is the
// last layer and has no explanation, is left out.
v1::Job ToProto(const Job& job,
                absl::Span<const RouteExplanation> explanations) {
  v1::Job message;
  message.set_id(job.id);
  message.set_epoch(job.epoch);
  for (const EpochWorker& each : job.workers) {
    v1::Job::EpochWorker* added = message.add_workers();
    added->set_rank(each.rank);
    added->set_first_step(each.first_step);
    if (each.host != -1) added->set_host(each.host);
  }
  for (const auto& [rank, name] : job.crew.worker_names) {
    (*message.mutable_worker_names())[rank] = TextField(name);
  }
  message.set_shards(job.shards());
  for (size_t i = 0; i < job.model().size(); ++i) {
    *message.add_layers() = ToProto(job.layers[i]);
    *message.add_routes() = RouteToProto(job.routes[i], explanations[i]);
  }
  OptionsToProto(job.options, *message.mutable_options());
  message.mutable_left_workers()->Add(job.crew.left_workers.begin(),
                                      job.crew.left_workers.end());
  message.set_base_round(job.history.base_round);
  message.set_first_step(job.history.first_step);
  message.set_contributions_before(job.history.contributions_before);
  for (const FinishedRound& finished : job.history.finished_rounds) {
    v1::Job::FinishedRound* added = message.add_finished_rounds();
    added->set_layer(finished.layer);
    added->set_round(finished.round);
    added->set_source(finished.source);
    added->set_contributors(finished.contributors);
  }
  message.set_donor(job.history.donor);
  message.set_state_arrays(job.state_arrays);
  for (const StepVerdict& verdict : job.history.verdicts) {
    *message.add_verdicts() = ToProto(verdict);
  }
  message.set_checkpoint_round(job.checkpoint_round);
  message.set_switch_round(job.switch_round);
  for (const ShardServers& servers : job.shard_servers) {
    *message.add_shard_servers() = ToProto(servers);
  }
  return message;
}

// Checks enums, options and the number of layers. MakeJob checks everything
// else.
absl::StatusOr<JobPtr> FromProto(const v1::Job& message,
                                 std::vector<RouteExplanation>& explanations) {
  Job job;
  job.id = message.id();
  job.epoch = message.epoch();
  for (const v1::Job::EpochWorker& each : message.workers()) {
    job.workers.push_back(
        {each.rank(), each.first_step(), each.has_host() ? each.host() : -1});
  }
  job.crew.worker_names.insert(message.worker_names().begin(),
                               message.worker_names().end());
  job.layers = NEREUS_TRY(LayersFromProto(message.layers()));
  for (const v1::Route& route : message.routes()) {
    job.routes.emplace_back() = NEREUS_TRY(RouteFromProto(route));
    explanations.push_back(ExplanationFromProto(route));
  }
  job.options = NEREUS_TRY(OptionsFromProto(message.options()));
  job.crew.left_workers.assign(message.left_workers().begin(),
                               message.left_workers().end());
  job.history.base_round = message.base_round();
  job.history.first_step = message.first_step();
  job.history.contributions_before = message.contributions_before();
  for (const v1::Job::FinishedRound& finished : message.finished_rounds()) {
    job.history.finished_rounds.push_back({finished.layer(), finished.round(),
                                           finished.source(),
                                           finished.contributors()});
  }
  job.history.donor = message.donor();
  job.state_arrays = message.state_arrays();
  for (const v1::StepVerdict& verdict : message.verdicts()) {
    job.history.verdicts.push_back(FromProto(verdict));
  }
  job.checkpoint_round = message.checkpoint_round();
  job.switch_round = message.switch_round();
  for (const v1::ShardServers& servers : message.shard_servers()) {
    job.shard_servers.push_back(FromProto(servers));
  }
  return MakeJob(std::move(job), message.shards());
}

}  // namespace nereus
