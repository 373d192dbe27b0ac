#include "server/admin/run_arguments.h"

#include <iterator>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace nereus {
namespace {

constexpr char kEndOfFlags[] = "--";
constexpr char kWorkersFlag[] = "--workers";

// Returns --workers for the short forms that mpirun and its kin have made
// known, with the value if there is one. Returns other arguments unchanged.
std::string WithLongName(const std::string& argument) {
  for (const char* name : {"-np", "-n"}) {
    absl::string_view rest = argument;
    if (!absl::ConsumePrefix(&rest, name)) continue;
    if (rest.empty() || rest[0] == '=') return absl::StrCat(kWorkersFlag, rest);
  }
  return argument;
}

// True if the flag takes the next argument as its value. An unknown flag takes
// none: the parser refuses it later.
bool TakesNext(const CLI::App& app, const std::string& flag) {
  if (absl::StrContains(flag, "=")) return false;
  const CLI::Option* const option = app.get_option_no_throw(flag);
  return option != nullptr && option->get_items_expected_min() > 0;
}

}  // namespace

std::vector<std::string> TakeProgram(const CLI::App& app,
                                     std::vector<std::string>& arguments) {
  size_t end = 2;
  while (end < arguments.size() && arguments[end] != kEndOfFlags &&
         absl::StartsWith(arguments[end], "-")) {
    arguments[end] = WithLongName(arguments[end]);
    const bool takes_next = TakesNext(app, arguments[end]);
    ++end;
    // "--" is no value. The parser refuses a flag without its value.
    if (takes_next && end < arguments.size() && arguments[end] != kEndOfFlags) {
      ++end;
    }
  }
  if (end >= arguments.size()) return {};
  const size_t begin = arguments[end] == kEndOfFlags ? end + 1 : end;
  std::vector<std::string> program(
      std::make_move_iterator(arguments.begin() + begin),
      std::make_move_iterator(arguments.end()));
  arguments.resize(end);
  return program;
}

}  // namespace nereus
