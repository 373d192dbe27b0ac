#include "common/flags/given_options.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/version.h"

namespace nereus {
namespace {

// Returns the options of the job file that differ from their defaults, and that
// neither a flag nor a variable sets.
std::vector<std::string> OptionsOfFile(const CLI::App& app,
                                       const JobFlags& job) {
  const JobSpec defaults;
  std::vector<std::string> options;
  for (const std::string& name : job.file_options) {
    const CLI::Option* const flag = app.get_option_no_throw("--" + name);
    const JobOption* const option = FindJobOption(name);
    if (option == nullptr || (flag != nullptr && flag->count() > 0)) continue;
    const std::string value = option->get(job.spec);
    if (value == option->get(defaults)) continue;
    options.push_back(absl::StrCat(name, "=", value));
  }
  return options;
}

}  // namespace

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app) {
  std::vector<const CLI::Option*> options = app.get_options();
  for (const CLI::App* subcommand : app.get_subcommands()) {
    const auto more = subcommand->get_options();
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

bool IsOnCommandLine(const std::string& flag, int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [&](const char* argument) {
    return argument == flag || absl::StartsWith(argument, flag + "=");
  });
}

std::string DescribeStart(const CLI::App& app, int argc, char** argv,
                          const JobFlags* job) {
  std::vector<std::string> flags;
  std::vector<std::string> variables;
  for (const CLI::Option* const option : OptionsOf(app)) {
    if (option->count() == 0 || option->get_envname().empty()) continue;
    const std::string value = absl::StrJoin(option->results(), ",");
    if (value == option->get_default_str()) continue;
    if (IsOnCommandLine(option->get_name(), argc, argv)) {
      flags.push_back(absl::StrCat(option->get_name(), "=", value));
    } else {
      variables.push_back(absl::StrCat(option->get_envname(), "=", value));
    }
  }
  const CLI::App* const parent = app.get_parent();
  std::string text =
      absl::StrCat(parent == nullptr ? "" : parent->get_name() + " ",
                   app.get_name(), " ", kVersion);
  const auto add = [&text](const std::string& origin,
                           const std::vector<std::string>& options) {
    if (options.empty()) return;
    absl::StrAppend(&text, "; ", origin, ": ", absl::StrJoin(options, " "));
  };
  add("command line", flags);
  add("variables", variables);
  if (job != nullptr && !job->file_options.empty()) {
    add(absl::StrCat("job file ",
                     absl::StrJoin(app.get_option("--job")->results(), "")),
        OptionsOfFile(app, *job));
  }
  return text;
}

}  // namespace nereus
