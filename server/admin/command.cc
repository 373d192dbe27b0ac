#include "server/admin/command.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "common/base/address.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "server/admin/progress_display.h"

namespace nereus {

Command::Command(std::string name, std::string help)
    : name_(std::move(name)), help_(std::move(help)) {}

CLI::App* Command::Register(CLI::App& app, bool with_flags) {
  app_ = app.add_subcommand(name_, help_);
  if (with_flags) AddFlags(*app_);
  return app_;
}

void Command::TakeRest(std::vector<std::string>& /*arguments*/) {}

absl::Status Command::RefuseIdleFlags(int /*argc*/, char** /*argv*/) const {
  return absl::OkStatus();
}

void Command::BeginLog(int /*argc*/, char** /*argv*/) const {}

int Command::Run(std::ostream& out, std::ostream& err) {
  const absl::StatusOr<int> code = Execute(out, err);
  if (!code.ok()) return Fail(code.status(), err);
  if (out.flush() || *code != kExitDone) return *code;
  return Fail(UnavailableError("standard output cannot be written: the answer "
                               "is not complete"),
              err);
}

// kInvalidArgument means that the user must change the command line.
int Command::Fail(const absl::Status& status, std::ostream& err) const {
  err << UserLine(GetLogFormat(), LogLevel::kError, {LogEvent::kEnd},
                  absl::StrCat("nereusctl ", name_, ": ", status.message()))
      << std::flush;
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

void JsonFlag::Register(CLI::App& app) {
  app_ = &app;
  app.add_option("--json", file_,
                 "print JSON; with =FILE, write the JSON to that file")
      ->expected(0, 1);
}

// Progress and errors go to standard error, so standard output has only the
// JSON.
absl::Status JsonFlag::Write(const std::string& text, const std::string& json,
                             std::ostream& out) const {
  const bool is_json = app_->count("--json") > 0;
  if (is_json && !file_.empty()) return WriteTextFile(file_, json);
  out << (is_json ? json + "\n" : text);
  return absl::OkStatus();
}

// Refuses an address without a port while parsing, before any call.
void AddCoordinatorFlags(CLI::App& app, std::string& server,
                         double& timeout_seconds) {
  const auto set = [&server](const std::string& address) {
    server = address;
    return CheckHostPort("it", address);
  };
  AddTextFlag(app, "server", server, set,
              "HOST:PORT of the coordinator's control port, which `nereusctl "
              "local` and the log of nereus-server show")
      ->required();
  AddNumber(app, "timeout", timeout_seconds, 0.001, 86400.0,
            "seconds to wait for the answer");
}

}  // namespace nereus
