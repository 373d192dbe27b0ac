// Errors and warnings about command lines and the variables of flags.
//
// CLI11, the parser of command lines, reports a mistake as text, which often
// leaves out the flag or the value. Explain turns that text into "--flag is
// ..., must be ...". Read ParseFlags first, then Explain, ExplainUnexpected,
// WarnOfVariables. Programs call RefuseFlags and WithFlagNames after parsing,
// for checks of their own.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/exit_codes.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/flags/given_options.h"
#include "common/flags/variables.h"

extern char** environ;

namespace nereus {
namespace {

// Largest number of typing errors with which Suggest still takes a word for a
// misspelt name.
constexpr size_t kTyposMax = 2;

// Returns the number of letters to insert, remove or replace to turn `a` into
// `b` (optimal string alignment). Two neighbouring letters in the wrong order
// count once.
size_t Typos(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> typos(a.size() + 1,
                                         std::vector<size_t>(b.size() + 1));
  std::iota(typos[0].begin(), typos[0].end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    typos[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      typos[i][j] =
          std::min({typos[i - 1][j] + 1, typos[i][j - 1] + 1,
                    typos[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) typos[i][j] = std::min(typos[i][j], typos[i - 2][j - 2] + 1);
    }
  }
  return typos[a.size()][b.size()];
}

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : OptionsOf(app)) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back("--" + name);
    }
  }
  return flags;
}

// Returns "--flag=value" for the first flag that has the choice `value`; "" if
// no flag has it.
std::string FlagWithChoice(const CLI::App& app, const std::string& value) {
  for (const CLI::Option* option : OptionsOf(app)) {
    const std::vector<std::string> choices =
        absl::StrSplit(option->get_type_name(), '|');
    if (choices.size() > 1 && absl::c_linear_search(choices, value)) {
      return absl::StrCat(option->get_name(), "=", value);
    }
  }
  return "";
}

// Explains arguments that CLI11 did not expect. CLI11 lists them in reverse
// order and mixes values with flags. So the explanation names only the first
// unknown flag of the command line. Without one, it repeats CLI11's list.
std::string ExplainUnexpected(const CLI::App& app, const std::string& message,
                              int argc, char** argv) {
  const std::vector<std::string> flags = FlagsOf(app);
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    const std::string name(argument.substr(0, argument.find('=')));
    if (!absl::StartsWith(name, "--") || absl::c_linear_search(flags, name)) {
      continue;
    }
    const bool is_jobs = FindJobOption(name.substr(2)) != nullptr;
    return absl::StrCat("unknown flag ", name,
                        is_jobs ? ", which is the coordinator's alone: give "
                                  "it to nereus-server, or to nereusctl local"
                                : Suggest(name, flags));
  }
  std::vector<std::string> unknown = absl::StrSplit(
      message.substr(message.find(": ") + 2), ' ', absl::SkipEmpty());
  absl::c_reverse(unknown);
  return absl::StrCat("unknown argument", unknown.size() == 1 ? " " : "s ",
                      absl::StrJoin(unknown, " "));
}

// Explains that the command line begins with none of the program's commands.
std::string ExplainCommand(const CLI::App& app, int argc, char** argv) {
  if (argc < 2) return "no command is given";
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(/*filter=*/{})) {
    commands.push_back(command->get_name());
  }
  return absl::StrCat("unknown command ", argv[1], Suggest(argv[1], commands));
}

// Returns the part of `text` behind `mark`, or `otherwise` if `text` has no
// `mark`.
std::string After(const std::string& text, absl::string_view mark,
                  const std::string& otherwise = "") {
  const size_t at = text.find(mark.data(), 0, mark.size());
  return at == std::string::npos ? otherwise : text.substr(at + mark.size());
}

// Returns the value in "... = abc" or in "\"abc\" is not ...".
std::string ValueIn(const std::string& message) {
  if (absl::StrContains(message, " = ")) return After(message, " = ");
  const std::vector<std::string> parts = absl::StrSplit(message, '"');
  return parts.size() > 1 ? parts[1] : "";
}

// Returns a number without zeros at the end of its fraction: CLI11 shows 0.999
// as 0.999000.
std::string WithoutZeros(std::string number) {
  if (!absl::StrContains(number, ".")) return number;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

std::string Explain(const CLI::App& app, const CLI::ParseError& error, int argc,
                    char** argv) {
  const std::string message = error.what();
  const auto says = [&](absl::string_view part) {
    return absl::StrContains(message, part);
  };
  if (says("subcommand is required")) return ExplainCommand(app, argc, argv);
  if (says("was not expected") || says("were not expected")) {
    return ExplainUnexpected(app, message, argc, argv);
  }
  const size_t begin = message.find("--");
  if (begin == std::string::npos) return message;
  const size_t end = message.find_first_of(" :=,", begin);
  const std::string flag = message.substr(begin, end - begin);
  // If only the flag's variable has set the flag, the explanation names the
  // variable.
  const std::string variable = FlagVariable(flag.substr(2));
  const bool is_set = std::getenv(variable.c_str()) != nullptr;
  const std::string source = is_set && !IsOnCommandLine(flag, argc, argv)
                                 ? absl::StrCat("the variable ", variable)
                                 : flag;
  if (says("Could not convert")) {
    return absl::StrCat(source, " is \"", ValueIn(message),
                        "\", which is not a valid value: see --help");
  }
  if (says("At Most 1 required")) {
    return absl::StrCat(source, " is given more than once");
  }
  if (says("required") && says("missing")) {
    return absl::StrCat(source, " needs a value");
  }
  // CLI11 says "--flag: Value abc not in range 1 to 9".
  const std::string value = After(message, ": Value ");
  if (const size_t range = value.find(" not in range ");
      range != std::string::npos) {
    const std::pair<std::string, std::string> ends = absl::StrSplit(
        After(value, " not in range "), absl::MaxSplits(" to ", 1));
    return absl::StrCat(source, " is \"", value.substr(0, range),
                        "\", must be a number from ", WithoutZeros(ends.first),
                        " to ", WithoutZeros(ends.second));
  }
  if (says(" is required")) return message;
  // Other messages are "--flag: text"; the flag is replaced by its source.
  std::string text =
      absl::StrCat(source, ": ", After(message, ": ", /*otherwise=*/message));
  if (says("is not one of")) {
    const std::string other = FlagWithChoice(app, ValueIn(message));
    if (!other.empty()) absl::StrAppend(&text, "; did you mean ", other, "?");
  }
  return text;
}

// Sets the format of the log from --log-format, for mistakes that the parser
// finds before it has the value of that flag.
void SetFormatOfMistakes(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view value = argv[i];
    if (value == "--log-format" && i + 1 < argc) {
      value = argv[i + 1];
    } else if (!absl::ConsumePrefix(&value, "--log-format=")) {
      continue;
    }
    if (value == "json") SetLogFormat(LogFormat::kJson);
    if (value == "text") SetLogFormat(LogFormat::kText);
  }
}

// Logs a warning for each unknown variable NEREUS_* and each known variable
// that is empty. Variables of other Nereus programs count as known, because a
// shell often sets variables for several programs.
void WarnOfVariables(const CLI::App& app) {
  std::vector<std::string> known = TestVariables();
  for (const std::string& name : ProgramVariables()) known.push_back(name);
  for (const std::string& name : PackageVariables()) known.push_back(name);
  for (const std::string& flag : FlagsOf(app)) {
    known.push_back(FlagVariable(flag.substr(2)));
  }
  for (const std::string& flag : FlagsWithVariables()) {
    known.push_back(FlagVariable(flag));
  }
  for (const JobOption& option : JobOptionTable()) {
    known.push_back(FlagVariable(option.name));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    const auto& [name, value] = parts;
    if (!absl::StartsWith(name, "NEREUS_")) continue;
    if (!absl::c_linear_search(known, name)) {
      NEREUS_LOG(Warning) << "the variable " << name << " has no meaning"
                          << Suggest(name, known);
    } else if (value.empty()) {
      NEREUS_LOG(Warning) << "the variable " << name
                          << " is empty and does not count";
    }
  }
}

// Returns what is wrong with `value` if the option takes a number and the value
// is NaN; "" otherwise. `name`: the flag or variable that has the value.
std::string ExplainNan(const CLI::Option& option, absl::string_view name,
                       absl::string_view value) {
  double number = 0.0;
  if (!absl::StartsWith(option.get_type_name(), "FLOAT") ||
      !absl::SimpleAtod(value, &number) || !std::isnan(number)) {
    return "";
  }
  return absl::StrCat(name, " is \"", value, "\", must be a number");
}

// Explains the first flag, on the command line or in a variable, whose value
// CLI11 would misread. Returns "" if there is none.
//
// If a flag has no value, CLI11 takes the next argument as its value. A script
// with an unset variable gives "--data= --workers=4": --data would get the
// value "--workers=4", and the job would have 1 worker, the default. CLI11 also
// lets NaN pass each check of a range.
std::string ExplainMisread(const CLI::App& app, int argc, char** argv) {
  std::vector<const CLI::Option*> options = app.get_options();
  for (const CLI::App* command : app.get_subcommands(/*filter=*/{})) {
    const auto more = command->get_options();
    options.insert(options.end(), more.begin(), more.end());
  }
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--") break;
    const size_t end = argument.find('=');
    const auto option = absl::c_find_if(options, [&](const auto* each) {
      return each->check_name(std::string(argument.substr(0, end)));
    });
    if (!absl::StartsWith(argument, "--") || option == options.end()) continue;
    if (end == argument.size() - 1) {
      return absl::StrCat(argument,
                          " has no value: is a variable of the "
                          "shell not set? Without the flag, its default "
                          "counts");
    }
    const bool needs_value =
        (*option)->get_type_size() > 0 && (*option)->get_expected_min() > 0;
    if (end == absl::string_view::npos && needs_value && i + 1 < argc &&
        absl::StartsWith(argv[i + 1], "--")) {
      return absl::StrCat(argument, " needs a value before ", argv[i + 1]);
    }
    const absl::string_view value = end != absl::string_view::npos
                                        ? argument.substr(end + 1)
                                    : needs_value && i + 1 < argc ? argv[i + 1]
                                                                  : "";
    const std::string nan =
        ExplainNan(**option, argument.substr(0, end), value);
    if (!nan.empty()) return nan;
  }
  for (const CLI::Option* option : options) {
    const std::string& variable = option->get_envname();
    const char* const value =
        variable.empty() ? nullptr : std::getenv(variable.c_str());
    if (value == nullptr) continue;
    const std::string nan = ExplainNan(*option, variable, value);
    if (!nan.empty()) return nan;
  }
  return "";
}

}  // namespace

std::string Suggest(absl::string_view given,
                    const std::vector<std::string>& names) {
  std::string best;
  size_t fewest = kTyposMax + 1;
  for (const std::string& name : names) {
    const size_t typos = Typos(given, name);
    if (typos >= fewest) continue;
    fewest = typos;
    best = name;
  }
  return best.empty() ? "" : absl::StrCat("; did you mean ", best, "?");
}

int RefuseCommandLine(const CLI::App& app, absl::string_view mistake) {
  const std::string text = absl::StrCat(app.get_name(), ": ", mistake,
                                        absl::EndsWith(mistake, "?") ? "" : ".",
                                        " Run with --help for the flags.");
  if (GetLogFormat() == LogFormat::kJson) {
    NEREUS_LOG(Error, {LogEvent::kEnd}) << text;
  } else {
    std::cerr << text << std::endl;
  }
  return kExitUsage;
}

int ParseFlags(CLI::App& app, int argc, char** argv,
               const std::function<void()>& begin) {
  DropServiceVariables();
  SetFormatOfMistakes(argc, argv);
  const std::string missing = ExplainMisread(app, argc, argv);
  if (!missing.empty()) return RefuseCommandLine(app, missing);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      const int code = app.exit(error);
      if (std::cout.flush()) return code;
      std::cerr << app.get_name() << ": standard output cannot be written"
                << std::endl;
      return 1;
    }
    return RefuseCommandLine(app, Explain(app, error, argc, argv));
  }
  if (begin != nullptr) begin();
  WarnOfVariables(app);
  return -1;
}

std::vector<std::string> FlagsAddedBy(CLI::App& app,
                                      const std::function<void()>& add) {
  const auto before = static_cast<int64_t>(FlagsOf(app).size());
  add();
  const std::vector<std::string> after = FlagsOf(app);
  return {after.begin() + before, after.end()};
}

absl::Status RefuseFlags(const CLI::App& app, int argc, char** argv,
                         const std::vector<std::string>& flags,
                         const std::string& why) {
  std::vector<std::string> variables;
  for (const std::string& flag : flags) {
    if (IsOnCommandLine(flag, argc, argv)) {
      return InvalidArgumentError(flag, " does not count ", why);
    }
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (option == nullptr || option->count() == 0) continue;
    variables.push_back(FlagVariable(flag.substr(2)));
  }
  if (variables.empty()) return absl::OkStatus();
  const bool is_one = variables.size() == 1;
  NEREUS_LOG(Info) << (is_one ? "the variable " : "the variables ")
                   << absl::StrJoin(variables, ", ")
                   << (is_one ? " does not count " : " do not count ") << why;
  return absl::OkStatus();
}

// Goes over `message` word by word. Takes a word for the name of a field if it
// is the first word or has an underscore, and if no dash precedes it. In "batch
// is 0" the word "batch" names a field, in "the batch" it does not.
std::string WithFlagNames(const CLI::App& app, absl::string_view message,
                          const std::map<std::string, std::string>& others) {
  const std::vector<std::string> flags = FlagsOf(app);
  std::string text;
  bool is_first = true;
  for (size_t begin = 0; begin < message.size();) {
    size_t end = begin;
    while (end < message.size() &&
           (absl::ascii_isalnum(message[end]) || message[end] == '_')) {
      ++end;
    }
    const std::string word(message.substr(begin, end - begin));
    const std::string flag = "--" + absl::StrReplaceAll(word, {{"_", "-"}});
    const auto other = others.find(word);
    const bool is_flag = begin > 0 && message[begin - 1] == '-';
    const bool is_field =
        !is_flag && (is_first || absl::StrContains(word, "_"));
    if (is_field && other != others.end()) {
      text += other->second;
    } else {
      text += is_field && absl::c_linear_search(flags, flag) ? flag : word;
    }
    is_first = is_first && word.empty();
    if (end < message.size()) text += message[end];
    begin = end + 1;
  }
  return text;
}

}  // namespace nereus
