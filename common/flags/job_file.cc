#include "common/flags/job_file.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"

namespace nereus {
namespace {

constexpr size_t kShownBytesMax = 64;

std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", Printable(text.substr(0, kShownBytesMax)), "\"");
}

std::vector<std::string> OptionNames() {
  std::vector<std::string> names;
  for (const JobOption& option : JobOptionTable()) names.push_back(option.name);
  return names;
}

// Sets the option of one line, and adds its name to `names`.
absl::Status ParseLine(absl::string_view line, JobSpec& spec,
                       std::vector<std::string>& names) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(line, absl::MaxSplits('=', 1));
  const std::string name(absl::StripAsciiWhitespace(parts.first));
  if (!absl::StrContains(line, '=')) {
    return absl::InvalidArgumentError(
        absl::StrCat(Shown(line), " is not NAME = VALUE"));
  }
  const JobOption* const option = FindJobOption(name);
  if (option == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        Shown(name), " is no option of a job", Suggest(name, OptionNames())));
  }
  if (absl::c_linear_search(names, name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is set more than once"));
  }
  names.push_back(name);
  const absl::Status set =
      option->set(absl::StripAsciiWhitespace(parts.second), spec);
  return set.ok() ? set
                  : absl::InvalidArgumentError(
                        absl::StrCat(name, ": ", set.message()));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseJobText(absl::string_view text,
                                                      JobSpec& spec) {
  std::vector<std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::Status status = ParseLine(line, spec, names);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  return names;
}

absl::StatusOr<std::vector<std::string>> ReadJobFile(const std::string& path,
                                                     JobSpec& spec) {
  NEREUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto names = ParseJobText(text, spec);
  if (names.ok()) return names;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ", ", names.status().message()));
}

std::string JobText(const JobSpec& spec) {
  std::string text;
  for (const JobOption& option : JobOptionTable()) {
    if (!option.WhyIdle(spec).empty()) continue;
    absl::StrAppend(&text, option.name, " = ", option.get(spec), "\n");
  }
  return text;
}

}  // namespace nereus
