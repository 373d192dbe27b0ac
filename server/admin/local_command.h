#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/flags/flags.h"
#include "server/admin/command.h"
#include "server/admin/local_job.h"
#include "server/admin/local_options.h"
#include "server/admin/local_report.h"

namespace nereus {

// Where nereus-server and nereus-worker are: `server` and `worker` if given,
// otherwise beside this program, or where Bazel builds them from the same tree.
// Errors: kNotFound, with the places looked at.
absl::StatusOr<LocalPrograms> FindPrograms(const std::string& server,
                                           const std::string& worker);

// `nereusctl local`: trains a model with several workers and servers on this
// machine, shows how far they are, and reports what the job came to.
class LocalCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;
  absl::Status RefuseIdleFlags(const CLI::App& subcommand, int argc,
                               char** argv) const override;

  // kExitUsage for options that make no sense; kExitFailed if a process failed,
  // the workers' parameters differ at the end, or the report can't be written;
  // 128 plus the signal's number, as shells have it, if a signal ended the job.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  // What a job that ended early can be gone on from, for the end of a message;
  // empty: nothing.
  std::string HowToGoOn() const;
  // Writes the report to its file. Errors: it cannot be written, or the job has
  // not come to what it was to: replicas differ, or the model is not saved.
  absl::Status CheckOutcome(const LocalReport& report) const;

  LocalOptions options_;
  JobFlags job_;
  std::string json_file_;
  std::string server_binary_;
  std::string worker_binary_;
  CLI::App* subcommand_ = nullptr;
};

}  // namespace nereus
