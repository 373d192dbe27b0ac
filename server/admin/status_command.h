#pragma once

#include <string>

#include "server/admin/command.h"

namespace nereus {

// `nereusctl status`: the job of a running coordinator and its members.
class StatusCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;

  // kExitFailed if nobody answers, or the server there is no coordinator.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  std::string server_;
  double timeout_seconds_ = 5.0;
  bool json_ = false;
};

}  // namespace nereus
