#include "server/admin/progress_display.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace nereus {
namespace {

constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(200);
constexpr absl::Duration kLinePeriod = absl::Seconds(2);

// Control sequence of ECMA-48: go to the first column, erase the line.
constexpr char kEraseLine[] = "\r\x1b[K";

}  // namespace

// On a terminal, draws the progress again after PrintLine has erased it, even
// if its text is not new.
void ProgressDisplay::Show(const std::string& text, absl::Time now) {
  const absl::Duration period = is_terminal_ ? kTerminalPeriod : kLinePeriod;
  const bool is_due = now - shown_at_ >= period;
  const bool is_shown = text == shown_ && (is_drawn_ || !is_terminal_);
  if (!is_due || is_shown) return;
  shown_ = text;
  shown_at_ = now;
  if (is_terminal_) {
    *out_ << kEraseLine << text << std::flush;
    is_drawn_ = true;
  } else {
    PrintLine(text);
  }
}

void ProgressDisplay::PrintLine(const std::string& line) {
  Clear();
  *out_ << UserLine(format_, LogLevel::kInfo, {}, line) << std::flush;
}

void ProgressDisplay::PrintLineOf(const std::string& process,
                                  const std::string& line) {
  if (format_ == LogFormat::kJson && absl::StartsWith(line, "{")) {
    *out_ << line << std::endl;
  } else {
    PrintLine(absl::StrCat(process, ": ", line));
  }
}

std::string UserLine(LogFormat format, LogLevel level, const LogFields& fields,
                     const std::string& text) {
  if (format == LogFormat::kText) return text + "\n";
  LogContext context;
  context.role = "nereusctl";
  return FormatLogLine(format, context, absl::Now(), level, fields, text);
}

void ProgressDisplay::Clear() {
  if (!is_drawn_) return;
  *out_ << kEraseLine << std::flush;
  is_drawn_ = false;
}

}  // namespace nereus
