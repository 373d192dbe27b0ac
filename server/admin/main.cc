// nereusctl: plans, runs and inspects Nereus jobs. One subcommand per file.

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/version.h"
#include "common/flags/flags.h"
#include "server/admin/checkpoint_command.h"
#include "server/admin/command.h"
#include "server/admin/export_command.h"
#include "server/admin/local_command.h"
#include "server/admin/plan_command.h"
#include "server/admin/simulate_command.h"
#include "server/admin/status_command.h"

int main(int argc, char** argv) {
  std::vector<std::unique_ptr<nereus::Command>> commands;
  commands.push_back(std::make_unique<nereus::PlanCommand>());
  commands.push_back(std::make_unique<nereus::SimulateCommand>());
  commands.push_back(std::make_unique<nereus::StatusCommand>());
  commands.push_back(std::make_unique<nereus::CheckpointCommand>());
  commands.push_back(std::make_unique<nereus::CheckpointsCommand>());
  commands.push_back(std::make_unique<nereus::ExportCommand>());
  commands.push_back(std::make_unique<nereus::LocalCommand>());

  CLI::App app("Plans, runs and inspects Nereus jobs", "nereusctl");
  app.set_version_flag("--version",
                       std::string("nereusctl ") + nereus::kVersion);
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, nereus::Command*>> subcommands;
  for (const auto& command : commands) {
    subcommands.emplace_back(command->Register(app), command.get());
  }
  const int exit_code = nereus::ParseFlags(app, argc, argv);
  if (exit_code >= 0) return exit_code;
  for (const auto& [subcommand, command] : subcommands) {
    if (!subcommand->parsed()) continue;
    const absl::Status status =
        command->RefuseIdleFlags(*subcommand, argc, argv);
    if (status.ok()) return command->Run(std::cout, std::cerr);
    std::cerr << "nereusctl " << subcommand->get_name() << ": "
              << std::string(status.message()) << std::endl;
    return nereus::kExitUsage;
  }
  return nereus::kExitUsage;
}
