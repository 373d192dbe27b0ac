#include "server/coordinator/join_brake.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nereus {

bool JoinBrake::Vacancy::IsOf(const JoinRequest& request) const {
  if (request.role != role) return false;
  if (role == Role::kShard) return request.shard == shard;
  const bool same_number =
      launch_rank.has_value() && launch_rank == request.launch_rank;
  return same_number || name == request.name;
}

std::deque<JoinBrake::Vacancy>::const_iterator JoinBrake::FindVacancy(
    const JoinRequest& request) const {
  return absl::c_find_if(vacancies_, [&](const Vacancy& vacancy) {
    return vacancy.IsOf(request);
  });
}

absl::Duration JoinBrake::WaitOf(const JoinRequest& request, bool job_waits,
                                 absl::Time now) const {
  const bool is_server = request.role == Role::kShard;
  if (share_ == 0 || (job_waits && is_server)) return absl::ZeroDuration();
  if (FindVacancy(request) != vacancies_.end()) return absl::ZeroDuration();
  if (!job_waits && !ends_.empty()) return absl::InfiniteDuration();
  const absl::Time free_at =
      job_waits ? ranks_last_until_ - kRanksAtOnce * share_ * kEndCostMin
                : free_at_;
  return std::max(absl::ZeroDuration(), free_at - now);
}

std::string JoinBrake::WhyWait(absl::Duration wait) const {
  if (wait == absl::InfiniteDuration()) {
    return "waits until the job goes on without a process that joined lately "
           "and has just ended";
  }
  return absl::StrFormat(
      "waits %.0f s, because %s the steps for %.1f s: processes that join may "
      "stop them for 1/%d of the time",
      std::max(1.0, absl::ToDoubleSeconds(absl::Ceil(wait, absl::Seconds(1)))),
      last_was_end_ ? "processes that joined lately ended soon, and stopped"
                    : "processes that have just joined stopped",
      absl::ToDoubleSeconds(last_cost_), share_);
}

void JoinBrake::Hold(Newcomer newcomer, CoordinatorOutbox& out) {
  std::erase_if(waiting_, [&](const Newcomer& each) {
    if (each.request.incarnation != newcomer.request.incarnation) return false;
    out.push_back(EndSession{each.session});
    return true;
  });
  waiting_.push_back(std::move(newcomer));
}

bool JoinBrake::EndWait(SessionId session) {
  return std::erase_if(waiting_, [&](const Newcomer& each) {
           return each.session == session;
         }) > 0;
}

void JoinBrake::NoteMessage(SessionId session, absl::Time now) {
  for (Newcomer& each : waiting_) {
    if (each.session == session) each.heard_at = now;
  }
}

// The process may live, and then joins again in another session.
void JoinBrake::DropSilent(absl::Duration lease, absl::Time now,
                           CoordinatorOutbox& out) {
  std::erase_if(waiting_, [&](const Newcomer& each) {
    if (now - each.heard_at <= lease) return false;
    Refuse(each.session,
           CancelledError(each.request.name, " sent nothing for ",
                          absl::FormatDuration(lease), " while it waited"),
           out);
    return true;
  });
}

void JoinBrake::OnJoin(const JoinRequest& request, absl::Time now) {
  join_counts_ = join_counts_ || FindVacancy(request) == vacancies_.end();
  join_since_ = join_since_.value_or(now);
}

void JoinBrake::OnEnd(const MemberRecord& member, absl::Time since,
                      absl::Time now) {
  const absl::Time admitted_at = member.times.admitted_at;
  // The others wait for a worker's first round, however long that takes.
  absl::Duration before = absl::ZeroDuration();
  if (member.is_worker() && admitted_at > absl::InfinitePast()) {
    before = std::min(member.times.took_part_at, since) - admitted_at;
  }
  before = std::max(before, absl::ZeroDuration());
  const absl::Duration cost =
      member.join_cost + before + std::max(now - since, kEndCostMin);
  if (now - admitted_at >= std::max(share_ * cost, kOldAfter)) {
    vacancies_.push_back({member.id.role, member.request.shard,
                          member.request.name, member.request.launch_rank});
    if (vacancies_.size() > kVacanciesMax) vacancies_.pop_front();
    return Excuse(now);
  }
  ends_.push_back({admitted_at + share_ * member.join_cost, before, since});
  ranks_last_until_ =
      std::max(ranks_last_until_, admitted_at) + share_ * kEndCostMin;
}

void JoinBrake::Excuse(absl::Time now) {
  if (join_since_.has_value()) join_since_ = now;
  for (End& end : ends_) end.since = now;
}

void JoinBrake::OnEpoch(MemberList& roster, absl::Time now) {
  if (join_counts_ || !ends_.empty()) {
    last_cost_ = absl::ZeroDuration();
    last_was_end_ = !ends_.empty();
  }
  const absl::Duration join =
      std::max(now - join_since_.value_or(now), kJoinCostMin);
  if (std::exchange(join_counts_, false)) {
    free_at_ = std::max(free_at_, now) + share_ * join;
    last_cost_ += join;
  }
  join_since_.reset();
  for (MemberRecord& member : roster.members()) {
    if (member.admitted) continue;
    member.join_cost = join;
    const auto vacancy = FindVacancy(member.request);
    if (vacancy != vacancies_.end()) vacancies_.erase(vacancy);
  }
  for (const End& end : std::exchange(ends_, {})) {
    const absl::Duration cost =
        end.before + std::max(now - end.since, kEndCostMin);
    free_at_ = std::max(free_at_, end.paid_from) + share_ * cost;
    last_cost_ += cost;
  }
}

void JoinBrake::Delay(absl::Duration pause) {
  if (join_since_.has_value()) *join_since_ += pause;
  for (End& end : ends_) end.since += pause;
  for (Newcomer& each : waiting_) each.heard_at += pause;
}

}  // namespace nereus
