#include "server/coordinator/departures.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/printable.h"

namespace nereus {
namespace {

// Name of the member, as an operator gives it: the name of a worker, or "shard
// 2".
std::string NameOf(const MemberRecord& member) {
  return member.is_worker() ? member.request.name : member.Name();
}

// True if `name` names the member. "worker a" also names the worker a.
bool IsNamed(const MemberRecord& member, absl::string_view name) {
  return name == NameOf(member) || name == member.Name();
}

}  // namespace

absl::StatusOr<bool> Departures::OnLeave(MemberRecord& member,
                                         const Leave& leave,
                                         CoordinatorOutbox& out) const {
  NEREUS_TRY(CheckStep("the last step", leave.last_step));
  if (!member.admitted) {
    return InvalidArgumentError(
        "it sent a Leave, which only members of the job may send");
  }
  if (!member.is_worker()) {
    if (!member.leaves_early) {
      out.push_back(
          Announce{false,
                   absl::StrCat(member.Name(), " asks to leave the job"),
                   {.event = LogEvent::kMemberLeft, .member = member.Name()}});
    }
    member.leaves_early = true;
    return false;
  }
  // The worker sent its Leave before it heard that it must drop its values.
  const bool is_undone = leave.epoch < epochs_.job()->epoch &&
                         epochs_.in_force().IsFromBase(member.id);
  if (is_undone || member.has_left()) return false;
  member.last_step = leave.last_step;
  member.leaves_early = leave.early;
  out.push_back(Announce{false,
                         absl::StrCat(member.Name(),
                                      leave.early ? " left early, after step "
                                                  : " left after its last "
                                                    "step, ",
                                      leave.last_step),
                         {.event = leave.early ? LogEvent::kMemberLeftEarly
                                               : LogEvent::kMemberLeft,
                          .step = leave.last_step,
                          .member = member.Name()}});
  return true;
}

absl::Status Departures::Ask(absl::string_view name, JobState state,
                             CoordinatorOutbox& out) const {
  if (state != JobState::kRunning) {
    return FailedPreconditionError("the job is ", JobStateName(state),
                                   ", not running");
  }
  std::vector<std::string> names;
  for (const MemberRecord& member : roster_.members()) {
    names.push_back(NameOf(member));
    if (!IsNamed(member, name)) continue;
    if (!member.admitted) {
      return FailedPreconditionError(member.Name(),
                                     " has not begun yet: end its process");
    }
    if (!member.is_worker() && member.id.rank == options_.own_shard) {
      return FailedPreconditionError(
          member.Name(),
          " is in the process of the coordinator, which cannot "
          "leave; a coordinator with --state can be ended and "
          "started again");
    }
    if (!member.is_worker() && !epochs_.job()->options.backup) {
      return FailedPreconditionError(
          member.Name(),
          " has no backup (--backup=1): without it the job "
          "would have to go back to a checkpoint");
    }
    if (!member.session.has_value()) {
      return UnavailableError(member.Name(), " has no session now: ask again");
    }
    member.Send(AskToLeave{}, out);
    out.push_back(
        Announce{false,
                 absl::StrCat("asks ", member.Name(), " to leave (drain)"),
                 {.event = LogEvent::kMemberLeft, .member = member.Name()}});
    return absl::OkStatus();
  }
  return NotFoundError("the job has no member \"", Printable(name),
                       "\"; its members are ",
                       names.empty() ? "none" : absl::StrJoin(names, ", "));
}

bool Departures::HasMember(absl::string_view name) const {
  return absl::c_any_of(roster_.members(), [&](const MemberRecord& member) {
    return !member.has_left() && IsNamed(member, name);
  });
}

MemberRecord* Departures::FindSpareServer() const {
  if (roster_.AllLeft()) return nullptr;
  for (MemberRecord& member : roster_.members()) {
    if (!member.is_worker() && member.leaves_early &&
        epochs_.HasEveryShard(/*without=*/member.id)) {
      return &member;
    }
  }
  return nullptr;
}

bool Departures::AllLeftEarly() const {
  return absl::c_all_of(roster_.members(), [](const MemberRecord& member) {
    return !member.is_worker() || member.leaves_early;
  });
}

}  // namespace nereus
