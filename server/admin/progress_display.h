#pragma once

#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "common/base/logging.h"

namespace nereus {

// Returns a line of nereusctl on standard error, with a line feed: `text`
// itself or, with LogFormat::kJson, a log line.
std::string UserLine(LogFormat format, LogLevel level, const LogFields& fields,
                     const std::string& text);

// Shows one line of progress that changes, among lines that stay. On a terminal
// it draws the line again in place. Elsewhere it writes a new line, every 2 s
// at most. Thread-compatible.
class ProgressDisplay {
 public:
  // `out` isn't owned and must outlive this. With LogFormat::kJson, all lines
  // are log lines in JSON, and none is drawn in place.
  ProgressDisplay(std::ostream* out, bool is_terminal,
                  LogFormat format = LogFormat::kText)
      : out_(out),
        is_terminal_(is_terminal && format == LogFormat::kText),
        format_(format) {}

  // Shows `text` as progress, if it differs from the line that is shown, and if
  // that line is old enough: a fifth of a second on a terminal, otherwise two
  // seconds.
  void Show(const std::string& text, absl::Time now);

  // Writes a line that stays. On a terminal, the line replaces the progress
  // until Show draws it again.
  void PrintLine(const std::string& line);

  // Writes a line of a process's standard error, with the name of the process
  // in front. With LogFormat::kJson, a JSON object stays as it is.
  void PrintLineOf(const std::string& process, const std::string& line);

  // Removes the progress from a terminal.
  void Clear();

 private:
  std::ostream* const out_;
  const bool is_terminal_;
  const LogFormat format_;
  // True if the terminal shows shown_, with the cursor behind it.
  bool is_drawn_ = false;
  // Last text.
  std::string shown_;
  // Time of the last text.
  absl::Time shown_at_ = absl::InfinitePast();
};

}  // namespace nereus
