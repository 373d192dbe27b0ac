#include "server/coordinator/job_state.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/messages/codec.h"
#include "common/messages/job_messages.h"
#include "common/messages/messages.h"
#include "proto/state.pb.h"

namespace nereus {

static void Fields(Codec& c, CheckpointLedger::State::Stretch& stretch) {
  c("first_step", stretch.first_step);
  c("contributions_before", stretch.contributions_before);
  c("workers", stretch.workers);
}

static void Fields(Codec& c, CheckpointFile& file) {
  c("name", file.name);
  c("bytes", file.bytes);
  c("crc", file.crc);
}

static void Fields(Codec& c, CheckpointRecord& checkpoint) {
  c("round", checkpoint.round);
  c("contributions", checkpoint.contributions);
  c("files", checkpoint.files);
}

static void Fields(Codec& c, CheckpointLedger::State::Damaged& damaged) {
  c("round", damaged.round);
  c("why", damaged.why);
}

static void Fields(Codec& c, HostTable::Host& host) {
  c("claim", host.claim);
  c("member", host.member);
}

static void Fields(Codec& c, CoordinatorState::Member& member) {
  std::optional<int64_t> left;
  if (member.left) left = member.last_step;
  c("member", member.id);
  c("request", member.request);
  c("left", left);
  c("left_early", member.left_early);
  c("first_step", member.life.first_step);
  c("first_epoch", member.life.epoch);
  if (!c.reads()) return;
  member.left = left.has_value();
  if (member.left) member.last_step = *left;
}

namespace {

absl::Status CheckHosts(const HostTable::State& hosts) {
  std::set<HostClaim> seen;
  for (const HostTable::Host& host : hosts.hosts) {
    const HostClaim& claim = host.claim;
    if (!claim.machine.empty() && seen.insert(claim).second) continue;
    return InvalidArgumentError("host ", seen.size(), " of ",
                                hosts.hosts.size(),
                                " in the state has no machine, or the claim "
                                "of another host");
  }
  return absl::OkStatus();
}

absl::Status CheckLobby(const std::vector<LobbyGathered>& lobby) {
  for (size_t i = 0; i < lobby.size(); ++i) {
    if (lobby[i].index == static_cast<int32_t>(i)) continue;
    return InvalidArgumentError("answer ", i, " of the lobby has the index ",
                                lobby[i].index);
  }
  return absl::OkStatus();
}

// Checks that each layer is in the model, and may have had factors.
absl::Status CheckLost(const FactorReports::Lost& lost, const Job& job) {
  for (const auto& [layer, worker] : lost) {
    if (layer >= 0 && layer < std::ssize(job.model()) &&
        job.layers[layer].has_factors) {
      continue;
    }
    return InvalidArgumentError("layer ", layer,
                                " has lost its factors in the state, and the "
                                "model has no such layer with factors");
  }
  return absl::OkStatus();
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

absl::Status CheckState(const CoordinatorState& state) {
  const Job& job = *state.epoch.job;
  NEREUS_TRY(CheckMembers(state));
  NEREUS_TRY(CheckEpochMembers(state.epoch.members, job));
  NEREUS_TRY(CheckHosts(state.hosts));
  return CheckLost(state.lost_factors, job);
}

}  // namespace

// A job that has not begun, or failed before it had begun, has no epoch.
static void Fields(Codec& c, CoordinatorState& state) {
  c("state", state.state);
  c("reason", state.reason);
  c("lobby", state.lobby);
  c.Verify([&] { return CheckLobby(state.lobby); });
  const bool may_lack_epoch =
      state.state == JobState::kWaiting || state.state == JobState::kFailed;
  if (c.reads() ? !c.Has("job") && may_lack_epoch
                : state.epoch.job == nullptr) {
    return;
  }
  CopyJob(c, state.epoch.job, state.epoch.explanations);
  c("members", state.members);
  c("next_rank", state.next_rank);
  c("all_from_base", state.epoch.all_from_base);
  c("workers_from_base", state.epoch.workers_from_base);
  c("turns", state.epoch.turns);
  c("broken_links", state.epoch.broken_links);
  c("epoch_members", state.epoch.members);
  c("stretches", state.checkpoints.stretches);
  c("newest", state.checkpoints.newest);
  c("restarted_in", state.checkpoints.restarted_in);
  c("damaged", state.checkpoints.damaged);
  c("checkpoint_wanted", state.checkpoint_wanted);
  c.AtMost("hosts", kHostsMax);
  c("hosts", state.hosts.hosts);
  c("split", state.hosts.split);
  c("first_gathered", state.gatherings.first);
  c("newest_gathered", state.gatherings.newest);
  c("lost_factors", state.lost_factors);
  c.Verify([&] { return CheckState(state); });
}

std::string EncodeState(const CoordinatorState& state) {
  return Encoded<v1::CoordinatorState>(state).SerializeAsString();
}

absl::StatusOr<CoordinatorState> DecodeState(const std::string& bytes) {
  v1::CoordinatorState message;
  if (message.ParseFromString(bytes)) return Decoded<CoordinatorState>(message);
  return InvalidArgumentError(bytes.size(),
                              " bytes that are not a coordinator's state");
}

}  // namespace nereus
