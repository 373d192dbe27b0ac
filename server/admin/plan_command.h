#ifndef NEREUS_SERVER_ADMIN_PLAN_COMMAND_H_
#define NEREUS_SERVER_ADMIN_PLAN_COMMAND_H_

#include <cstdint>
#include <string>

#include "common/flags/flags.h"
#include "server/admin/command.h"

namespace nereus {

// `nereusctl plan`: how each layer of a model would travel in a cluster, why,
// and what it costs. Needs no cluster.
class PlanCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;

  // kExitUsage for an unknown model or impossible sizes, kExitFailed for a file
  // that cannot be read, understood or written.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  std::string model_;
  int64_t workers_ = 0;
  int64_t servers_ = 0;  // 0: as many as workers.
  int64_t batch_ = 32;
  PlanRules rules_;
  std::string json_file_;  // Empty: standard output.
  CLI::App* subcommand_ = nullptr;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_ADMIN_PLAN_COMMAND_H_
