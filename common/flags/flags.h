#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/logging.h"
#include "common/protocol/job_spec.h"

// What the command lines of all binaries share. For main files and commands
// alone.

namespace nereus {

// The variable of a flag in the environment: "learning-rate",
// NEREUS_LEARNING_RATE.
std::string FlagVariable(const std::string& name);

// Adds --`name`, which the environment may set too; the command line wins.
// `value` is the default, shown by --help, and is where the result goes.
template <typename T>
CLI::Option* AddFlag(CLI::App& app, const std::string& name, T& value,
                     const std::string& help) {
  return app.add_option("--" + name, value, help)
      ->envname(FlagVariable(name))
      ->capture_default_str();
}

// The same for a flag without a value.
inline CLI::Option* AddSwitch(CLI::App& app, const std::string& name,
                              bool& value, const std::string& help) {
  return app.add_flag("--" + name, value, help)->envname(FlagVariable(name));
}

// Adds --`name`, which takes one of `choices`, and hands the one that is given
// to `set`. `value`: the default, for --help.
CLI::Option* AddNamedChoice(CLI::App& app, const std::string& name,
                            const std::vector<std::string>& choices,
                            const std::string& value,
                            std::function<void(const std::string&)> set,
                            const std::string& help);

// The same for named values.
template <typename T>
CLI::Option* AddChoice(CLI::App& app, const std::string& name, T& value,
                       const std::map<std::string, T>& names,
                       const std::string& help) {
  std::string given;
  std::vector<std::string> choices;
  for (const auto& [text, each] : names) {
    if (each == value) given = text;
    choices.push_back(text);
  }
  return AddNamedChoice(
      app, name, choices, given,
      [&value, names](const std::string& text) { value = names.at(text); },
      help);
}

// --version and --log-level.
void AddCommonFlags(CLI::App& app, const std::string& program,
                    LogLevel& log_level);

void AddSharedMemoryFlag(CLI::App& app, bool& shared_memory);

// Adds a flag for each of these options of a job; for all if `names` is empty.
// `spec` has the defaults, and is where the values go.
void AddJobOptions(CLI::App& app, JobSpec& spec,
                   const std::vector<std::string>& names = {});

// A job as a program is told it. A flag wins over a variable, a variable over
// the file of --job=FILE, and the file over the default.
struct JobFlags {
  JobSpec spec;
  std::vector<std::string> file_options;  // Names of options that it sets.
};
void AddJobFlags(CLI::App& app, JobFlags& flags);

// OK, or kInvalidArgument: the flag of an option was typed that does not count
// beside the others, such as --beta1 with --update=sgd. Where a variable or the
// job file sets such an option, only a line is logged.
absl::Status RefuseIdleJobFlags(const CLI::App& app, int argc, char** argv,
                                const JobSpec& spec,
                                const std::vector<std::string>& file_options);

// Parses; -1: go on. Otherwise the program is to exit with this code: 0 after
// --help or --version, 2 after a usage error, each printed. An error names the
// flag as it was typed, or the variable that the value came from, and what may
// have been meant. Warns of variables NEREUS_* that no program of ours has, and
// of empty ones.
int ParseFlags(CLI::App& app, int argc, char** argv);

// "; did you mean X?", if one of `names` is like `given`; otherwise "".
std::string Suggest(absl::string_view given,
                    const std::vector<std::string>& names);

// The names of the flags that `add` adds to `app`.
std::vector<std::string> FlagsAddedBy(CLI::App& app,
                                      const std::function<void()>& add);

// OK unless the command line, which has been parsed, gives one of `flags`.
// `why` says why they do not count: "with --standalone". Variables are often
// set for several programs: of those, only a line is logged.
// Errors: kInvalidArgument.
absl::Status RefuseFlags(const CLI::App& app, int argc, char** argv,
                         const std::vector<std::string>& flags,
                         const std::string& why);

// `message` with the names of fields as those of flags: "control_port" as
// "--control-port", where `app` has such a flag. `others`: fields whose flags
// have other names.
std::string WithFlagNames(const CLI::App& app, absl::string_view message,
                          const std::map<std::string, std::string>& others);

}  // namespace nereus
