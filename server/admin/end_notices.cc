#include "server/admin/end_notices.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

// Time that a process may run after another worker, or after the job, has ended
// before EndNotices tells the user.
constexpr absl::Duration kTellTime = absl::Seconds(3);

bool IsRunningWorker(const LocalProcess& child) {
  return !child.is_server && !child.exit.has_value();
}

}  // namespace

void EndNotices::Tell(absl::Span<LocalProcess> processes,
                      std::optional<absl::Time> finished_at, absl::Time now) {
  if (finished_at.has_value()) {
    TellOfLateEnds(processes, *finished_at, now);
  } else if (exit_decides_ && absl::c_any_of(processes, IsRunningWorker)) {
    TellOfEarlyEnds(processes, now);
  }
}

// A program that ends before it joins looks like one that has done its part.
void EndNotices::TellOfEarlyEnds(absl::Span<LocalProcess> processes,
                                 absl::Time now) {
  for (LocalProcess& child : processes) {
    if (child.is_told || !child.is_done) continue;
    if (now - child.since < kTellTime) continue;
    child.is_told = true;
    display_->PrintLine(
        absl::StrCat(child.name,
                     " has ended with code 0 while others run; if "
                     "it did not join the job, they wait for it"));
  }
}

void EndNotices::TellOfLateEnds(absl::Span<const LocalProcess> processes,
                                absl::Time finished_at, absl::Time now) {
  if (is_late_told_ || now - finished_at < kTellTime) return;
  is_late_told_ = true;
  std::vector<std::string> names;
  for (const LocalProcess& child : processes) {
    if (IsRunningWorker(child)) names.push_back(child.name);
  }
  if (names.empty()) return;
  const std::string list = absl::StrJoin(names, ", ");
  display_->PrintLine("the job is finished; waiting for the end of " + list);
}

}  // namespace nereus
