// What programs say of a command line that makes no sense.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/flags/flags.h"
#include "common/flags/variables.h"

extern char** environ;

namespace nereus {
namespace {

// Names that differ by so many letters may have been meant.
constexpr size_t kTyposMax = 2;

// Letters to insert, remove or exchange to turn `a` into `b`; two neighbours in
// the wrong order count once (optimal string alignment).
size_t Typos(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> typos(a.size() + 1,
                                         std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        typos[i][j] = i + j;
        continue;
      }
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

// Those of `app` and of the subcommand that was named.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& app) {
  std::vector<const CLI::Option*> options = app.get_options();
  for (const CLI::App* subcommand : app.get_subcommands()) {
    const auto more = subcommand->get_options();
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
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

bool IsOnCommandLine(const std::string& flag, int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [&](const char* argument) {
    return argument == flag || absl::StartsWith(argument, flag + "=");
  });
}

// "--learning-rate", the first flag that `message` names; empty: none.
std::string FlagIn(const std::string& message) {
  const size_t begin = message.find("--");
  if (begin == std::string::npos) return "";
  const size_t end = message.find_first_of(" :=,", begin);
  return message.substr(begin, end - begin);
}

// A flag of which `value` is a choice, as it would be typed.
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

// `message` lists what was not expected, the last first, with the values of
// unknown flags: so the command line is searched for the first flag that is
// unknown.
std::string ExplainUnexpected(const CLI::App& app, const std::string& message,
                              int argc, char** argv) {
  const std::vector<std::string> flags = FlagsOf(app);
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string& name = parts.first;
    if (!absl::StartsWith(name, "--") || absl::c_linear_search(flags, name)) {
      continue;
    }
    const bool is_jobs = FindJobOption(name.substr(2)) != nullptr;
    return absl::StrCat("unknown flag ", name,
                        is_jobs ? ", which is the coordinator's alone: "
                                  "nereus-server, or nereusctl local"
                                : Suggest(name, flags));
  }
  return absl::StrCat("unknown argument ",
                      message.substr(message.find(": ") + 2));
}

// The value in "... = abc" or "\"abc\" is not ...".
std::string ValueIn(const std::string& message) {
  if (const size_t at = message.find(" = "); at != std::string::npos) {
    return message.substr(at + 3);
  }
  const std::vector<std::string> parts = absl::StrSplit(message, '"');
  return parts.size() > 1 ? parts[1] : "";
}

std::string Explain(const CLI::App& app, const CLI::ParseError& error, int argc,
                    char** argv) {
  const std::string message = error.what();
  if (absl::StrContains(message, "was not expected") ||
      absl::StrContains(message, "were not expected")) {
    return ExplainUnexpected(app, message, argc, argv);
  }
  const std::string flag = FlagIn(message);
  if (flag.empty()) return message;
  const std::string variable = FlagVariable(flag.substr(2));
  const bool typed = IsOnCommandLine(flag, argc, argv);
  const char* const set = std::getenv(variable.c_str());
  const std::string source =
      !typed && set != nullptr ? absl::StrCat("the variable ", variable) : flag;
  if (absl::StartsWith(message, "Could not convert")) {
    return absl::StrCat(source, " is \"", ValueIn(message),
                        "\", which is no value for it: see --help");
  }
  if (absl::StrContains(message, "At Most 1 required")) {
    return absl::StrCat(source, " is given more than once");
  }
  if (absl::StrContains(message, "required") &&
      absl::StrContains(message, "missing")) {
    return absl::StrCat(source, " needs a value");
  }
  // "--flag: Value abc not in range 1 to 9".
  const size_t range = message.find(" not in range ");
  const size_t value = message.find(": Value ");
  if (range != std::string::npos && value != std::string::npos) {
    const size_t begin = value + strlen(": Value ");
    return absl::StrCat(source, " is \"", message.substr(begin, range - begin),
                        "\", must be a number from ",
                        message.substr(range + strlen(" not in range ")));
  }
  // "--flag: text".
  const size_t colon = message.find(": ");
  std::string text = absl::StrCat(
      source, colon == std::string::npos ? ": " : "",
      colon == std::string::npos ? message : message.substr(colon));
  if (absl::StrContains(message, "is not one of")) {
    const std::string other = FlagWithChoice(app, ValueIn(message));
    if (!other.empty()) absl::StrAppend(&text, "; did you mean ", other, "?");
  }
  return text;
}

// Of all programs: often they are set for several of them at once.
void WarnOfVariables(const CLI::App& app) {
  std::vector<std::string> known;
  for (const std::string& flag : FlagsOf(app)) {
    known.push_back(FlagVariable(flag.substr(2)));
  }
  for (const JobOption& option : JobOptionTable()) {
    known.push_back(FlagVariable(option.name));
  }
  known.insert(known.end(), std::begin(kVariables), std::end(kVariables));
  known.insert(known.end(), std::begin(kTestVariables),
               std::end(kTestVariables));
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

int ParseFlags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << app.get_name() << ": " << Explain(app, error, argc, argv)
              << "\nRun with --help for the flags." << std::endl;
    return 2;
  }
  WarnOfVariables(app);
  return -1;
}

std::vector<std::string> FlagsAddedBy(CLI::App& app,
                                      const std::function<void()>& add) {
  const std::vector<std::string> before = FlagsOf(app);
  add();
  std::vector<std::string> added = FlagsOf(app);
  added.erase(added.begin(),
              added.begin() + static_cast<int64_t>(before.size()));
  return added;
}

absl::Status RefuseFlags(const CLI::App& app, int argc, char** argv,
                         const std::vector<std::string>& flags,
                         const std::string& why) {
  for (const std::string& flag : flags) {
    if (IsOnCommandLine(flag, argc, argv)) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " does not count ", why));
    }
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (option == nullptr || option->count() == 0) continue;
    NEREUS_LOG(Info) << "the variable " << FlagVariable(flag.substr(2))
                     << " does not count " << why;
  }
  return absl::OkStatus();
}

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
    if (other != others.end() && is_field) {
      absl::StrAppend(&text, other->second);
    } else if (is_field && !word.empty() &&
               absl::c_linear_search(flags, flag)) {
      absl::StrAppend(&text, flag);
    } else {
      absl::StrAppend(&text, word);
    }
    is_first = is_first && word.empty();
    if (end < message.size()) text += message[end];
    begin = end + 1;
  }
  return text;
}

}  // namespace nereus
