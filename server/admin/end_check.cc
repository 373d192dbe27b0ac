#include "server/admin/end_check.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Time between the end of a program and the second question. If the session of
// the program has no heartbeat for kSilence by then, the worker is gone.
constexpr absl::Duration kAskAgainAfter = absl::Seconds(2);
constexpr absl::Duration kSilence = absl::Milliseconds(1500);

// True if the worker has the name that `nereusctl run` gives: its index.
bool HasGivenName(const JobStatus::Member& worker) {
  int index = 0;
  return absl::SimpleAtoi(worker.name, &index);
}

// Returns the member that runs as `worker` and has not left the job; null if
// there is none.
const JobStatus::Member* FindActive(const JobStatus& status, int worker) {
  const auto found = absl::c_find_if(status.members, [&](const auto& member) {
    return member.id.role == Role::kWorker && !member.left &&
           member.name == absl::StrCat(worker);
  });
  return found == status.members.end() ? nullptr : &*found;
}

}  // namespace

void EndCheck::Look(absl::Span<LocalProcess> processes,
                    const std::string& coordinator, bool is_finished,
                    absl::Time now) const {
  for (LocalProcess& child : processes) {
    if (child.is_server || child.seen == LocalProcess::Seen::kJudged) continue;
    if (!child.exit.has_value()) {
      LookAtRestart(child, coordinator, is_finished, now);
    } else if (child.exit->ok()) {
      LookAtGoodEnd(child, coordinator, now);
    } else {
      LookAtError(child, coordinator);
    }
  }
}

void EndCheck::LookAtRestart(LocalProcess& child,
                             const std::string& coordinator, bool is_finished,
                             absl::Time now) const {
  if (!child.is_restart || child.seen == LocalProcess::Seen::kMember) return;
  child.is_late = is_finished;
  if (is_finished) return;
  const absl::StatusOr<JobStatus> status = fetch_(coordinator);
  const JobStatus::Member* const active =
      status.ok() ? FindActive(*status, child.worker) : nullptr;
  // The process before may still count as a member, which sends nothing.
  const bool is_member =
      active != nullptr && active->since_heartbeat < now - child.since;
  // A program may give its worker another name, so it may be any member.
  const bool may_be_member =
      status.ok() && absl::c_any_of(status->members, [](const auto& member) {
        return member.id.role == Role::kWorker && !HasGivenName(member);
      });
  if (is_member || may_be_member) child.seen = LocalProcess::Seen::kMember;
}

// A worker that is active right after its program has ended has not left. The
// second look spares a program that trains on in the background, below a shell
// that has ended.
void EndCheck::LookAtGoodEnd(LocalProcess& child,
                             const std::string& coordinator,
                             absl::Time now) const {
  const bool is_first = child.seen != LocalProcess::Seen::kLeftBehind;
  if (!is_first && now - child.since < kAskAgainAfter) return;
  child.seen = LocalProcess::Seen::kJudged;
  const absl::StatusOr<JobStatus> status = fetch_(coordinator);
  const JobStatus::Member* const active =
      status.ok() ? FindActive(*status, child.worker) : nullptr;
  if (is_first) {
    if (active != nullptr && status->state == JobState::kRunning) {
      child.seen = LocalProcess::Seen::kLeftBehind;
    }
    return;
  }
  if (active != nullptr && active->since_heartbeat < kSilence) return;
  child.is_done = false;
  child.mistake =
      "ended with code 0 without leaving the job (Client::Leave, in Python "
      "nereus.torch.shutdown)";
}

// If the coordinator does not answer, LocalJob knows whether the job has
// finished.
void EndCheck::LookAtError(LocalProcess& child,
                           const std::string& coordinator) const {
  child.seen = LocalProcess::Seen::kJudged;
  if (!child.is_restart) return;
  const absl::StatusOr<JobStatus> status = fetch_(coordinator);
  if (!status.ok()) return;
  int workers = 0;
  int left = 0;
  for (const JobStatus::Member& member : status->members) {
    workers += member.id.role == Role::kWorker ? 1 : 0;
    left += member.left ? 1 : 0;
  }
  // Without any worker in the list, all have died, and none has left.
  const bool all_left = left > 0 && left == workers;
  child.is_late = all_left || status->state == JobState::kFinished;
}

}  // namespace nereus
