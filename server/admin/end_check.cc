#include "server/admin/end_check.h"

#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Time between the end of a program and the second question. If the session of
// the program has no heartbeat for kSilence by then, the worker is gone.
constexpr absl::Duration kAskAgainAfter = absl::Seconds(2);
constexpr absl::Duration kSilence = absl::Milliseconds(1500);
// Time between two questions about programs that were started again.
constexpr absl::Duration kAskPeriod = absl::Milliseconds(200);

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

void EndCheck::NoteLine(absl::Span<LocalProcess> processes,
                        absl::string_view line) {
  const bool is_removed = absl::StrContains(line, " was removed: ");
  if (!is_removed && !absl::StrContains(line, " left early, after ")) return;
  for (LocalProcess& child : processes) {
    const std::string name = absl::StrCat("] worker ", child.worker, " ");
    const bool has_ended = child.exit.has_value();
    if (child.is_server || child.is_replaced ||
        !absl::StrContains(line, name)) {
      continue;
    }
    if (!is_removed) {
      child.seen = LocalProcess::Seen::kLeftEarly;
    } else if (has_ended && child.exit->ok()) {
      child.seen = LocalProcess::Seen::kRemoved;
    }
  }
}

// Look is called for each line that a program writes, so it has a limit for its
// questions about programs that have not joined yet.
void EndCheck::Look(absl::Span<LocalProcess> processes,
                    const std::string& coordinator, bool is_finished,
                    absl::Time now) {
  std::optional<absl::StatusOr<JobStatus>> answer;
  const auto ask = [&]() -> const absl::StatusOr<JobStatus>& {
    if (!answer.has_value()) answer = fetch_(coordinator);
    return *answer;
  };
  const bool is_due = is_finished || now - restarts_at_ >= kAskPeriod;
  if (is_due) restarts_at_ = now;
  for (LocalProcess& child : processes) {
    if (child.is_server || child.seen == LocalProcess::Seen::kJudged ||
        child.seen == LocalProcess::Seen::kLeftEarly) {
      continue;
    }
    if (!child.exit.has_value()) {
      if (is_due) LookAtRestart(child, ask, is_finished, now);
    } else if (child.exit->ok()) {
      LookAtGoodEnd(child, ask, now);
    } else {
      LookAtError(child, ask);
    }
  }
}

void EndCheck::LookAtRestart(LocalProcess& child, Ask ask, bool is_finished,
                             absl::Time now) {
  if (!child.is_restart || child.seen == LocalProcess::Seen::kMember) return;
  child.is_late = is_finished;
  if (is_finished) return;
  const absl::StatusOr<JobStatus>& status = ask();
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
void EndCheck::LookAtGoodEnd(LocalProcess& child, Ask ask, absl::Time now) {
  const bool is_removed = child.seen == LocalProcess::Seen::kRemoved;
  const bool is_first =
      !is_removed && child.seen != LocalProcess::Seen::kLeftBehind;
  if (!is_first && !is_removed && now - child.since < kAskAgainAfter) return;
  child.seen = LocalProcess::Seen::kJudged;
  if (!is_removed) {
    const absl::StatusOr<JobStatus>& status = ask();
    const JobStatus::Member* const active =
        status.ok() ? FindActive(*status, child.worker) : nullptr;
    if (is_first) {
      if (active != nullptr && status->state == JobState::kRunning) {
        child.seen = LocalProcess::Seen::kLeftBehind;
      }
      return;
    }
    if (active != nullptr && active->since_heartbeat < kSilence) return;
  }
  child.is_done = false;
  child.mistake =
      "ended with code 0 without leaving the job (Client::Leave, in Python "
      "nereus.torch.shutdown)";
}

// If the coordinator does not answer, LocalJob knows whether the job has
// finished.
void EndCheck::LookAtError(LocalProcess& child, Ask ask) {
  child.seen = LocalProcess::Seen::kJudged;
  if (!child.is_restart) return;
  const absl::StatusOr<JobStatus>& status = ask();
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
