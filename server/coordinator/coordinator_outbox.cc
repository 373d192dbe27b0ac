#include "server/coordinator/coordinator_outbox.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nereus {

bool EpochInForce::IsFromBase(PeerId member) const {
  return all_from_base || (member.role == Role::kWorker &&
                           absl::c_count(workers_from_base, member.rank) > 0);
}

EpochStart EpochInForce::StartFor(PeerId member) const {
  EpochStart start;
  start.self = member;
  start.from_base = IsFromBase(member);
  start.job = job;
  start.explanations = explanations;
  start.epoch_members = members;
  start.broken_links = broken_links;
  return start;
}

void Refuse(SessionId session, absl::Status why, CoordinatorOutbox& out) {
  // Two refusals are no warning. If a member counts as dead (kCancelled), Drop
  // has logged the warning. The other one comes from a finished job
  // (kOutOfRange).
  const bool is_bad = !absl::IsCancelled(why) && !absl::IsOutOfRange(why);
  out.push_back(
      Announce{is_bad, absl::StrCat("refused a process: ", why.message())});
  out.push_back(SendToMember{session, Refusal{std::move(why)}});
  out.push_back(EndSession{session});
}

void TellOver(SessionId session, const JobOver& over, CoordinatorOutbox& out) {
  out.push_back(SendToMember{session, over});
  out.push_back(EndSession{session});
}

}  // namespace nereus
