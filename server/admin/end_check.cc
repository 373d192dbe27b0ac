#include "server/admin/end_check.h"

#include <optional>
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
// Time between two questions that no exit has raised.
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

// True if this has happened to `worker` since a time (wall clock).
bool HasEvent(const JobStatus& status, LogEvent event, int worker,
              absl::Time since) {
  const std::string name = absl::StrCat("worker ", worker);
  return absl::c_any_of(status.events, [&](const JobStatus::Event& each) {
    return each.event == event && each.member == name && each.at >= since;
  });
}

// True if the worker has left the job.
bool HasLeft(const JobStatus& status, const LocalProcess& child) {
  return HasEvent(status, LogEvent::kMemberLeft, child.worker,
                  child.started_at) ||
         HasEvent(status, LogEvent::kMemberLeftEarly, child.worker,
                  child.started_at) ||
         absl::c_any_of(status.members, [&](const auto& member) {
           return member.id.role == Role::kWorker && member.left &&
                  member.name == absl::StrCat(child.worker);
         });
}

}  // namespace

// Look is called for each line that a program writes, so it has a limit for
// questions that it may have to repeat.
void EndCheck::Look(absl::Span<LocalProcess> processes,
                    const std::string& coordinator, bool is_finished,
                    absl::Time now) {
  std::optional<absl::StatusOr<JobStatus>> answer;
  const auto ask = [&]() -> const absl::StatusOr<JobStatus>& {
    if (!answer.has_value()) answer = fetch_(coordinator);
    if (answer->ok()) has_begun_ |= (*answer)->state != JobState::kWaiting;
    return *answer;
  };
  const bool is_due = is_finished || now - asked_at_ >= kAskPeriod;
  if (is_due) asked_at_ = now;
  const auto ends = absl::c_count_if(
      processes, [](const auto& each) { return each.exit.has_value(); });
  const bool is_new = ends > std::exchange(ends_, ends);
  if (!has_begun_ && (is_new || (ends > 0 && is_due))) ask();
  for (LocalProcess& child : processes) {
    const bool has_ended = child.exit.has_value();
    if (child.is_server || child.seen == LocalProcess::Seen::kJudged ||
        child.seen == LocalProcess::Seen::kLeftEarly) {
      continue;
    }
    if (!has_ended) {
      if (exit_decides_ && is_due) LookAtRestart(child, ask, is_finished, now);
    } else if (!exit_decides_) {
      if (child.exit->ok() && !child.is_done) LookForEarlyEnd(child, ask);
    } else if (child.exit->ok()) {
      LookAtGoodEnd(child, ask, is_finished, now);
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

// Without an answer, the next Look asks again: the coordinator's last status
// comes with its own end.
void EndCheck::LookForEarlyEnd(LocalProcess& child, Ask ask) {
  const absl::StatusOr<JobStatus>& status = ask();
  if (!status.ok()) return;
  child.seen = HasEvent(*status, LogEvent::kMemberLeftEarly, child.worker,
                        child.started_at)
                   ? LocalProcess::Seen::kLeftEarly
                   : LocalProcess::Seen::kJudged;
}

// A worker that is active right after its program has ended has not left. The
// second look spares a program that trains on in the background, below a shell
// that has ended.
void EndCheck::LookAtGoodEnd(LocalProcess& child, Ask ask, bool is_finished,
                             absl::Time now) {
  const bool is_first = child.seen != LocalProcess::Seen::kLeftBehind;
  const bool is_due = is_finished || now - child.since >= kAskAgainAfter;
  if (!is_first && !is_due) return;
  const absl::StatusOr<JobStatus>& status = ask();
  const JobStatus::Member* const active =
      status.ok() ? FindActive(*status, child.worker) : nullptr;
  const bool is_removed =
      status.ok() &&
      HasEvent(*status, LogEvent::kMemberLost, child.worker, child.ended_at);
  child.seen = LocalProcess::Seen::kJudged;
  if (is_first && !is_removed) {
    if (active != nullptr && status->state == JobState::kRunning) {
      child.seen = LocalProcess::Seen::kLeftBehind;
    }
    return;
  }
  if (active != nullptr && active->since_heartbeat < kSilence) return;
  if (!is_removed && status.ok() && HasLeft(*status, child)) return;
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
