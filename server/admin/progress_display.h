#pragma once

#include <ostream>
#include <string>

#include "absl/time/time.h"

namespace nereus {

// Shows one line of progress that changes, among lines that stay. On a terminal
// it draws the line again in place. Elsewhere it writes a new line now and
// then. Thread-compatible.
class ProgressDisplay {
 public:
  // `out` isn't owned and must outlive this.
  ProgressDisplay(std::ostream* out, bool is_terminal)
      : out_(out), is_terminal_(is_terminal) {}

  // Shows `text` as progress, if it is new, and if the last line of progress is
  // old enough: a fifth of a second on a terminal, otherwise two seconds.
  void Show(const std::string& text, absl::Time now);

  // Writes a line that stays, above the progress.
  void PrintLine(const std::string& line);

  // Removes the progress from a terminal.
  void Clear();

 private:
  std::ostream* const out_;
  const bool is_terminal_;
  bool is_drawn_ =
      // True: the cursor is behind the text, on a terminal.
      false;
  // Last text.
  std::string shown_;
  // Time of the last text.
  absl::Time shown_at_ = absl::InfinitePast();
};

}  // namespace nereus
