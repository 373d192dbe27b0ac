#include "server/admin/status_command.h"

#include "common/base/address.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"
#include "server/admin/status_report.h"

namespace nereus {

CLI::App* StatusCommand::Register(CLI::App& app) {
  CLI::App* const subcommand = app.add_subcommand(
      "status", "Shows a running job, its workers and its shards");
  AddFlag(*subcommand, "server", server_,
          "HOST:PORT of the coordinator's control port")
      ->required()
      ->check([](const std::string& address) {
        return std::string(CheckHostPort("it", address).message());
      });
  AddFlag(*subcommand, "timeout", timeout_seconds_,
          "Seconds to wait for the answer")
      ->check(CLI::Range(0.001, 3600.0));
  AddSwitch(*subcommand, "json", json_, "Prints JSON");
  return subcommand;
}

int StatusCommand::Run(std::ostream& out, std::ostream& err) {
  const absl::StatusOr<JobStatus> status =
      FetchJobStatus(server_, absl::Seconds(timeout_seconds_));
  if (!status.ok()) {
    err << "nereusctl status: " << std::string(status.status().message())
        << "\n";
    return kExitFailed;
  }
  out << (json_ ? StatusJson(*status) : StatusTable(*status));
  return kExitDone;
}

}  // namespace nereus
