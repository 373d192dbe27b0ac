#include "server/admin/prefixed_lines.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace nereus {
namespace {

// Control sequences of ECMA-48: colours from red to cyan, and the default.
constexpr int kFirstColour = 31;
constexpr int kColours = 6;
constexpr char kDefaultColour[] = "\x1b[0m";

// Returns the last drawing that is not blank: a progress bar can end by erasing
// itself with spaces.
absl::string_view LastDrawn(absl::string_view line) {
  while (absl::ConsumeSuffix(&line, "\r")) {
  }
  absl::string_view last;
  for (const absl::string_view drawn : absl::StrSplit(line, '\r')) {
    const bool is_blank = absl::StripAsciiWhitespace(drawn).empty();
    if (last.empty() || !is_blank) last = drawn;
  }
  return last;
}

}  // namespace

void PrefixedLines::Write(int worker, absl::string_view line) {
  line = LastDrawn(line);
  if (format_ == LogFormat::kJson && absl::StartsWith(line, "{")) {
    *out_ << line << std::endl;
    return;
  }
  std::string prefix = absl::StrCat("[worker-", worker, "]");
  if (is_terminal_) {
    prefix = absl::StrCat("\x1b[", kFirstColour + worker % kColours, "m",
                          prefix, kDefaultColour);
  }
  *out_ << absl::StrCat(prefix, " ", line, "\n") << std::flush;
}

}  // namespace nereus
