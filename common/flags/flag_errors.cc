// Errors and warnings about command lines and the variables of flags.
//
// FindMistake looks for mistakes that CLI11, the parser of command lines, would
// misread or report without the flag's name. A FlagError is a value that a flag
// refuses. Read ParseFlags first, then FindMistake, Explain, WarnOfVariables.
// Programs call RefuseFlags and WithFlagNames after parsing, for checks of
// their own.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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

std::string ExplainUnknownFlag(const CLI::App& app, const std::string& name) {
  const bool is_jobs = FindJobOption(name.substr(2)) != nullptr;
  return absl::StrCat("unknown flag ", name,
                      is_jobs ? ", which is the coordinator's alone: give it "
                                "to nereus-server, or to nereusctl local"
                              : Suggest(name, FlagsOf(app)));
}

// Explains arguments that CLI11 did not expect. It mixes values with flags, so
// the explanation names only the first unknown flag, if there is one.
std::string ExplainUnexpected(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  for (const std::string& argument : unknown) {
    if (!absl::StartsWith(argument, "--")) continue;
    return ExplainUnknownFlag(app, argument.substr(0, argument.find('=')));
  }
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

// Names the flag's variable instead of the flag if only the variable has set
// it.
std::string ExplainValue(const CLI::App& app, const FlagError& error, int argc,
                         char** argv) {
  const std::string variable = FlagVariable(error.flag().substr(2));
  const bool is_set = std::getenv(variable.c_str()) != nullptr;
  const std::string source =
      is_set && !IsOnCommandLine(error.flag(), argc, argv)
          ? absl::StrCat("the variable ", variable)
          : error.flag();
  const std::string other = FlagWithChoice(app, error.given());
  return absl::StrCat(
      source, error.what(),
      other.empty() ? "" : absl::StrCat("; did you mean ", other, "?"));
}

std::string Explain(const CLI::App& app, const CLI::ParseError& error, int argc,
                    char** argv) {
  if (const auto* value = dynamic_cast<const FlagError*>(&error)) {
    return ExplainValue(app, *value, argc, argv);
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    return ExplainUnexpected(app);
  }
  const bool no_command =
      app.get_require_subcommand_min() > 0 && app.get_subcommands().empty();
  return no_command ? ExplainCommand(app, argc, argv) : error.what();
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

// Explains the first flag of the command line that is given twice or without a
// value. Returns "" if there is none.
//
// If a flag has no value, CLI11 takes the next argument as its value. A script
// with an unset variable gives "--data= --workers=4": --data would get the
// value "--workers=4", and the job would have 1 worker, the default.
std::string FindMistake(const CLI::App& app, int argc, char** argv) {
  std::vector<const CLI::Option*> options = app.get_options();
  for (const CLI::App* command : app.get_subcommands(/*filter=*/{})) {
    const auto more = command->get_options();
    options.insert(options.end(), more.begin(), more.end());
  }
  std::set<const CLI::Option*> given;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") break;
    const std::string name = argument.substr(0, argument.find('='));
    const auto found = absl::c_find_if(
        options, [&](const auto* each) { return each->check_name(name); });
    if (!absl::StartsWith(argument, "--") || found == options.end()) continue;
    const CLI::Option& option = **found;
    if (absl::EndsWith(argument, "=")) {
      return absl::StrCat(argument,
                          " has no value: is a variable of the shell not set? "
                          "Without the flag, its default counts");
    }
    const bool is_single =
        option.get_multi_option_policy() == CLI::MultiOptionPolicy::Throw &&
        option.get_expected_max() <= 1;
    if (is_single && !given.insert(&option).second) {
      return absl::StrCat(name, " is given more than once");
    }
    const bool needs_value =
        option.get_type_size() > 0 && option.get_expected_min() > 0;
    if (!needs_value || name != argument) continue;
    if (i + 1 == argc) return absl::StrCat(name, " needs a value");
    if (absl::StartsWith(argv[i + 1], "--")) {
      return absl::StrCat(name, " needs a value before ", argv[i + 1]);
    }
    ++i;
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
  const std::string mistake = FindMistake(app, argc, argv);
  if (!mistake.empty()) return RefuseCommandLine(app, mistake);
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
