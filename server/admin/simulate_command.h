#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/admin/command.h"
#include "server/admin/simulate/simulated_iteration.h"
#include "server/admin/what_if_flags.h"

namespace nereus {

// `nereusctl simulate`: what an iteration would take on a cluster that one does
// not have, by running the real protocol on a modelled network. Needs no
// cluster.
class SimulateCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;
  absl::Status RefuseIdleFlags(const CLI::App& subcommand, int argc,
                               char** argv) const override;

  // kExitUsage for an unknown model or impossible values, kExitFailed for a
  // file that cannot be read, understood or written.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  absl::StatusOr<WhatIf> MakeWhatIf() const;
  absl::Status SetDelays(WhatIf& what_if) const;

  WhatIfFlags question_;
  std::string jitter_ = "0s";
  std::string host_copy_ = "0s";
  std::vector<std::string> delays_;  // "WORKER:SECONDS"
  int iterations_ = 0;               // WhatIf::iterations
  uint64_t seed_ = 0;
  std::string json_file_;  // Empty: standard output.
  CLI::App* subcommand_ = nullptr;
};

}  // namespace nereus
