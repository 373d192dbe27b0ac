#include "server/admin/end_check.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Time between the end of a program and the second question. If the session of
// the program has no heartbeat for kSilence by then, the worker is gone.
constexpr absl::Duration kAskAgainAfter = absl::Seconds(2);
constexpr absl::Duration kSilence = absl::Milliseconds(1500);

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
  if (active != nullptr && active->since_heartbeat < now - child.since) {
    child.seen = LocalProcess::Seen::kMember;
  }
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
  const bool all_left =
      status->state == JobState::kRunning &&
      absl::c_none_of(status->members, [](const auto& member) {
        return member.id.role == Role::kWorker && !member.left;
      });
  child.is_late = all_left || status->state == JobState::kFinished;
}

}  // namespace nereus
