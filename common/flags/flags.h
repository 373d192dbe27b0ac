#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/protocol/job_spec.h"

// Parts that the command lines of all Nereus programs share.

namespace nereus {

// Returns the name of the environment variable of a flag: NEREUS_LEARNING_RATE
// for "learning-rate". Comments and messages call it the flag's variable.
std::string FlagVariable(const std::string& name);

// Mistake in the value of a flag, which ParseFlags catches. `what` continues a
// sentence that begins with the flag or its variable: " is \"x\", must be a
// number", ": \"x\" is not one of a, b".
class FlagError : public CLI::ParseError {
 public:
  FlagError(std::string flag, std::string given, const std::string& what)
      : CLI::ParseError("FlagError", what, CLI::ExitCodes::ValidationError),
        flag_(std::move(flag)),
        given_(std::move(given)) {}

  const std::string& flag() const { return flag_; }    // "--name".
  const std::string& given() const { return given_; }  // The value.

 private:
  std::string flag_;
  std::string given_;
};

// Adds a flag and its variable. If both are given, the command line wins.
// Parsing passes the given text to `set`. ParseFlags reports an error of `set`
// as a mistake of the command line: "--name: error". `value` is the default
// that --help shows.
CLI::Option* AddTextFlag(CLI::App& app, const std::string& name,
                         const std::string& value,
                         std::function<absl::Status(const std::string&)> set,
                         const std::string& help);

// Returns the number in `text`, the value of `flag` ("--name"): a whole number
// if T is a type of whole numbers. Throws FlagError if `text` is no number from
// `min` to `max`, as NaN is none.
template <typename T>
T NumberOf(const std::string& flag, const std::string& text, T min, T max) {
  std::conditional_t<std::is_integral_v<T>, int64_t, double> number = 0;
  const bool is_number = CLI::detail::lexical_cast(text, number);
  if (is_number && number >= min && number <= max) {
    return static_cast<T>(number);
  }
  const bool is_any = min == std::numeric_limits<T>::lowest() &&
                      max == std::numeric_limits<T>::max();
  throw FlagError(
      flag, text,
      absl::StrCat(" is \"", text, "\", must be a ",
                   is_any && std::is_integral_v<T> ? "whole number" : "number",
                   is_any ? "" : absl::StrCat(" from ", min, " to ", max)));
}

// Adds a flag for a number from `min` to `max`, both allowed: see NumberOf.
// `value` holds the default; parsing stores the given number in it. `value`
// must outlive `app`.
template <typename T>
CLI::Option* AddNumber(CLI::App& app, const std::string& name, T& value,
                       std::type_identity_t<T> min, std::type_identity_t<T> max,
                       const std::string& help) {
  const auto set = [flag = "--" + name, &value, min,
                    max](const std::string& text) {
    value = NumberOf<T>(flag, text, min, max);
    return absl::OkStatus();
  };
  return AddTextFlag(app, name, absl::StrCat(value), set, help)
      ->type_name(std::is_integral_v<T> ? "INT" : "FLOAT");
}

// Adds the flag --`name` and its variable. If both are given, the command line
// wins. `value` holds the default, which --help shows; parsing stores the given
// value in it. `value` must outlive `app`.
template <typename T>
CLI::Option* AddFlag(CLI::App& app, const std::string& name, T& value,
                     const std::string& help) {
  if constexpr (std::is_arithmetic_v<T>) {
    using Limits = std::numeric_limits<T>;
    return AddNumber(app, name, value, Limits::lowest(), Limits::max(), help);
  } else {
    return app.add_option("--" + name, value, help)
        ->envname(FlagVariable(name))
        ->capture_default_str();
  }
}

// Adds a flag that takes no value, and its variable. If the flag is given,
// parsing sets `value` to true.
inline CLI::Option* AddSwitch(CLI::App& app, const std::string& name,
                              bool& value, const std::string& help) {
  return app.add_flag("--" + name, value, help)->envname(FlagVariable(name));
}

// Returns the error for a value that is none of `choices`: kInvalidArgument,
// "\"x\" is not one of a, b".
absl::Status NoChoice(absl::string_view given,
                      const std::vector<std::string>& choices);

// Adds a flag with a text that `parse` turns into `value`. `text` is the
// default. REQUIRES: `parse` accepts `text`; `value` outlives `app`.
template <typename T>
CLI::Option* AddParsedFlag(CLI::App& app, const std::string& name, T& value,
                           absl::StatusOr<T> (*parse)(absl::string_view),
                           const std::string& text, const std::string& help) {
  value = *parse(text);
  return AddTextFlag(
      app, name, text,
      [&value, parse](const std::string& given) {
        value = NEREUS_TRY(parse(given));
        return absl::OkStatus();
      },
      help);
}

// Adds a flag that takes a key of `names` and stores that key's value in
// `value`. REQUIRES: `value` outlives `app`.
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
  const auto set = [&value, names, choices](const std::string& text) {
    const auto found = names.find(text);
    if (found == names.end()) return NoChoice(text, choices);
    value = found->second;
    return absl::OkStatus();
  };
  return AddTextFlag(app, name, given, set, help)
      ->type_name(absl::StrJoin(choices, "|"));
}

// Level and format of the log lines of a program.
struct LogFlags {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;

  // Sets the level and the format of this process.
  void Apply() const {
    SetLogLevel(level);
    SetLogFormat(format);
  }
};

// Adds --version, --log-level and --log-format.
void AddCommonFlags(CLI::App& app, const std::string& program, LogFlags& log);

// Adds --shared-memory, by which a user turns off the exchange of frames
// through shared memory.
void AddSharedMemoryFlag(CLI::App& app, bool& shared_memory);

// Adds --host, --listen, --connect-timeout, --control-port, --data-port and
// --http-port of a process that joins a job. The help says what the ports are
// for.
void AddAddressFlags(CLI::App& app, ProcessAddress& address,
                     absl::Duration& connect_timeout,
                     const std::string& control_help,
                     const std::string& data_help,
                     const std::string& http_help);

// Adds a flag for a whole number from 0 to 2^64 - 1.
CLI::Option* AddSeedFlag(CLI::App& app, const std::string& name, uint64_t& seed,
                         const std::string& help);

// Adds --node, the name of the host of a process that joins a job.
void AddNodeFlag(CLI::App& app, std::string& node);

// Adds a flag for each option of a job that `names` lists, or for all options
// if `names` is empty. `spec` holds the defaults, and parsing stores the given
// values in it. `spec` must outlive `app`.
void AddJobOptions(CLI::App& app, JobSpec& spec,
                   const std::vector<std::string>& names = {});

// Options of a job from the command line, the environment and a job file. If
// several of them set an option, the flag wins over the variable, the variable
// over the file of --job=FILE, and the file over the default.
struct JobFlags {
  JobSpec spec;                           // Values after parsing.
  std::vector<std::string> file_options;  // Names of options in the job file.
};

// Adds --job and a flag for each option of a job. `flags` must outlive `app`.
void AddJobFlags(CLI::App& app, JobFlags& flags);

// Returns an error if an option on the command line has no effect with the
// job's other options, such as --beta1 with --update=sgd. Of such options that
// a variable or the job file sets, RefuseIdleJobFlags only logs one line.
// `file_options`: see JobFlags. Errors: kInvalidArgument, with the flag.
absl::Status RefuseIdleJobFlags(const CLI::App& app, int argc, char** argv,
                                const JobSpec& spec,
                                const std::vector<std::string>& file_options);

// Parses the command line and the environment. Returns -1 if the program is to
// go on. Otherwise returns the exit code of the program: 0 after --help or
// --version, 1 if their text could not be written, 2 after a mistake. Prints
// the mistake with its flag or variable and, if a similar name exists, a
// suggestion. Logs a warning for each variable NEREUS_* that no Nereus program
// or test reads, and for each known variable that is empty. Calls `begin`, if
// it is given, after parsing and before these warnings: a long-running program
// applies its LogFlags there, and logs its first line.
int ParseFlags(CLI::App& app, int argc, char** argv,
               const std::function<void()>& begin = nullptr);

// Tells the user of a mistake in the command line, and returns the exit code of
// the program. The message is one line, the last one of the program: a log line
// with --log-format=json.
int RefuseCommandLine(const CLI::App& app, absl::string_view mistake);

// Returns "; did you mean X?" if X of `names` resembles `given`, and otherwise
// "".
std::string Suggest(absl::string_view given,
                    const std::vector<std::string>& names);

// Returns the flags that `add` adds to `app`, as "--name".
std::vector<std::string> FlagsAddedBy(CLI::App& app,
                                      const std::function<void()>& add);

// Returns kInvalidArgument if one of `flags` is on the command line. `why`
// completes the message "--flag does not count ...", as in "with --standalone".
// Of variables that set some of `flags`, RefuseFlags only logs one line,
// because a shell often sets variables for several programs. REQUIRES: `app`
// has parsed the command line.
absl::Status RefuseFlags(const CLI::App& app, int argc, char** argv,
                         const std::vector<std::string>& flags,
                         const std::string& why);

// Returns `message` with names of fields replaced by flags of `app`:
// "control_port is 0" becomes "--control-port is 0". `others` maps each field
// to its flag if the two have different names.
std::string WithFlagNames(const CLI::App& app, absl::string_view message,
                          const std::map<std::string, std::string>& others);

}  // namespace nereus
