#pragma once

#include <string>

#include "server/admin/command.h"

namespace nereus {

// `nereusctl checkpoint`: makes one of a running job, now.
class CheckpointCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;

  // kExitFailed if it could not be made, or not in time.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  std::string server_;
  double timeout_seconds_ = 60.0;
  bool json_ = false;
};

// `nereusctl checkpoints`: what is in a folder of checkpoints.
class CheckpointsCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;

  // kExitFailed if the folder cannot be read, or with --verify one is damaged.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  std::string folder_;
  bool verify_ = false;
  bool json_ = false;
};

}  // namespace nereus
