// What all programs' command lines have in common.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "common/flags/variables.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

const std::vector<std::vector<std::string>> kCommands = {
    {"server/nereus-server"},
    {"worker/trainer/nereus-worker"},
    {"server/admin/nereusctl", "checkpoint"},
    {"server/admin/nereusctl", "checkpoints"},
    {"server/admin/nereusctl", "export"},
    {"server/admin/nereusctl", "local"},
    {"server/admin/nereusctl", "plan"},
    {"server/admin/nereusctl", "simulate"},
    {"server/admin/nereusctl", "status"},
};

std::string HelpOf(std::vector<std::string> command) {
  command.push_back("--help");
  ProgramRun run(command);
  EXPECT_EQ(run.Finish(), 0) << run.error();
  return run.output();
}

// A variable that is in no list is taken for a misspelt one.
TEST(CommandLineTest, TheVariablesOfAllFlagsAreKnown) {
  std::set<std::string> offered;
  for (const auto& command : kCommands) {
    const std::string help = HelpOf(command);
    const std::regex variable("NEREUS_[A-Z0-9_]+");
    for (std::sregex_iterator at(help.begin(), help.end(), variable), end;
         at != end; ++at) {
      offered.insert(at->str());
    }
  }
  const std::set<std::string> known(std::begin(kVariables),
                                    std::end(kVariables));
  EXPECT_EQ(offered, known);
}

TEST(CommandLineTest, EachCommandOfNereusctlIsTestedHere) {
  const std::string help = HelpOf({"server/admin/nereusctl"});
  const std::string list = help.substr(help.find("Subcommands:"));
  std::set<std::string> commands;
  const std::regex name("\n  ([a-z]+) ");
  for (std::sregex_iterator at(list.begin(), list.end(), name), end; at != end;
       ++at) {
    commands.insert((*at)[1]);
  }
  std::set<std::string> tested;
  for (const auto& command : kCommands) {
    if (command.size() == 2) tested.insert(command[1]);
  }
  EXPECT_EQ(commands, tested);
}

}  // namespace
}  // namespace nereus
