// Command `drain`: asks the coordinator to let a member leave, and polls the
// job's status until the member is gone.

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"

namespace nereus {
namespace {

// Time between two looks at the status of the job.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

// True if `name` names the member: the name of a worker, or "shard 2".
bool HasName(const JobStatus::Member& member, const std::string& name) {
  const std::string id = absl::StrCat(
      member.id.role == Role::kWorker ? "worker " : "shard ",
      member.id.role == Role::kWorker ? member.name
                                      : absl::StrCat(member.id.rank));
  return name == id || (member.id.role == Role::kWorker && name == member.name);
}

// Waits until the member is gone, or the job is over.
absl::Status AwaitGone(const std::string& server, const std::string& name,
                       absl::Time deadline, absl::Duration timeout) {
  while (true) {
    const JobStatus status =
        NEREUS_TRY(FetchJobStatus(server, deadline - SteadyNow()));
    const bool is_here =
        absl::c_any_of(status.members, [&](const JobStatus::Member& member) {
          return !member.left && HasName(member, name);
        });
    if (!is_here || IsOver(status.state)) return absl::OkStatus();
    if (SteadyNow() + kPollInterval > deadline) {
      return DeadlineExceededError(
          name, " was asked to leave, and is still a member after ",
          absl::FormatDuration(timeout),
          ". A worker leaves when it begins its next step, if its program "
          "looks at StepInfo::should_leave; a server leaves once another "
          "server has a whole copy of its values");
    }
    absl::SleepFor(kPollInterval);
  }
}

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
    NEREUS_TRY(DrainMember(server_, member_, timeout));
    NEREUS_TRY(AwaitGone(server_, member_, began_at + timeout, timeout));
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
