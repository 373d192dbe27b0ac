#include <string>

#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"
#include "server/admin/commands.h"
#include "server/report/status_report.h"

namespace nereus {
namespace {

class StatusCommand final : public Command {
 public:
  StatusCommand()
      : Command("status",
                "Shows the job of a coordinator, its workers and its servers") {
  }

 private:
  void AddFlags(CLI::App& app) override {
    AddCoordinatorFlags(app, server_, timeout_seconds_);
    AddSwitch(app, "json", json_, "print JSON");
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const JobStatus status =
        NEREUS_TRY(FetchJobStatus(server_, absl::Seconds(timeout_seconds_)));
    out << (json_ ? StatusJson(status) : StatusTable(status));
    return kExitDone;
  }

  std::string server_;            // --server
  double timeout_seconds_ = 5.0;  // --timeout
  bool json_ = false;             // --json
};

}  // namespace

std::unique_ptr<Command> MakeStatusCommand() {
  return std::make_unique<StatusCommand>();
}

}  // namespace nereus
