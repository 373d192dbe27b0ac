#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/coordinator/coordinator.h"

namespace nereus {
namespace {

// Nothing happens for so long only if this process stands still: ticks come
// more often.
const absl::Duration kPauseMin = absl::Seconds(1);

std::string DescribePlan(const Job& job) {
  std::map<Scheme, int> layers;
  for (size_t layer = 0; layer < job.model().size(); ++layer) {
    ++layers[job.routes[layer].scheme];
  }
  return absl::StrJoin(layers, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " by ", SchemeName(entry.first));
  });
}

}  // namespace

std::string Coordinator::NameOf(const Member& member) const {
  return member.id.role == Role::kShard
             ? PeerName(member.id)
             : absl::StrCat("worker ", member.request.name);
}

std::string Coordinator::Describe(const Member& member) const {
  const bool is_shard = member.id.role == Role::kShard;
  return absl::StrCat(NameOf(member), " (",
                      is_shard ? member.request.name + " " : "", "at ",
                      member.request.data_address, ")");
}

std::string Coordinator::DescribeMissing() const {
  if (state_ == JobState::kFinished || state_ == JobState::kFailed) return "";
  if (state_ == JobState::kRunning && AllLeft()) {
    const std::optional<int64_t> round = LastCheckpointToCome();
    if (!round.has_value()) return "";
    return absl::StrCat("job ", options_.job,
                        " is done but for its last "
                        "checkpoint, of round ",
                        *round, ", which is being written");
  }
  std::vector<std::string> missing;
  if (state_ == JobState::kRunning) {
    if (!target_.has_value()) return "";
    for (const Member& member : members_) {
      if (!member.admitted || member.said.has_value()) continue;
      missing.push_back(absl::StrCat("the report of ", Describe(member)));
    }
  }
  const int wanted =
      state_ == JobState::kRunning ? options_.min_workers : options_.workers;
  if (WorkersHere() < wanted) {
    missing.push_back(
        absl::StrCat(wanted - WorkersHere(), " of ", wanted, " workers"));
  }
  // Copies serve for those that are not here.
  const bool all_wanted = state_ == JobState::kGathering || shard_lost_;
  for (int shard = 0; all_wanted && shard < options_.shards; ++shard) {
    const bool here = std::any_of(
        members_.begin(), members_.end(),
        [&](const Member& m) { return m.id == PeerId::Shard(shard); });
    if (!here) {
      missing.push_back(absl::StrCat("shard ", shard, " of ", options_.shards));
    }
  }
  if (missing.empty()) return "";
  std::vector<std::string> here;
  for (const Member& member : members_) {
    if (!member.left.has_value()) here.push_back(Describe(member));
  }
  return absl::StrCat(
      "job ", options_.job, " waits for ", absl::StrJoin(missing, ", "),
      "; here: ", here.empty() ? "nobody" : absl::StrJoin(here, ", "));
}

JobStatus Coordinator::Status(absl::Time now) const {
  JobStatus status;
  status.job = options_.job;
  status.id = options_.job_id;
  status.epoch = job_ == nullptr ? 0 : job_->epoch;
  status.state = state_;
  status.reason = reason_;
  if (job_ != nullptr) {
    status.step = BegunStep();
    status.plan = DescribePlan(*job_);
    status.partial = job_->partial();
  }
  if (begun_steps_.size() > 1) {
    const auto& [from, first] = begun_steps_.front();
    const auto& [to, last] = begun_steps_.back();
    status.steps_per_second =
        static_cast<double>(last - first) / absl::ToDoubleSeconds(to - from);
  }
  status.waiting = DescribeMissing();
  status.workers = options_.workers;
  status.shards = options_.shards;
  for (const Member& member : members_) {
    status.members.push_back(
        {member.id, member.request.name, member.request.data_address,
         member.heartbeat.round, now - member.heard, member.left.has_value(),
         member.heartbeat.stored_bytes, member.heartbeat.chunks,
         member.heartbeat.stall, ""});
    if (!member.heartbeat.stall.has_value()) continue;
    status.members.back().stalled_layer =
        job_->layers[member.heartbeat.stall->layer].name;
  }
  if (checkpoints_.newest().has_value()) {
    status.checkpoint_round = checkpoints_.newest()->round;
    status.checkpoint_contributions = checkpoints_.newest()->contributions;
    status.checkpoint_bytes = checkpoints_.newest()->bytes();
  }
  if (job_ != nullptr && job_->options.backup)
    status.shard_servers = job_->shard_servers;
  status.checkpoint_wanted = checkpoint_wanted_;
  status.checkpoint_failure = checkpoint_failure_;
  std::sort(status.members.begin(), status.members.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return status;
}

void Coordinator::TellRecovery(bool was_restarted, int64_t begun_step,
                               absl::Time now, CoordinatorOutbox& out) {
  std::vector<std::string> back;
  if (was_restarted) back.push_back("the coordinator");
  for (const Member& member : members_) {
    const bool joins = !member.admitted;
    if (joins && away_.erase(NameOf(member)) > 0)
      back.push_back(NameOf(member));
  }
  const auto lost = std::exchange(lost_, {});
  // Between members that both were there all the time.
  const auto stayed = [&](const Member* member) {
    return member != nullptr && lost.count(NameOf(*member)) == 0 &&
           std::count(back.begin(), back.end(), NameOf(*member)) == 0;
  };
  std::vector<std::string> links;
  for (const Link& link : reset_links_) {
    const Member* const first = Find(link.first);
    const Member* const second = Find(link.second);
    if (!stayed(first) || !stayed(second)) continue;
    links.push_back(absl::StrCat(NameOf(*first), " and ", NameOf(*second)));
  }
  if (lost.empty() && back.empty() && links.empty()) return;
  std::string text = absl::StrCat("epoch ", job_->epoch, ": the job goes on");
  absl::Time first = now;
  std::vector<std::string> names;
  for (const auto& [name, heard_at] : lost) {
    names.push_back(name);
    first = std::min(first, heard_at);
  }
  if (!names.empty()) {
    absl::StrAppend(
        &text, " ",
        absl::StrFormat("%.1f s", absl::ToDoubleSeconds(now - first)),
        " after it heard from ", absl::StrJoin(names, ", "), " last");
  }
  if (!back.empty()) {
    absl::StrAppend(&text, "; ", absl::StrJoin(back, ", "),
                    back.size() == 1 ? " is back" : " are back");
  }
  if (!links.empty()) {
    absl::StrAppend(&text, "; ", absl::StrJoin(links, ", "),
                    " lost their connection, and make another");
  }
  absl::StrAppend(&text, "; ", job_->worker_count(), " of ", options_.workers,
                  " workers, ", Count(Role::kShard), " of ", options_.shards,
                  " servers; ");
  if (all_from_base_) {
    const int64_t again =
        std::max<int64_t>(0, begun_step - job_->first_step + 1);
    absl::StrAppend(&text, "back to the checkpoint of round ", job_->base_round,
                    ": step ", job_->first_step, " is next, ", again,
                    again == 1 ? " step is" : " steps are", " done again");
  } else {
    absl::StrAppend(&text, "no step is lost, step ", job_->first_step,
                    " is next");
  }
  out.push_back(Announce{true, std::move(text)});
}

bool Coordinator::everyone_knows() const {
  return silent_.empty() &&
         std::none_of(members_.begin(), members_.end(), [](const Member& m) {
           return m.session.has_value() || (m.admitted && !m.told);
         });
}

void Coordinator::NoticePause(absl::Time now) {
  const absl::Duration pause = now - std::exchange(awake_, now);
  if (pause < kPauseMin) return;
  for (Member& member : members_) {
    member.heard += pause;
    member.missed_after += pause;
    member.asked_at += pause;
  }
  // What is heard now may have been said before the pause.
  for (Claim& claim : claims_) claim.since += pause;
  for (auto& [incarnation, until] : released_) until += pause;
  gives_up_at_ += pause;
}

void Coordinator::OnSavedAgain(absl::Time now) {
  for (Member& member : members_) {
    member.asked_at = std::max(member.asked_at, now);
  }
}

void Coordinator::Refuse(SessionId session, absl::Status why,
                         CoordinatorOutbox& out) {
  // Of one that was counted as dead it was said then.
  const bool is_bad = !absl::IsCancelled(why) && !absl::IsOutOfRange(why);
  out.push_back(
      Announce{is_bad, absl::StrCat("refused a process: ", why.message())});
  out.push_back(SendToMember{session, Refusal{std::move(why)}});
  out.push_back(EndSession{session});
}

}  // namespace nereus
