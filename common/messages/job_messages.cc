#include "common/messages/job_messages.h"

#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/protocol/job_spec.h"

// Options of a job travel as text, by the names of their flags. So a new option
// needs no change here, and if a member does not know an option, its error has
// the option's name. The block layer of a sparse job does not travel: MakeJob
// makes it again on each member.

namespace nereus {

void Fields(Codec& c, PeerId& peer) {
  c("rank", peer.rank);
  c.Verify([&]() -> absl::Status {
    if (peer.rank >= 0 && peer.rank < kRanksMax) return absl::OkStatus();
    return InvalidArgumentError("a member's rank is ", peer.rank,
                                ", must be in [0, ", kRanksMax, ")");
  });
  c("role", peer.role);
}

void Fields(Codec& c, std::pair<PeerId, PeerId>& link) {
  c("first", link.first);
  c("second", link.second);
}

void Fields(Codec& c, Setting& setting) {
  c("name", setting.name);
  c("value", setting.value);
}

void Fields(Codec& c, LayerSpec& layer) {
  c("name", layer.name);
  c("kind", layer.kind);
  c("m", layer.m);
  c("n", layer.n);
  c("parameters", layer.parameters);
  c("rows", layer.rows);
  c("has_factors", layer.has_factors);
}

void Fields(Codec& c, StepVerdict& verdict) {
  c("step", verdict.step);
  c("skipped", verdict.skipped);
}

void Fields(Codec& c, ShardServers& servers) {
  c("primary", servers.primary);
  c("backup", servers.backup);
  c("backup_is_current", servers.backup_is_current);
}

void Fields(Codec& c, EpochMember& member) {
  c("member", member.id);
  c("incarnation", member.incarnation);
  c("data_address", member.data_address);
  c.Unless(-1, "host", member.host);
  c.Verify([&]() -> absl::Status {
    if (member.host >= -1 && member.host < kHostsMax) return absl::OkStatus();
    return InvalidArgumentError(PeerName(member.id), " is on host ",
                                member.host, ", must be in [-1, ", kHostsMax,
                                ")");
  });
}

void Fields(Codec& c, HostClaim& claim) {
  c("node", claim.node);
  c("machine", claim.machine);
}

void Fields(Codec& c, Stall& stall) {
  c("layer", stall.layer);
  c("round", stall.round);
  c("missing", stall.missing);
  c("waited", stall.waited);
}

void Fields(Codec& c, PhaseTimes& times) {
  c("forward", times.forward);
  c("backward", times.backward);
  c("other", times.other);
  c("waiting", times.waiting);
  c.Unless(absl::ZeroDuration(), "turn", times.turn);
}

void Fields(Codec& c, BusyLink& link) {
  c("peer", link.peer);
  c("share", link.share);
  c("others", link.others);
}

void Fields(Codec& c, Activity& activity) {
  c("steps", activity.steps);
  c("times", activity.times);
  c("bytes_sent", activity.bytes_sent);
  c("bytes_received", activity.bytes_received);
  c("busiest", activity.busiest);
}

void Fields(Codec& c, LongWork& work) {
  c("kind", work.kind);
  c("done", work.done);
  c("total", work.total);
  c.Verify([&]() -> absl::Status {
    if (work.done >= 0 && work.done <= work.total) return absl::OkStatus();
    return InvalidArgumentError("long work is done by ", work.done, " of ",
                                work.total);
  });
}

static void Fields(Codec& c, LayerTime& time) {
  c("forward", time.forward);
  c("backward", time.backward);
}

static void Fields(Codec& c, LinkSpeed& link) {
  c("rate", link.rate);
  c("latency", link.latency);
  c("message_time", link.message_time);
}

void Fields(Codec& c, Measured& measured) {
  c("times", measured.times);
  c("step_time", measured.step_time);
  c("link", measured.link);
  c("memory_rate", measured.memory_rate);
  c("waits_in_forward", measured.waits_in_forward);
  std::vector<float> seconds;
  for (const absl::Duration time : measured.sync_times) {
    seconds.push_back(static_cast<float>(absl::ToDoubleSeconds(time)));
  }
  c("sync_seconds", seconds);
  if (!c.reads()) return;
  measured.sync_times.clear();
  for (const float each : seconds) {
    measured.sync_times.push_back(absl::Seconds(each));
  }
}

// The Protobuf numbers of wire types are those of WireType. kNone, the number
// 0, is an error, because each layer has values.
static void CopyWire(Codec& c, WireType& wire) {
  int number = static_cast<int>(wire);
  c.EnumNumber("wire", number);
  c.Verify([&]() -> absl::Status {
    const auto known = absl::c_find_if(kWireTypes, [&](WireType each) {
      return static_cast<int>(each) == number;
    });
    if (known == std::end(kWireTypes)) {
      return InvalidArgumentError("Route.wire has the unknown value ", number);
    }
    wire = *known;
    return absl::OkStatus();
  });
}

void Fields(Codec& c, ReasonedRoute& route) {
  c("scheme", route.route.scheme);
  CopyWire(c, route.route.wire);
  c("server_elements", route.why.server_elements);
  c("ring_elements", route.why.ring_elements);
  c("direct_elements", route.why.direct_elements);
  c("factor_elements", route.why.factor_elements);
  c("reason", route.why.reason);
}

// Reads the options of JobOptionTable that the coordinator sends to members.
// Each must come exactly once. If a missing option were no error, it would have
// its default value, and this member would follow other rules than its peers.
static absl::Status ReadSettings(const std::vector<Setting>& settings,
                                 JobOptions& options) {
  JobSpec spec;
  std::set<std::string> seen;
  for (const Setting& setting : settings) {
    const JobOption* const option = FindJobOption(setting.name);
    if (option == nullptr || !option->is_sent_to_members) {
      return InvalidArgumentError(
          "\"", Printable(setting.name.substr(0, 64)),
          "\" is not an option that the coordinator sends to members");
    }
    if (!seen.insert(option->name).second) {
      return InvalidArgumentError("the job's ", option->name,
                                  " is given twice");
    }
    const absl::Status set = option->set(setting.value, spec);
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
  options = spec.options;
  return absl::OkStatus();
}

// The last three can change with the epoch, or belong to no option. While the
// coordinator tunes fusion, the threshold of the epoch can differ from the
// first one, which the option "fusion" has.
static void Fields(Codec& c, JobOptions& options) {
  std::vector<Setting> settings;
  if (!c.reads()) {
    const JobSpec spec = SpecOf(options);
    for (const JobOption& option : JobOptionTable()) {
      if (!option.is_sent_to_members) continue;
      settings.push_back({option.name, option.get(spec)});
    }
  }
  c("settings", settings);
  c.Verify([&] { return ReadSettings(settings, options); });
  c("fusion_bytes", options.fusion_bytes);
  c("measure", options.measure);
  c("has_checkpoints", options.has_checkpoints);
}

static void Fields(Codec& c, EpochWorker& worker) {
  c("rank", worker.rank);
  c("first_step", worker.first_step);
  c.Unless(-1, "host", worker.host);
}

static void Fields(Codec& c, FinishedRound& finished) {
  c("layer", finished.layer);
  c("round", finished.round);
  c("source", finished.source);
  c("contributors", finished.contributors);
}

// Fields of a job that is read, or of one that is written, and what travels
// with them.
struct JobFields {
  Job& job;
  int32_t shards;
  std::vector<RouteExplanation>& explanations;
};

// Copies the layers of the model. The block layer of a sparse job, which is the
// last layer and has no explanation, is left out.
static void CopyLayers(Codec& c, JobFields& fields) {
  std::vector<LayerSpec> layers;
  std::vector<ReasonedRoute> routes;
  if (!c.reads()) {
    layers.assign(fields.job.model().begin(), fields.job.model().end());
    for (size_t i = 0; i < layers.size(); ++i) {
      routes.push_back({fields.job.routes[i], fields.explanations[i]});
    }
  }
  c.AtMost("layers", kLayersMax);
  c("layers", layers);
  c.AtMost("routes", kLayersMax);
  c("routes", routes);
  if (!c.reads()) return;
  fields.job.layers = std::move(layers);
  for (ReasonedRoute& each : routes) {
    fields.job.routes.push_back(each.route);
    fields.explanations.push_back(std::move(each.why));
  }
}

static void Fields(Codec& c, JobFields& fields) {
  Job& job = fields.job;
  c("id", job.id);
  c("epoch", job.epoch);
  c("workers", job.workers);
  c("worker_names", job.crew.worker_names);
  c("shards", fields.shards);
  CopyLayers(c, fields);
  c("options", job.options);
  c("left_workers", job.crew.left_workers);
  c("base_round", job.history.base_round);
  c("first_step", job.history.first_step);
  c("contributions_before", job.history.contributions_before);
  c("finished_rounds", job.history.finished_rounds);
  c("donor", job.history.donor);
  c("state_arrays", job.state_arrays);
  c("verdicts", job.history.verdicts);
  c("checkpoint_round", job.checkpoint_round);
  c("switch_round", job.switch_round);
  c("shard_servers", job.shard_servers);
}

void CopyJob(Codec& c, JobPtr& job,
             std::vector<RouteExplanation>& explanations) {
  Job read;
  // A codec that writes changes nothing.
  Job& each = c.reads() ? read : const_cast<Job&>(*job);
  JobFields fields{each, c.reads() ? 0 : job->shards(), explanations};
  c("job", fields);
  c.Verify([&]() -> absl::Status {
    job = NEREUS_TRY(MakeJob(std::move(read), fields.shards));
    return absl::OkStatus();
  });
}

absl::Status CheckEpochMembers(const std::vector<EpochMember>& members,
                               const Job& job) {
  std::set<PeerId> seated;
  for (const EpochMember& each : members) seated.insert(each.id);
  std::set<PeerId> expected;
  for (const EpochWorker& worker : job.workers) {
    expected.insert(PeerId::Worker(worker.rank));
  }
  for (const int32_t rank : job.crew.left_workers) {
    expected.insert(PeerId::Worker(rank));
  }
  for (const ShardServers& servers : job.shard_servers) {
    expected.insert(PeerId::Shard(servers.primary));
    if (servers.backup != -1) expected.insert(PeerId::Shard(servers.backup));
  }
  if (seated == expected && members.size() == expected.size()) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("the epoch has ", members.size(),
                              " epoch_members for its ", expected.size(),
                              " members: each member must have exactly one");
}

}  // namespace nereus
