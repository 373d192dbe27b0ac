#include "server/admin/prefixed_lines.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace nereus {
namespace {

// Control sequences of ECMA-48: colours from red to cyan, and the default.
constexpr int kFirstColour = 31;
constexpr int kColours = 6;
constexpr char kDefaultColour[] = "\x1b[0m";

}  // namespace

void PrefixedLines::Write(int worker, absl::string_view line) {
  line = absl::StripSuffix(line, "\r");
  const size_t redrawn = line.rfind('\r');
  if (redrawn != absl::string_view::npos) line.remove_prefix(redrawn + 1);
  std::string prefix = absl::StrCat("[worker-", worker, "]");
  if (is_terminal_) {
    prefix = absl::StrCat("\x1b[", kFirstColour + worker % kColours, "m",
                          prefix, kDefaultColour);
  }
  *out_ << absl::StrCat(prefix, " ", line, "\n") << std::flush;
}

}  // namespace nereus
