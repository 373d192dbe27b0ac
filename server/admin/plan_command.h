#ifndef NEREUS_SERVER_ADMIN_PLAN_COMMAND_H_
#define NEREUS_SERVER_ADMIN_PLAN_COMMAND_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/flags/flags.h"
#include "server/admin/command.h"
#include "server/admin/run_file.h"
#include "server/admin/time_flags.h"

namespace nereus {

// `nereusctl plan`: how each layer of a model would travel in a cluster, why,
// and what it costs. Needs no cluster; but it can say, of a run that is over,
// what had been predicted and what was measured.
class PlanCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;

  // kExitUsage for an unknown model or impossible sizes, kExitFailed for a file
  // that cannot be read, understood or written.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  absl::StatusOr<PlanOptions> MakeOptions(
      absl::Span<const LayerSpec> layers) const;
  // By the flags, or of the run.
  absl::StatusOr<ExplainedPlan> Explain() const;

  std::string model_;
  int64_t workers_ = 0;
  int64_t servers_ = 0;  // 0: as many as workers.
  int64_t batch_ = 32;
  PlanRules rules_;
  TimeFlags times_;
  Overlap overlap_ = Overlap::kWaitFree;
  bool explain_ = false;
  std::string run_file_;   // Empty: of no run.
  std::string json_file_;  // Empty: standard output.
  CLI::App* subcommand_ = nullptr;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_ADMIN_PLAN_COMMAND_H_
