#pragma once

#include <ostream>
#include <string>

#include "absl/time/time.h"

namespace nereus {

// One line that changes while a job runs, among others that stay. On a terminal
// the line is drawn again in place; elsewhere it is written now and then.
// Thread-compatible.
class ProgressDisplay {
 public:
  // `out` isn't owned and must outlive this.
  ProgressDisplay(std::ostream* out, bool is_terminal)
      : out_(out), is_terminal_(is_terminal) {}

  // Shows `text` as the progress, if it differs from what is shown and the last
  // time was long enough ago: on a terminal a fifth of a second, otherwise two
  // seconds.
  void Show(const std::string& text, absl::Time now);

  // Writes a line that stays, above the progress.
  void PrintLine(const std::string& line);

  // Takes the progress off a terminal; elsewhere it does nothing.
  void Clear();

 private:
  std::ostream* const out_;
  const bool is_terminal_;
  bool is_drawn_ = false;  // On a terminal: the cursor stands after the text.
  std::string shown_;
  absl::Time shown_at_ = absl::InfinitePast();
};

}  // namespace nereus
