#ifndef NEREUS_SERVER_ADMIN_SIMULATE_COMMAND_H_
#define NEREUS_SERVER_ADMIN_SIMULATE_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/flags/flags.h"
#include "common/simulation/simulated_iteration.h"
#include "server/admin/command.h"
#include "server/admin/time_flags.h"

namespace nereus {

// `nereusctl simulate`: what an iteration would take on a cluster that one does
// not have, by running the real protocol on a modelled network. Needs no
// cluster.
class SimulateCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;

  // kExitUsage for an unknown model or impossible values, kExitFailed for a
  // file that cannot be read, understood or written.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  void AddClusterFlags();
  absl::StatusOr<WhatIf> MakeWhatIf() const;
  absl::Status SetPlan(WhatIf& what_if) const;
  absl::Status SetDelays(WhatIf& what_if) const;

  std::string model_;
  int64_t workers_ = 0;
  std::string servers_ = "colocated";
  int64_t batch_ = 32;
  TimeFlags times_;
  std::string jitter_ = "0s";
  std::string host_copy_ = "0s";
  std::vector<std::string> delays_;  // "WORKER:SECONDS"
  PlanRules rules_;
  JobOptions job_;
  int iterations_ = 1;
  uint64_t seed_ = 0;
  std::string json_file_;  // Empty: standard output.
  CLI::App* subcommand_ = nullptr;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_ADMIN_SIMULATE_COMMAND_H_
