#include "server/coordinator/job_description.h"

#include <map>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

// Returns what the job waits for. While the job runs, this is called only in a
// change of epoch, for which members must report.
std::vector<std::string> MissingMembers(const JobView& view) {
  const CoordinatorOptions& options = view.options;
  const MemberList& roster = view.roster;
  const bool runs = view.state == JobState::kRunning;
  std::vector<std::string> missing;
  for (const MemberRecord& member : roster.members()) {
    if (!runs || !member.admitted || member.report.has_value()) continue;
    missing.push_back(absl::StrCat("the report of ", member.Describe()));
  }
  const int wanted = runs ? options.spec.min_workers : options.spec.workers;
  const int more = wanted - roster.WorkersHere();
  if (more > 0) {
    missing.push_back(
        absl::StrCat(more, more == 1 ? " more worker (" : " more workers (",
                     wanted, " needed)"));
  }
  // While the job runs, it need not wait for a lost server if backups have
  // taken over.
  const bool needs_all = !runs || view.epochs.Has(ChangeReason::kShardLost);
  for (int shard = 0; needs_all && shard < options.spec.shards; ++shard) {
    if (roster.Find(PeerId::Shard(shard)) != nullptr) continue;
    missing.push_back(
        absl::StrCat("shard ", shard, " of ", options.spec.shards));
  }
  // A job that goes back waits for the checkpoint that it goes back to.
  if (!runs || !view.epochs.Has(ChangeReason::kShardLost)) return missing;
  for (const int64_t round : view.checkpoints.completing_rounds()) {
    missing.push_back(absl::StrCat("the manifest of round ", round));
  }
  const std::optional<int64_t> damaged = view.checkpoints.setting_aside();
  if (damaged.has_value()) {
    missing.push_back(
        absl::StrCat("a checkpoint in place of the damaged one of round ",
                     *damaged, ", to go back to"));
  }
  return missing;
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

std::string DescribeMissing(const JobView& view) {
  if (IsOver(view.state)) return "";
  const bool runs = view.state == JobState::kRunning;
  if (runs && view.roster.AllLeft()) {
    const std::optional<int64_t> round = view.last.AwaitedRound();
    if (!round.has_value()) return "";
    return absl::StrCat(
        "job ", view.options.spec.name,
        " is finished except for its last checkpoint, of round ", *round,
        LacksServer(*view.epochs.job(), view.roster)
            ? ", which waits for the place of a lost server to be taken"
            : ", which the servers write now");
  }
  if (runs && !view.epochs.target().has_value()) return "";
  const std::vector<std::string> missing = MissingMembers(view);
  if (missing.empty()) return "";
  std::vector<std::string> here;
  for (const MemberRecord& member : view.roster.members()) {
    if (!member.has_left()) here.push_back(member.Describe());
  }
  return absl::StrCat("job ", view.options.spec.name, " waits for ",
                      absl::StrJoin(missing, ", "), "; members now: ",
                      here.empty() ? "none" : absl::StrJoin(here, ", "));
}

void TellWaiting(const JobView& view, MemberList& roster, absl::Time now,
                 CoordinatorOutbox& out) {
  const std::string missing = DescribeMissing(view);
  if (missing.empty()) return;
  for (MemberRecord& member : roster.members()) {
    const bool waits = !member.admitted || member.has_left() ||
                       view.epochs.target().has_value();
    if (!waits || !member.session.has_value()) continue;
    const absl::Duration past = now - member.times.notified_at;
    if (past < view.options.waiting_notice_interval) continue;
    member.times.notified_at = now;
    member.Send(Waiting{missing}, out);
  }
}

std::string DescribeEnd(const CoordinatorOptions& options, JobState state,
                        int64_t last_step, int64_t saved_round) {
  const bool stops = state == JobState::kStopped;
  const std::string end = absl::StrCat(
      "job ", options.spec.name, stops ? " was stopped" : " is finished",
      " after step ", last_step, stops ? ", as all workers left early" : "",
      "; its parameters are ");
  if (!options.has_checkpoints) {
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

JobStatus DescribeJob(const JobView& view, absl::Time now) {
  JobStatus status;
  status.job = view.options.spec.name;
  status.id = view.options.job_id;
  status.state = view.state;
  status.reason = view.reason;
  const Job* const job = view.epochs.job().get();
  if (job != nullptr) {
    status.epoch = job->epoch;
    status.steps.begun = view.epochs.BegunStep();
    status.plan.schemes = DescribePlan(*job);
    status.steps.partial = job->partial();
    if (job->options.backup) status.shard_servers = job->shard_servers;
    const std::optional<KnownTimes>& times = view.epochs.in_force().times;
    if (times.has_value()) status.steps.predicted = times->predicted;
    DescribeLayers(*job, view.epochs.in_force().explanations, status);
  }
  status.waiting = DescribeMissing(view);
  status.lease = view.options.lease();
  status.workers = view.options.spec.workers;
  status.shards = view.options.spec.shards;
  for (const MemberRecord& member : view.roster.members()) {
    const Heartbeat& last = member.heartbeat;
    status.steps.begun =
        std::max(status.steps.begun, member.last_step.value_or(kInitialRound));
    status.members.push_back(
        {member.id, member.request.name, member.request.data_address,
         last.round, now - member.times.heard_at, member.has_left(),
         last.stored_bytes, last.chunks, last.stall, "", member.host,
         view.epochs.hosts().IsSplit(member.request.incarnation), last.activity,
         std::nullopt, absl::ZeroDuration(), last.work});
    if (!last.stall.has_value()) continue;
    status.members.back().stalled_layer = job->layers[last.stall->layer].name;
  }
  absl::c_sort(status.members,
               [](const auto& a, const auto& b) { return a.id < b.id; });
  const CheckpointLedger& checkpoints = view.checkpoints;
  if (checkpoints.newest().has_value()) {
    status.checkpoint.round = checkpoints.newest()->round;
    status.checkpoint.contributions = checkpoints.newest()->contributions;
    status.checkpoint.bytes = checkpoints.newest()->bytes();
  }
  status.checkpoint.wanted = checkpoints.wanted();
  status.checkpoint.failure = checkpoints.failure();
  status.checkpoint.damage = checkpoints.DescribeDamaged();
  return status;
}

}  // namespace nereus
