#include "server/admin/screen.h"

#include <sys/ioctl.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace nereus {
namespace {

// Codes of terminals (ECMA-48).
constexpr absl::string_view kToTop = "\x1b[H";        // Cursor to row 1.
constexpr absl::string_view kClearLine = "\x1b[K\n";  // To the line's end.
constexpr absl::string_view kClearBelow = "\x1b[J";   // To the screen's end.
constexpr absl::string_view kClearAll = "\x1b[2J";

// Size of a terminal that does not tell its size.
constexpr int kRows = 24;
constexpr int kColumns = 80;

}  // namespace

std::string FitToTerminal(const std::string& text, int rows, int columns) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const auto count = std::ssize(lines);
  std::string fitted;
  for (int i = 0; i < count; ++i) {
    if (i == rows - 1 && count > rows) {
      absl::StrAppend(&fitted, "... ", count - i, " more lines\n");
      break;
    }
    absl::StrAppend(&fitted, lines[i].substr(0, columns), "\n");
  }
  return fitted;
}

void Screen::Show(const std::string& text, bool is_last) {
  if (terminal_ == -1) {
    *out_ << (is_first_ ? "" : "\n") << text << std::flush;
    is_first_ = false;
    return;
  }
  winsize size = {};
  if (ioctl(terminal_, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) {
    size.ws_row = kRows;
    size.ws_col = kColumns;
  }
  // The last row stays empty: a line feed there would scroll the screen.
  const std::string shown =
      is_last ? text : FitToTerminal(text, size.ws_row - 1, size.ws_col);
  *out_ << (is_first_ ? kClearAll : "") << kToTop
        << absl::StrReplaceAll(shown, {{"\n", kClearLine}}) << kClearBelow
        << std::flush;
  is_first_ = false;
}

}  // namespace nereus
