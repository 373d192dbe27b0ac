#include "common/flags/job_file.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"

namespace nereus {
namespace {

// Largest number of bytes of a bad line that a message shows.
constexpr size_t kShownBytesMax = 64;

std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", Printable(text.substr(0, kShownBytesMax)), "\"");
}

// Returns the line without its comment, which begins with '#' at the start of
// the line or after a blank. Another '#' is part of a value.
absl::string_view WithoutComment(absl::string_view line) {
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '#' && (i == 0 || absl::ascii_isspace(line[i - 1]))) {
      return line.substr(0, i);
    }
  }
  return line;
}

}  // namespace

absl::StatusOr<std::vector<OptionLine>> ParseOptionLines(
    absl::string_view text) {
  std::vector<OptionLine> found;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(WithoutComment(line));
    if (line.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const std::string name(absl::StripAsciiWhitespace(parts.first));
    if (!absl::StrContains(line, '=')) {
      return InvalidArgumentError("line ", number, ": ", Shown(line),
                                  " is not NAME = VALUE");
    }
    if (absl::c_any_of(found, [&](const auto& l) { return l.name == name; })) {
      return InvalidArgumentError("line ", number, ": ", Printable(name),
                                  " is set more than once");
    }
    found.push_back(
        {number, name, std::string(absl::StripAsciiWhitespace(parts.second))});
  }
  return found;
}

// Setting stops at the first bad line.
absl::StatusOr<std::vector<std::string>> ParseJobText(absl::string_view text,
                                                      JobSpec& spec) {
  std::vector<std::string> names;
  const auto lines = NEREUS_TRY(ParseOptionLines(text));
  for (const OptionLine& line : lines) {
    const JobOption* const option = FindJobOption(line.name);
    if (option == nullptr) {
      std::vector<std::string> known;
      for (const JobOption& each : JobOptionTable()) known.push_back(each.name);
      return InvalidArgumentError("line ", line.number, ": ", Shown(line.name),
                                  " is not an option of a job",
                                  Suggest(line.name, known));
    }
    const absl::Status set = option->set(line.value, spec);
    if (!set.ok()) {
      return InvalidArgumentError("line ", line.number, ": ", line.name, ": ",
                                  set.message());
    }
    names.push_back(line.name);
  }
  return names;
}

absl::StatusOr<std::vector<std::string>> ReadJobFile(const std::string& path,
                                                     JobSpec& spec) {
  const std::string text = NEREUS_TRY(ReadTextFile(path));
  auto names = ParseJobText(text, spec);
  if (names.ok()) return names;
  return InvalidArgumentError(path, ", ", names.status().message());
}

// Leaves out options without an effect, because the program that reads the file
// would log a line about each.
std::string JobText(const JobSpec& spec) {
  std::string text;
  for (const JobOption& option : JobOptionTable()) {
    if (!option.WhyIdle(spec).empty()) continue;
    absl::StrAppend(&text, option.name, " = ", option.get(spec), "\n");
  }
  return text;
}

}  // namespace nereus
