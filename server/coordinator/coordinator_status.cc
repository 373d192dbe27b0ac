// The coordinator's answers to operators and to waiting members.

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/coordinator/coordinator.h"

namespace nereus {
namespace {

// Sets JobStatus::layers and layers_left_out.
void DescribeLayers(const Job& job,
                    const std::vector<RouteExplanation>& explanations,
                    JobStatus& status) {
  for (size_t i = 0; i < job.layers.size() && i < explanations.size(); ++i) {
    status.plan.layers.push_back({job.layers[i].name, job.routes[i],
                                  explanations[i], job.layers[i].parameters,
                                  static_cast<int32_t>(i)});
  }
  absl::c_stable_sort(status.plan.layers, [](const auto& a, const auto& b) {
    return a.bytes() > b.bytes();
  });
  const int layers = static_cast<int>(status.plan.layers.size());
  status.plan.layers_left_out = std::max(0, layers - kStatusLayersMax);
  status.plan.layers.resize(layers - status.plan.layers_left_out);
}

}  // namespace

std::string DescribePlan(const Job& job) {
  std::map<Scheme, int> layers;
  for (size_t layer = 0; layer < job.model().size(); ++layer) {
    ++layers[job.routes[layer].scheme];
  }
  return absl::StrJoin(layers, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " by ", SchemeName(entry.first));
  });
}

// While the job runs, this is called only in a change of epoch, for which
// members must report.
std::vector<std::string> Coordinator::Missing() const {
  const bool runs = state_ == JobState::kRunning;
  std::vector<std::string> missing;
  for (const MemberRecord& member : roster_.members()) {
    if (!runs || !member.admitted || member.report.has_value()) continue;
    missing.push_back(absl::StrCat("the report of ", member.Describe()));
  }
  const int wanted = runs ? options_.spec.min_workers : options_.spec.workers;
  const int more = wanted - roster_.WorkersHere();
  if (more > 0) {
    missing.push_back(
        absl::StrCat(more, more == 1 ? " more worker (" : " more workers (",
                     wanted, " needed)"));
  }
  // While the job runs, it need not wait for a lost server if backups have
  // taken over.
  const bool needs_all = !runs || epochs_.Has(ChangeReason::kShardLost);
  for (int shard = 0; needs_all && shard < options_.spec.shards; ++shard) {
    if (roster_.Find(PeerId::Shard(shard)) != nullptr) continue;
    missing.push_back(
        absl::StrCat("shard ", shard, " of ", options_.spec.shards));
  }
  // A job that goes back waits for the checkpoint that it goes back to.
  if (!runs || !epochs_.Has(ChangeReason::kShardLost)) return missing;
  for (const int64_t round : checkpoints_.completing_rounds()) {
    missing.push_back(absl::StrCat("the manifest of round ", round));
  }
  const std::optional<int64_t> damaged = checkpoints_.setting_aside();
  if (damaged.has_value()) {
    missing.push_back(
        absl::StrCat("a checkpoint in place of the damaged one of round ",
                     *damaged, ", to go back to"));
  }
  return missing;
}

std::string Coordinator::DescribeMissing() const {
  if (IsOver(state_)) return "";
  const bool runs = state_ == JobState::kRunning;
  if (runs && roster_.AllLeft()) {
    const std::optional<int64_t> round = AwaitedRound();
    if (!round.has_value()) return "";
    return absl::StrCat(
        "job ", options_.spec.name,
        " is finished except for its last checkpoint, of round ", *round,
        LacksServer(*epochs_.job(), roster_)
            ? ", which waits for the place of a lost server to be taken"
            : ", which the servers write now");
  }
  if (runs && !epochs_.target().has_value()) return "";
  const std::vector<std::string> missing = Missing();
  if (missing.empty()) return "";
  std::vector<std::string> here;
  for (const MemberRecord& member : roster_.members()) {
    if (!member.has_left()) here.push_back(member.Describe());
  }
  return absl::StrCat(
      "job ", options_.spec.name, " waits for ", absl::StrJoin(missing, ", "),
      "; members now: ", here.empty() ? "none" : absl::StrJoin(here, ", "));
}

void Coordinator::TellWaiting(absl::Time now, CoordinatorOutbox& out) {
  const std::string missing = DescribeMissing();
  if (missing.empty()) return;
  for (MemberRecord& member : roster_.members()) {
    const bool waits =
        !member.admitted || member.has_left() || epochs_.target().has_value();
    if (!waits || !member.session.has_value()) continue;
    const absl::Duration past = now - member.times.notified_at;
    if (past < options_.waiting_notice_interval) continue;
    member.times.notified_at = now;
    member.Send(Waiting{missing}, out);
  }
}

std::string Coordinator::DescribeEnd() const {
  const bool stops = state_ == JobState::kStopped;
  const int64_t last_step = LastStep();
  const int64_t saved_round = checkpoints_.saved_round();
  const std::string end = absl::StrCat(
      "job ", options_.spec.name, stops ? " was stopped" : " is finished",
      " after step ", last_step, stops ? ", as all workers left early" : "",
      "; its parameters are ");
  if (!options_.has_checkpoints) {
    return absl::StrCat(end, "not saved: --checkpoint-dir=DIR keeps them");
  }
  if (saved_round >= last_step) {
    return absl::StrCat(end, "in the checkpoint of round ", saved_round,
                        stops ? ", and --restore=latest goes on from it" : "");
  }
  return absl::StrCat(end, "NOT SAVED; ",
                      saved_round > kInitialRound
                          ? absl::StrCat("the last checkpoint that was made is "
                                         "of round ",
                                         saved_round)
                          : "no checkpoint was made");
}

JobStatus Coordinator::Status(absl::Time now) const {
  JobStatus status;
  status.job = options_.spec.name;
  status.id = options_.job_id;
  status.state = state_;
  status.reason = reason_;
  const Job* const job = epochs_.job().get();
  if (job != nullptr) {
    status.epoch = job->epoch;
    status.steps.begun = epochs_.BegunStep();
    status.plan.schemes = DescribePlan(*job);
    status.steps.partial = job->partial();
    if (job->options.backup) status.shard_servers = job->shard_servers;
    const std::optional<KnownTimes>& times = epochs_.in_force().times;
    if (times.has_value()) status.steps.predicted = times->predicted;
    DescribeLayers(*job, epochs_.in_force().explanations, status);
  }
  status.waiting = DescribeMissing();
  status.lease = options_.lease();
  status.workers = options_.spec.workers;
  status.shards = options_.spec.shards;
  for (const MemberRecord& member : roster_.members()) {
    const Heartbeat& last = member.heartbeat;
    status.steps.begun =
        std::max(status.steps.begun, member.last_step.value_or(kInitialRound));
    status.members.push_back(
        {member.id, member.request.name, member.request.data_address,
         last.round, now - member.times.heard_at, member.has_left(),
         last.stored_bytes, last.chunks, last.stall, "", member.host,
         epochs_.hosts().IsSplit(member.request.incarnation), last.activity,
         std::nullopt, absl::ZeroDuration(), last.work});
    if (!last.stall.has_value()) continue;
    status.members.back().stalled_layer = job->layers[last.stall->layer].name;
  }
  absl::c_sort(status.members,
               [](const auto& a, const auto& b) { return a.id < b.id; });
  if (checkpoints_.newest().has_value()) {
    status.checkpoint.round = checkpoints_.newest()->round;
    status.checkpoint.contributions = checkpoints_.newest()->contributions;
    status.checkpoint.bytes = checkpoints_.newest()->bytes();
  }
  status.checkpoint.wanted = checkpoints_.wanted();
  status.checkpoint.failure = checkpoints_.failure();
  status.checkpoint.damage = checkpoints_.DescribeDamaged();
  for (const JoinBrake::Newcomer& each : brake_.waiting()) {
    status.newcomers.push_back(absl::StrCat(
        each.request.name, " ", brake_.WhyWait(WaitOf(each.request, now))));
  }
  tally_.Fill(status, now);
  return status;
}

}  // namespace nereus
