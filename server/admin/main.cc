// nereusctl: plans, runs and inspects Nereus jobs. The files *_command.cc have
// the subcommands.

#include <signal.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/exit_codes.h"
#include "common/base/version.h"
#include "common/flags/flags.h"
#include "server/admin/commands.h"

int main(int argc, char** argv) {
  // If standard output closes, `run` and `local` end their job all the same.
  signal(SIGPIPE, SIG_IGN);
  std::vector<std::unique_ptr<nereus::Command>> commands;
  for (auto* const make :
       {nereus::MakePlanCommand, nereus::MakeSimulateCommand,
        nereus::MakeLocalCommand, nereus::MakeRunCommand,
        nereus::MakeStatusCommand, nereus::MakeTopCommand,
        nereus::MakeTraceCommand, nereus::MakeExplainCommand,
        nereus::MakeShareCommand, nereus::MakeDrainCommand,
        nereus::MakeCheckpointCommand, nereus::MakeCheckpointsCommand,
        nereus::MakeExportCommand}) {
    commands.push_back(make());
  }
  CLI::App app("Plans, runs and inspects Nereus jobs", "nereusctl");
  app.set_version_flag("--version",
                       std::string("nereusctl ") + nereus::kVersion);
  app.footer(nereus::kExitCodesHelp);
  app.require_subcommand(1);
  std::vector<CLI::App*> subcommands;
  std::vector<std::string> arguments(argv, argv + argc);
  // Registers flags for the named command alone. CLI11 checks the environment
  // variable of each registered flag, and flags of two commands can have the
  // same variable.
  for (const auto& command : commands) {
    const bool is_named = argc > 1 && command->name() == argv[1];
    subcommands.push_back(command->Register(app, /*with_flags=*/is_named));
    if (is_named) command->TakeRest(arguments);
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  argc = static_cast<int>(arguments.size());
  argv = pointers.data();
  const auto begin_log = [&] {
    for (size_t i = 0; i < commands.size(); ++i) {
      if (subcommands[i]->parsed()) commands[i]->BeginLog(argc, argv);
    }
  };
  const int exit_code = nereus::ParseFlags(app, argc, argv, begin_log);
  if (exit_code >= 0) return exit_code;
  for (size_t i = 0; i < commands.size(); ++i) {
    if (!subcommands[i]->parsed()) continue;
    const absl::Status status = commands[i]->RefuseIdleFlags(argc, argv);
    return status.ok() ? commands[i]->Run(std::cout, std::cerr)
                       : commands[i]->Fail(status, std::cerr);
  }
  return nereus::kExitUsage;
}
