#include "server/process/job_log.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/logging.h"

namespace nereus {

void JobLog::Write(const Announce& line) {
  const LogLevel level = line.bad ? LogLevel::kWarning : LogLevel::kInfo;
  std::optional<absl::Duration> lasts = absl::ZeroDuration();
  if (line.fields.event == LogEvent::kRefused) {
    lasts = refusals_.Note(line.text, SteadyNow());
  }
  if (!lasts.has_value()) return;
  if (line.fields.epoch >= 0) {
    ChangeLogContext(
        [&](LogContext& context) { context.epoch = line.fields.epoch; });
  }
  const std::string text = absl::StrCat(line.text, LastsText(*lasts));
  WriteLog(level, line.fields, text);
  events_.push_back({absl::Now(), line.bad, text, line.fields.event});
  if (std::ssize(events_) > kStatusEventsMax) events_.pop_front();
}

void JobLog::WriteState(JobState state, const std::string& reason) {
  if (state == std::exchange(state_, state)) return;
  Write({false,
         absl::StrCat("job ", JobStateName(state), reason.empty() ? "" : ": ",
                      reason),
         {LogEvent::kJobState}});
}

}  // namespace nereus
