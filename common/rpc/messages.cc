#include "common/rpc/messages.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace nereus {
namespace {

absl::Status CheckAtLeast(absl::string_view field, int64_t value,
                          int64_t minimum) {
  if (value >= minimum) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", must be ", minimum, " or more"));
}

template <typename Enum>
absl::Status UnknownEnum(absl::string_view field, Enum value) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has the unknown value ", static_cast<int>(value)));
}

v1::LayerSpec LayerToProto(const LayerSpec& layer) {
  v1::LayerSpec message;
  message.set_name(layer.name);
  switch (layer.kind) {
    case LayerKind::kFullyConnected:
      message.set_kind(v1::LayerSpec::KIND_FULLY_CONNECTED);
      break;
    case LayerKind::kConvolution:
      message.set_kind(v1::LayerSpec::KIND_CONVOLUTION);
      break;
    case LayerKind::kEmbedding:
      message.set_kind(v1::LayerSpec::KIND_EMBEDDING);
      break;
    case LayerKind::kVector:
      message.set_kind(v1::LayerSpec::KIND_VECTOR);
      break;
  }
  message.set_m(layer.m);
  message.set_n(layer.n);
  message.set_parameters(layer.parameters);
  message.set_rows(layer.rows);
  return message;
}

absl::StatusOr<LayerSpec> LayerFromProto(const v1::LayerSpec& message) {
  LayerSpec layer;
  layer.name = message.name();
  switch (message.kind()) {
    case v1::LayerSpec::KIND_FULLY_CONNECTED:
      layer.kind = LayerKind::kFullyConnected;
      break;
    case v1::LayerSpec::KIND_CONVOLUTION:
      layer.kind = LayerKind::kConvolution;
      break;
    case v1::LayerSpec::KIND_EMBEDDING:
      layer.kind = LayerKind::kEmbedding;
      break;
    case v1::LayerSpec::KIND_VECTOR:
      layer.kind = LayerKind::kVector;
      break;
    default:
      return UnknownEnum("a layer's kind", message.kind());
  }
  layer.m = message.m();
  layer.n = message.n();
  layer.parameters = message.parameters();
  layer.rows = message.rows();
  return layer;
}

template <typename Repeated>
absl::StatusOr<std::vector<LayerSpec>> LayersFromProto(
    const Repeated& messages) {
  if (messages.size() > kLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        messages.size(), " layers, at most ", kLayersMax, " are allowed"));
  }
  std::vector<LayerSpec> layers;
  for (const v1::LayerSpec& message : messages) {
    NEREUS_ASSIGN_OR_RETURN(LayerSpec layer, LayerFromProto(message));
    layers.push_back(std::move(layer));
  }
  return layers;
}

v1::Route RouteToProto(const Route& route,
                       const RouteExplanation& explanation) {
  v1::Route message;
  message.set_scheme(route.scheme == Scheme::kServer
                         ? v1::Route::SCHEME_SERVER
                         : v1::Route::SCHEME_FACTOR);
  message.set_server_elements(explanation.server_elements);
  if (explanation.factor_elements.has_value()) {
    message.set_factor_elements(*explanation.factor_elements);
  }
  message.set_reason(explanation.reason);
  return message;
}

absl::StatusOr<Route> RouteFromProto(const v1::Route& message) {
  switch (message.scheme()) {
    case v1::Route::SCHEME_SERVER:
      return Route{Scheme::kServer};
    case v1::Route::SCHEME_FACTOR:
      return Route{Scheme::kFactor};
    default:
      return UnknownEnum("a route's scheme", message.scheme());
  }
}

v1::Optimizer OptimizerToProto(const JobOptions& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  v1::Optimizer message;
  message.set_rule(optimizer.rule == UpdateRule::kSgd
                       ? v1::Optimizer::RULE_SGD
                       : v1::Optimizer::RULE_ADAM);
  message.set_learning_rate(optimizer.learning_rate);
  message.set_momentum(optimizer.momentum);
  message.set_weight_decay(optimizer.weight_decay);
  message.set_beta1(optimizer.beta1);
  message.set_beta2(optimizer.beta2);
  message.set_epsilon(optimizer.epsilon);
  message.set_place(options.optimizer_place == OptimizerPlace::kServer
                        ? v1::Optimizer::PLACE_SERVER
                        : v1::Optimizer::PLACE_WORKER);
  return message;
}

absl::StatusOr<JobOptions> OptimizerFromProto(const v1::Optimizer& message) {
  JobOptions options;
  OptimizerOptions& optimizer = options.optimizer;
  if (message.rule() == v1::Optimizer::RULE_SGD) {
    optimizer.rule = UpdateRule::kSgd;
  } else if (message.rule() == v1::Optimizer::RULE_ADAM) {
    optimizer.rule = UpdateRule::kAdam;
  } else {
    return UnknownEnum("the optimizer's rule", message.rule());
  }
  optimizer.learning_rate = message.learning_rate();
  optimizer.momentum = message.momentum();
  optimizer.weight_decay = message.weight_decay();
  optimizer.beta1 = message.beta1();
  optimizer.beta2 = message.beta2();
  optimizer.epsilon = message.epsilon();
  if (message.place() == v1::Optimizer::PLACE_SERVER) {
    options.optimizer_place = OptimizerPlace::kServer;
  } else if (message.place() == v1::Optimizer::PLACE_WORKER) {
    options.optimizer_place = OptimizerPlace::kWorker;
  } else {
    return UnknownEnum("the optimizer's place", message.place());
  }
  return options;
}

v1::JobState StateToProto(JobState state) {
  switch (state) {
    case JobState::kGathering:
      return v1::JOB_STATE_GATHERING;
    case JobState::kRunning:
      return v1::JOB_STATE_RUNNING;
    case JobState::kFinished:
      return v1::JOB_STATE_FINISHED;
    case JobState::kFailed:
      return v1::JOB_STATE_FAILED;
  }
  return v1::JOB_STATE_UNSPECIFIED;
}

absl::StatusOr<JobState> StateFromProto(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_GATHERING:
      return JobState::kGathering;
    case v1::JOB_STATE_RUNNING:
      return JobState::kRunning;
    case v1::JOB_STATE_FINISHED:
      return JobState::kFinished;
    case v1::JOB_STATE_FAILED:
      return JobState::kFailed;
    default:
      return UnknownEnum("the job's state", state);
  }
}

absl::StatusOr<JobPtr> JobFromProto(
    const v1::Job& message, std::vector<RouteExplanation>& explanations) {
  NEREUS_ASSIGN_OR_RETURN(std::vector<LayerSpec> layers,
                          LayersFromProto(message.layers()));
  std::vector<Route> routes;
  for (const v1::Route& route : message.routes()) {
    NEREUS_ASSIGN_OR_RETURN(routes.emplace_back(), RouteFromProto(route));
    RouteExplanation explanation{route.server_elements(), std::nullopt,
                                 route.reason()};
    if (route.has_factor_elements()) {
      explanation.factor_elements = route.factor_elements();
    }
    explanations.push_back(std::move(explanation));
  }
  NEREUS_ASSIGN_OR_RETURN(JobOptions options,
                          OptimizerFromProto(message.optimizer()));
  options.deterministic = message.deterministic();
  return MakeJob(message.id(), message.epoch(), message.workers(),
                 message.shards(), std::move(layers), std::move(routes),
                 options);
}

}  // namespace

v1::Member ToProto(PeerId peer) {
  v1::Member message;
  message.set_role(peer.role == Role::kWorker ? v1::Member::ROLE_WORKER
                                              : v1::Member::ROLE_SHARD);
  message.set_rank(peer.rank);
  return message;
}

absl::StatusOr<PeerId> FromProto(const v1::Member& message) {
  if (message.rank() < 0 || message.rank() >= kRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a member's rank is ", message.rank(), ", must be in [0, ",
                     kRanksMax, ")"));
  }
  switch (message.role()) {
    case v1::Member::ROLE_WORKER:
      return PeerId::Worker(message.rank());
    case v1::Member::ROLE_SHARD:
      return PeerId::Shard(message.rank());
    default:
      return UnknownEnum("a member's role", message.role());
  }
}

v1::JoinRequest ToProto(const JoinRequest& request) {
  v1::JoinRequest message;
  message.set_protocol_version(request.protocol_version);
  message.set_build(request.build);
  message.set_job(request.job);
  message.set_role(request.role == Role::kWorker ? v1::Member::ROLE_WORKER
                                                 : v1::Member::ROLE_SHARD);
  message.set_shard(request.shard);
  message.set_name(request.name);
  message.set_data_address(request.data_address);
  for (const LayerSpec& layer : request.layers) {
    *message.add_layers() = LayerToProto(layer);
  }
  return message;
}

absl::StatusOr<JoinRequest> FromProto(const v1::JoinRequest& message) {
  JoinRequest request;
  request.protocol_version = message.protocol_version();
  request.build = message.build();
  request.job = message.job();
  if (message.role() == v1::Member::ROLE_WORKER) {
    request.role = Role::kWorker;
  } else if (message.role() == v1::Member::ROLE_SHARD) {
    request.role = Role::kShard;
  } else {
    return UnknownEnum("the role", message.role());
  }
  request.shard = message.shard();
  request.name = message.name();
  request.data_address = message.data_address();
  NEREUS_ASSIGN_OR_RETURN(request.layers, LayersFromProto(message.layers()));
  return request;
}

v1::Welcome ToProto(const Welcome& welcome) {
  v1::Welcome message;
  message.set_rank(welcome.rank);
  v1::Job& job = *message.mutable_job();
  job.set_id(welcome.job->id);
  job.set_epoch(welcome.job->epoch);
  job.set_workers(welcome.job->workers);
  job.set_shards(welcome.job->shards());
  for (size_t i = 0; i < welcome.job->layers.size(); ++i) {
    *job.add_layers() = LayerToProto(welcome.job->layers[i]);
    *job.add_routes() =
        RouteToProto(welcome.job->routes[i], welcome.explanations[i]);
  }
  *job.mutable_optimizer() = OptimizerToProto(welcome.job->options);
  job.set_deterministic(welcome.job->options.deterministic);
  for (const std::string& address : welcome.worker_addresses) {
    message.add_worker_addresses(address);
  }
  for (const std::string& address : welcome.shard_addresses) {
    message.add_shard_addresses(address);
  }
  return message;
}

absl::StatusOr<Welcome> FromProto(const v1::Welcome& message) {
  Welcome welcome;
  NEREUS_ASSIGN_OR_RETURN(welcome.job,
                          JobFromProto(message.job(), welcome.explanations));
  welcome.rank = message.rank();
  welcome.worker_addresses.assign(message.worker_addresses().begin(),
                                  message.worker_addresses().end());
  welcome.shard_addresses.assign(message.shard_addresses().begin(),
                                 message.shard_addresses().end());
  const int workers = static_cast<int>(welcome.worker_addresses.size());
  const int shards = static_cast<int>(welcome.shard_addresses.size());
  if (workers != welcome.job->workers || shards != welcome.job->shards()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the welcome has the addresses of ", workers,
                     " workers and ", shards, " shards, the job has ",
                     welcome.job->workers, " and ", welcome.job->shards()));
  }
  if (welcome.rank < 0 || welcome.rank >= std::max(workers, shards)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the welcome gives rank ", welcome.rank));
  }
  return welcome;
}

v1::HeartbeatRequest ToProto(const Heartbeat& heartbeat) {
  v1::HeartbeatRequest message;
  message.set_job(heartbeat.job);
  message.set_epoch(heartbeat.epoch);
  *message.mutable_member() = ToProto(heartbeat.member);
  message.set_round(heartbeat.round);
  message.set_stored_bytes(heartbeat.stored_bytes);
  message.set_chunks(heartbeat.chunks);
  for (const Heartbeat::LostPeer& lost : heartbeat.lost_peers) {
    auto* added = message.add_lost_peers();
    *added->mutable_member() = ToProto(lost.peer);
    added->set_reason(lost.reason);
  }
  return message;
}

absl::StatusOr<Heartbeat> FromProto(const v1::HeartbeatRequest& message) {
  Heartbeat heartbeat;
  heartbeat.job = message.job();
  heartbeat.epoch = message.epoch();
  NEREUS_ASSIGN_OR_RETURN(heartbeat.member, FromProto(message.member()));
  heartbeat.round = message.round();
  heartbeat.stored_bytes = message.stored_bytes();
  heartbeat.chunks = message.chunks();
  NEREUS_RETURN_IF_ERROR(
      CheckAtLeast("the round", heartbeat.round, kInitialRound));
  NEREUS_RETURN_IF_ERROR(CheckAtLeast("the bytes", heartbeat.stored_bytes, 0));
  NEREUS_RETURN_IF_ERROR(CheckAtLeast("the chunks", heartbeat.chunks, 0));
  for (const auto& lost : message.lost_peers()) {
    NEREUS_ASSIGN_OR_RETURN(const PeerId peer, FromProto(lost.member()));
    heartbeat.lost_peers.push_back({peer, lost.reason()});
  }
  return heartbeat;
}

v1::HeartbeatResponse ToProto(const JobVerdict& verdict) {
  v1::HeartbeatResponse message;
  message.set_state(StateToProto(verdict.state));
  message.set_reason(verdict.reason);
  return message;
}

absl::StatusOr<JobVerdict> FromProto(const v1::HeartbeatResponse& message) {
  NEREUS_ASSIGN_OR_RETURN(const JobState state,
                          StateFromProto(message.state()));
  return JobVerdict{state, message.reason()};
}

v1::GetStatusResponse ToProto(const JobStatus& status) {
  v1::GetStatusResponse message;
  message.set_build(kVersion);
  message.set_job(status.job);
  message.set_id(status.id);
  message.set_epoch(status.epoch);
  message.set_state(StateToProto(status.state));
  message.set_reason(status.reason);
  message.set_waiting(status.waiting);
  message.set_workers(status.workers);
  message.set_shards(status.shards);
  for (const JobStatus::Member& member : status.members) {
    auto* added = message.add_members();
    *added->mutable_member() = ToProto(member.id);
    added->set_name(member.name);
    added->set_data_address(member.data_address);
    added->set_round(member.round);
    absl::Duration rest = member.since_heartbeat;
    added->mutable_since_heartbeat()->set_seconds(
        absl::IDivDuration(rest, absl::Seconds(1), &rest));
    added->mutable_since_heartbeat()->set_nanos(
        static_cast<int>(absl::ToInt64Nanoseconds(rest)));
    added->set_left(member.left);
    added->set_stored_bytes(member.stored_bytes);
    added->set_chunks(member.chunks);
  }
  return message;
}

absl::StatusOr<JobStatus> FromProto(const v1::GetStatusResponse& message) {
  JobStatus status;
  status.job = message.job();
  status.id = message.id();
  status.epoch = message.epoch();
  NEREUS_ASSIGN_OR_RETURN(status.state, StateFromProto(message.state()));
  status.reason = message.reason();
  status.waiting = message.waiting();
  status.workers = message.workers();
  status.shards = message.shards();
  NEREUS_RETURN_IF_ERROR(CheckAtLeast("the workers", status.workers, 0));
  NEREUS_RETURN_IF_ERROR(CheckAtLeast("the shards", status.shards, 0));
  for (const auto& member : message.members()) {
    NEREUS_ASSIGN_OR_RETURN(const PeerId id, FromProto(member.member()));
    status.members.push_back(
        {id, member.name(), member.data_address(), member.round(),
         absl::Seconds(member.since_heartbeat().seconds()) +
             absl::Nanoseconds(member.since_heartbeat().nanos()),
         member.left(), member.stored_bytes(), member.chunks()});
  }
  return status;
}

}  // namespace nereus
