// Command `drain`: asks the coordinator to let a member leave, and waits until
// it has left.

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"

namespace nereus {
namespace {

class DrainCommand final : public Command {
 public:
  DrainCommand()
      : Command("drain",
                "Lets a member leave a running job, which goes on without it, "
                "and waits until it has left") {}

 private:
  void AddFlags(CLI::App& app) override {
    app.add_option("member", member_,
                   "the name of a worker, or \"shard N\" for a server")
        ->required();
    AddCoordinatorFlags(app, server_, timeout_seconds_);
    AddSwitch(app, "json", json_, "print JSON");
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const absl::Duration timeout = absl::Seconds(timeout_seconds_);
    const absl::Time began_at = SteadyNow();
    const absl::Status left = DrainMember(server_, member_, timeout);
    if (absl::IsDeadlineExceeded(left)) {
      return DeadlineExceededError(
          left.message(), ": ", member_, " has not left within ",
          absl::FormatDuration(timeout),
          ". A worker leaves when it begins its next step, if its program "
          "looks at StepInfo::should_leave; a server leaves once another "
          "server has a whole copy of its values");
    }
    NEREUS_TRY(left);
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - began_at);
    if (json_) {
      out << FormatJson({{"member", member_}, {"seconds", seconds}}) << "\n";
    } else {
      out << member_ << " has left the job, after "
          << absl::FormatDuration(
                 absl::Trunc(SteadyNow() - began_at, absl::Milliseconds(1)))
          << "\n";
    }
    return kExitDone;
  }

  std::string member_;             // Member to drain.
  std::string server_;             // --server
  double timeout_seconds_ = 60.0;  // --timeout
  bool json_ = false;              // --json
};

}  // namespace

std::unique_ptr<Command> MakeDrainCommand() {
  return std::make_unique<DrainCommand>();
}

}  // namespace nereus
