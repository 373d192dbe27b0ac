#include "server/coordinator/coordinator_outbox.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nereus {

bool EpochInForce::IsFromBase(PeerId member) const {
  return all_from_base || (member.role == Role::kWorker &&
                           absl::c_count(workers_from_base, member.rank) > 0);
}

EpochStart EpochInForce::StartFor(PeerId member, absl::Duration lease) const {
  EpochStart start;
  start.self = member;
  start.from_base = IsFromBase(member);
  start.job = job;
  start.explanations = explanations;
  start.epoch_members = members;
  start.broken_links = broken_links;
  start.lease = lease;
  return start;
}

void AnnounceEpoch(const Job& job, absl::string_view new_plan,
                   CoordinatorOutbox& out) {
  const int64_t first_step = job.history.first_step;
  out.push_back(Announce{
      false,
      absl::StrCat("epoch ", job.epoch, " with ", job.worker_count(),
                   " workers begins at step ", first_step,
                   new_plan.empty() ? "" : ", with a new plan"),
      {LogEvent::kEpoch, first_step, "", static_cast<int64_t>(job.epoch)}});
  if (new_plan.empty()) return;
  out.push_back(Announce{false,
                         absl::StrCat("the new plan: ", new_plan),
                         {LogEvent::kPlan, first_step}});
}

void Refuse(SessionId session, absl::Status why, CoordinatorOutbox& out) {
  if (!absl::IsCancelled(why)) {
    // No warning if the job is finished (kOutOfRange).
    out.push_back(Announce{!absl::IsOutOfRange(why),
                           absl::StrCat("refused a process: ", why.message()),
                           {LogEvent::kRefused}});
  }
  out.push_back(SendToMember{session, Refusal{std::move(why)}});
  out.push_back(EndSession{session});
}

void TellOver(SessionId session, const JobOver& over, CoordinatorOutbox& out) {
  out.push_back(SendToMember{session, over});
  out.push_back(EndSession{session});
}

}  // namespace nereus
