// Rules that the command lines of all programs share.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/flags/flags.h"
#include "common/flags/variables.h"
#include "common/share/file/board_file.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

// All programs of a job, and all commands of nereusctl.
const std::vector<std::vector<std::string>> kCommands = {
    {"server/nereus-server"},
    {"worker/trainer/nereus-worker"},
    {"server/admin/nereusctl", "drain"},
    {"server/admin/nereusctl", "share"},
    {"server/admin/nereusctl", "top"},
    {"server/admin/nereusctl", "checkpoint"},
    {"server/admin/nereusctl", "checkpoints"},
    {"server/admin/nereusctl", "explain"},
    {"server/admin/nereusctl", "export"},
    {"server/admin/nereusctl", "local"},
    {"server/admin/nereusctl", "plan"},
    {"server/admin/nereusctl", "run"},
    {"server/admin/nereusctl", "simulate"},
    {"server/admin/nereusctl", "status"},
    {"server/admin/nereusctl", "trace"},
};

std::string HelpOf(std::vector<std::string> command) {
  command.push_back("--help");
  ProgramRun run(command);
  EXPECT_EQ(run.Finish(), 0) << run.error();
  return run.output();
}

// A program reports a NEREUS_ variable as misspelt if no list has it. So the
// lists must have the variables of all flags of all programs.
TEST(CommandLineTest, ListsHaveExactlyTheVariablesThatHelpShows) {
  std::set<std::string> offered;
  for (const auto& command : kCommands) {
    const std::string help = HelpOf(command);
    const std::regex variable("NEREUS_[A-Z0-9_]+");
    for (std::sregex_iterator at(help.begin(), help.end(), variable), end;
         at != end; ++at) {
      offered.insert(at->str());
    }
  }
  std::set<std::string> known;
  for (const std::string& flag : FlagsWithVariables()) {
    known.insert(FlagVariable(flag));
  }
  for (const JobOption& option : JobOptionTable()) {
    known.insert(FlagVariable(option.name));
  }
  for (const std::string& name : ProgramVariables()) known.insert(name);
  EXPECT_EQ(offered, known);
}

// Runs a command line of the shell, and returns its exit code.
int CodeOf(const std::string& line, std::string& error) {
  ProgramRun run({"/bin/sh", "-c", line});
  const int code = run.Finish();
  error = run.error();
  return code;
}

// A script that keeps half an answer must not take it for a whole one.
TEST(CommandLineTest, FullStandardOutputIsAnError) {
  std::vector<std::string> lines;
  for (const auto& command : kCommands) {
    lines.push_back(absl::StrCat(absl::StrJoin(command, " "), " --help"));
  }
  for (const char* line :
       {"server/nereus-server --version", "server/admin/nereusctl --version",
        "worker/trainer/nereus-worker --version",
        "server/admin/nereusctl plan --model=alexnet --workers=2",
        "server/admin/nereusctl plan --model=alexnet --workers=2 --json",
        "server/admin/nereusctl simulate --model=alexnet --workers=2 "
        "--compute=0.1s",
        "touch $TEST_TMPDIR/nereus-folder-id && "
        "server/admin/nereusctl checkpoints --json $TEST_TMPDIR",
        "server/admin/nereusctl local --model=mlp --workers=1 --servers=1 "
        "--limit=64 --epochs=1"}) {
    lines.emplace_back(line);
  }
  for (const std::string& line : lines) {
    std::string error;
    EXPECT_EQ(CodeOf(line + " > /dev/full", error), 1) << line << error;
    EXPECT_THAT(error, testing::HasSubstr("standard output cannot be written"))
        << line;
    EXPECT_EQ(CodeOf(line + " > /dev/null", error), 0) << line << error;
  }
}

// --json of checkpoints is a switch, and --json of plan has no variable. (A
// program that fails ends its job at once.)
TEST(CommandLineTest, VariableOfAnotherCommandIsNotRead) {
  std::string error;
  EXPECT_EQ(CodeOf("NEREUS_JSON=$TEST_TMPDIR/run.json "
                   "server/admin/nereusctl plan --model=alexnet --workers=2",
                   error),
            0)
      << error;
  EXPECT_EQ(CodeOf("NEREUS_JSON=$TEST_TMPDIR/run.json "
                   "server/admin/nereusctl run -- false; "
                   "grep -q exit_code $TEST_TMPDIR/run.json",
                   error),
            0)
      << error;
}

// Counts the flags of the process itself, without those of its job. There are
// 16. Above 24, some of them are probably options of the job, which belong in
// JobOptionTable.
TEST(CommandLineTest, ServerHasFewFlagsOfItsOwn) {
  const std::string help = HelpOf({"server/nereus-server"});
  const std::string own =
      help.substr(0, help.find("Options of the job, which --job=FILE"));
  int flags = 0;
  for (size_t at = own.find("\n  -"); at != std::string::npos;
       at = own.find("\n  -", at + 1)) {
    ++flags;
  }
  EXPECT_GT(flags, 10);
  EXPECT_LE(flags, 24);
}

// Returns the option's row of the table in docs/operating.md.
std::string RowOf(const JobOption& option) {
  return absl::StrCat("| `", option.name, "` | ",
                      absl::StrReplaceAll(option.values, {{"|", ", "}}), " | ",
                      option.get(JobSpec()), " | ",
                      absl::StrReplaceAll(option.help, {{"|", "\\|"}}), " |\n");
}

TEST(CommandLineTest, ManualHasTheTableOfJobOptions) {
  std::ifstream file("docs/operating.md");
  std::stringstream text;
  text << file.rdbuf();
  std::string table;
  for (const JobOption& option : JobOptionTable()) table += RowOf(option);
  EXPECT_THAT(text.str(), testing::HasSubstr(table));
}

TEST(CommandLineTest, ShareShowsTheDevicesWhoseBoardsItCanRead) {
  std::string folder = testing::TempDir() + "/devices_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto file = BoardFile::Open({.folder = folder + "/0"});
  ASSERT_TRUE(file.ok()) << file.status();
  TurnSlot slot;
  slot.job = "one";
  (*file)->board().Claim(std::move(slot));
  ProgramRun good({"server/admin/nereusctl", "share", folder});
  EXPECT_EQ(good.Finish(), 0) << good.error();
  EXPECT_THAT(good.output(), testing::ContainsRegex("one +0 .*away"));

  std::filesystem::create_directory(folder + "/1");
  std::ofstream(folder + "/1/board") << "no board";
  ProgramRun bad({"server/admin/nereusctl", "share", folder});
  EXPECT_EQ(bad.Finish(), 1);
  EXPECT_THAT(bad.output(), testing::ContainsRegex("one +0 .*away"));
  EXPECT_THAT(bad.output(),
              testing::HasSubstr("/1/board is no board of this version"));
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
