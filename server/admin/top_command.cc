#include <unistd.h>

#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"
#include "server/admin/commands.h"
#include "server/admin/screen.h"
#include "server/report/status_report.h"

namespace nereus {
namespace {

class TopCommand final : public Command {
 public:
  TopCommand()
      : Command("top",
                "Shows what `status` shows, again and again, until the "
                "job is over or Ctrl-C") {}

 private:
  void AddFlags(CLI::App& app) override {
    AddCoordinatorFlags(app, server_, timeout_seconds_);
    AddNumber(app, "interval", interval_seconds_, 0.1, 86400.0,
              "seconds between two looks at the job");
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const auto fetch = [this] {
      return FetchJobStatus(server_, absl::Seconds(timeout_seconds_));
    };
    absl::StatusOr<JobStatus> status = fetch();
    NEREUS_TRY(status.status());
    Screen screen(&out, isatty(STDOUT_FILENO) != 0 ? STDOUT_FILENO : -1);
    std::string table;
    while (out.good()) {
      if (status.ok()) table = StatusTable(*status);
      const bool is_over = status.ok() && IsOver(status->state);
      // A coordinator that is started again answers again.
      screen.Show(status.ok() ? table
                              : absl::StrCat(status.status().message(),
                                             "; its last answer:\n", table),
                  is_over);
      if (is_over) break;
      absl::SleepFor(absl::Seconds(interval_seconds_));
      status = fetch();
    }
    return kExitDone;
  }

  std::string server_;             // --server
  double timeout_seconds_ = 5.0;   // --timeout
  double interval_seconds_ = 2.0;  // --interval
};

}  // namespace

std::unique_ptr<Command> MakeTopCommand() {
  return std::make_unique<TopCommand>();
}

}  // namespace nereus
