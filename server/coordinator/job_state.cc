#include "server/coordinator/job_state.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/messages/enums.h"
#include "common/messages/fields.h"
#include "common/messages/gathering_messages.h"
#include "common/messages/job_messages.h"
#include "common/messages/messages.h"
#include "proto/state.pb.h"

namespace nereus {
namespace {

void CheckpointsToProto(const CheckpointLedger::State& checkpoints,
                        v1::CoordinatorState& message) {
  for (const auto& stretch : checkpoints.stretches) {
    auto* added = message.add_stretches();
    added->set_first_step(stretch.first_step);
    added->set_contributions_before(stretch.contributions_before);
    added->set_workers(stretch.workers);
  }
  message.set_restarted_in(checkpoints.restarted_in);
  for (const auto& damaged : checkpoints.damaged) {
    auto* added = message.add_damaged();
    added->set_round(damaged.round);
    added->set_why(TextField(damaged.why));
  }
  if (!checkpoints.newest.has_value()) return;
  v1::CoordinatorState::Checkpoint& newest = *message.mutable_newest();
  newest.set_round(checkpoints.newest->round);
  newest.set_contributions(checkpoints.newest->contributions);
  for (const CheckpointFile& file : checkpoints.newest->files) {
    auto* added = newest.add_files();
    added->set_name(file.name);
    added->set_bytes(file.bytes);
    added->set_crc(file.crc);
  }
}

CheckpointLedger::State CheckpointsFromProto(
    const v1::CoordinatorState& message) {
  CheckpointLedger::State checkpoints;
  for (const auto& stretch : message.stretches()) {
    checkpoints.stretches.push_back({stretch.first_step(),
                                     stretch.contributions_before(),
                                     stretch.workers()});
  }
  checkpoints.restarted_in = message.restarted_in();
  for (const auto& damaged : message.damaged()) {
    checkpoints.damaged.push_back({damaged.round(), damaged.why()});
  }
  if (!message.has_newest()) return checkpoints;
  CheckpointRecord& newest = checkpoints.newest.emplace();
  newest.round = message.newest().round();
  newest.contributions = message.newest().contributions();
  for (const auto& file : message.newest().files()) {
    newest.files.push_back({file.name(), file.bytes(), file.crc()});
  }
  return checkpoints;
}

void HostsToProto(const HostTable::State& hosts,
                  v1::CoordinatorState& message) {
  for (const HostTable::Host& host : hosts.hosts) {
    auto* added = message.add_hosts();
    *added->mutable_claim() = ToProto(host.claim);
    added->set_member(TextField(host.member));
  }
  message.mutable_split()->Add(hosts.split.begin(), hosts.split.end());
}

absl::StatusOr<HostTable::State> HostsFromProto(
    const v1::CoordinatorState& message) {
  HostTable::State hosts;
  std::set<HostClaim> seen;
  for (const auto& host : message.hosts()) {
    hosts.hosts.push_back({FromProto(host.claim()), host.member()});
    const HostClaim& claim = hosts.hosts.back().claim;
    if (!claim.machine.empty() && seen.insert(claim).second) continue;
    return InvalidArgumentError("host ", hosts.hosts.size() - 1, " of ",
                                message.hosts_size(),
                                " in the state has no machine, or the claim "
                                "of another host");
  }
  if (hosts.hosts.size() > size_t{kHostsMax}) {
    return InvalidArgumentError("the state has ", hosts.hosts.size(),
                                " hosts, at most ", kHostsMax);
  }
  hosts.split.insert(message.split().begin(), message.split().end());
  return hosts;
}

absl::StatusOr<std::vector<LobbyGathered>> LobbyFromProto(
    const v1::CoordinatorState& message) {
  std::vector<LobbyGathered> lobby;
  for (const v1::LobbyGathered& each : message.lobby()) {
    LobbyGathered gathered = NEREUS_TRY(FromProto(each));
    if (gathered.index != static_cast<int32_t>(lobby.size())) {
      return InvalidArgumentError("answer ", lobby.size(),
                                  " of the lobby has the index ",
                                  gathered.index);
    }
    lobby.push_back(std::move(gathered));
  }
  return lobby;
}

// Checks that each layer is in the model, and may have had factors.
absl::StatusOr<FactorReports::Lost> LostFromProto(
    const v1::CoordinatorState& message, const Job& job) {
  FactorReports::Lost lost;
  for (const auto& [layer, worker] : message.lost_factors()) {
    if (layer < 0 || layer >= std::ssize(job.model()) ||
        !job.layers[layer].has_factors) {
      return InvalidArgumentError("layer ", layer,
                                  " has lost its factors in the state, and "
                                  "the model has no such layer with factors");
    }
    lost[layer] = worker;
  }
  return lost;
}

// Checks that each member is in the job of the epoch, and occurs once.
absl::Status CheckMembers(const CoordinatorState& state) {
  const Job& job = *state.epoch.job;
  std::set<PeerId> seen;
  for (const CoordinatorState::Member& member : state.members) {
    const PeerId id = member.id;
    const bool known = id.role == Role::kShard
                           ? id.rank < job.shards()
                           : job.PositionOf(id.rank) >= 0 ||
                                 absl::c_count(job.crew.left_workers, id.rank);
    if (known && seen.insert(id).second) continue;
    return InvalidArgumentError(
        PeerName(id),
        " occurs twice in the state, or is not a member of epoch ", job.epoch);
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeState(const CoordinatorState& state) {
  v1::CoordinatorState message;
  message.set_state(EnumToProto(state.state));
  message.set_reason(TextField(state.reason));
  for (const LobbyGathered& each : state.lobby) {
    *message.add_lobby() = ToProto(each);
  }
  if (state.epoch.job == nullptr) return message.SerializeAsString();
  *message.mutable_job() = ToProto(*state.epoch.job, state.epoch.explanations);
  for (const CoordinatorState::Member& member : state.members) {
    auto* added = message.add_members();
    *added->mutable_member() = ToProto(member.id);
    *added->mutable_request() =
        std::move(*ToProto(MemberMessage(member.request)).mutable_join());
    if (member.left) added->set_left(member.last_step);
    added->set_left_early(member.left_early);
    added->set_first_step(member.life.first_step);
    added->set_first_epoch(member.life.epoch);
  }
  message.set_next_rank(state.next_rank);
  message.set_all_from_base(state.epoch.all_from_base);
  message.mutable_workers_from_base()->Add(
      state.epoch.workers_from_base.begin(),
      state.epoch.workers_from_base.end());
  for (const auto& [first, second] : state.epoch.broken_links) {
    auto* added = message.add_broken_links();
    *added->mutable_first() = ToProto(first);
    *added->mutable_second() = ToProto(second);
  }
  for (const EpochMember& each : state.epoch.members) {
    *message.add_epoch_members() = ToProto(each);
  }
  CheckpointsToProto(state.checkpoints, message);
  message.set_checkpoint_wanted(state.checkpoint_wanted);
  HostsToProto(state.hosts, message);
  for (const Gathered& first : state.gatherings.first) {
    *message.add_first_gathered() = ToProto(first);
  }
  if (state.gatherings.newest.has_value()) {
    *message.mutable_newest_gathered() = ToProto(*state.gatherings.newest);
  }
  for (const auto& [layer, worker] : state.lost_factors) {
    (*message.mutable_lost_factors())[layer] = TextField(worker);
  }
  return message.SerializeAsString();
}

absl::StatusOr<CoordinatorState> DecodeState(const std::string& bytes) {
  v1::CoordinatorState message;
  if (!message.ParseFromString(bytes)) {
    return InvalidArgumentError(bytes.size(),
                                " bytes that are not a coordinator's state");
  }
  CoordinatorState state;
  state.state =
      NEREUS_TRY(EnumFromProto<JobState>("the job's state", message.state()));
  state.reason = message.reason();
  state.lobby = NEREUS_TRY(LobbyFromProto(message));
  const bool has_begun = state.state != JobState::kWaiting;
  if (!message.has_job() && (!has_begun || state.state == JobState::kFailed)) {
    return state;
  }
  state.epoch.job =
      NEREUS_TRY(FromProto(message.job(), state.epoch.explanations));
  for (auto& saved : *message.mutable_members()) {
    CoordinatorState::Member member;
    member.id = NEREUS_TRY(FromProto(saved.member()));
    v1::MemberMessage join;
    *join.mutable_join() = std::move(*saved.mutable_request());
    MemberMessage request = NEREUS_TRY(FromProto(join));
    member.request = std::get<JoinRequest>(std::move(request));
    member.left = saved.has_left();
    member.left_early = saved.left_early();
    if (member.left) member.last_step = saved.left();
    member.life = {saved.first_step(), saved.first_epoch()};
    state.members.push_back(std::move(member));
  }
  NEREUS_TRY(CheckMembers(state));
  state.next_rank = message.next_rank();
  state.epoch.all_from_base = message.all_from_base();
  state.epoch.workers_from_base.assign(message.workers_from_base().begin(),
                                       message.workers_from_base().end());
  for (const auto& link : message.broken_links()) {
    const PeerId first = NEREUS_TRY(FromProto(link.first()));
    const PeerId second = NEREUS_TRY(FromProto(link.second()));
    state.epoch.broken_links.emplace_back(first, second);
  }
  state.epoch.members = NEREUS_TRY(
      EpochMembersFromProto(message.epoch_members(), *state.epoch.job));
  state.checkpoints = CheckpointsFromProto(message);
  state.checkpoint_wanted = message.checkpoint_wanted();
  state.hosts = NEREUS_TRY(HostsFromProto(message));
  for (const v1::Gathered& first : message.first_gathered()) {
    const Gathered gathered = NEREUS_TRY(FromProto(first));
    state.gatherings.first.push_back(gathered);
  }
  if (message.has_newest_gathered()) {
    state.gatherings.newest = NEREUS_TRY(FromProto(message.newest_gathered()));
  }
  state.lost_factors = NEREUS_TRY(LostFromProto(message, *state.epoch.job));
  return state;
}

}  // namespace nereus
