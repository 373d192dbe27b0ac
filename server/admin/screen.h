#pragma once

#include <ostream>
#include <string>

namespace nereus {

// Shows a text that changes. On a terminal it draws the text in place of the
// last one; elsewhere it writes one text after the other. Thread-compatible.
class Screen {
 public:
  // `out` is not owned and must outlive this. `terminal`: file descriptor of
  // the terminal that `out` writes to; -1: none.
  Screen(std::ostream* out, int terminal) : out_(out), terminal_(terminal) {}

  // Shows `text`, of lines that end with a line feed. `is_last`: the text stays
  // on the terminal, and is shown as a whole.
  void Show(const std::string& text, bool is_last);

 private:
  std::ostream* const out_;
  const int terminal_;
  bool is_first_ = true;  // True before the first text.
};

// Returns the part of `text` that a terminal of this size can show: each line
// cut after `columns` bytes (perhaps within a character, which terminals
// bear), and at most `rows` lines, of which the last says how many are missing.
std::string FitToTerminal(const std::string& text, int rows, int columns);

}  // namespace nereus
