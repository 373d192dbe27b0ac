#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"
#include "common/base/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace nereus {

// A subcommand of nereusctl: its flags and its work. main.cc registers all
// commands, parses the command line, and runs the command that the user named.
// Used by one thread.
class Command {
 public:
  virtual ~Command() = default;

  const std::string& name() const { return name_; }

  // Adds the subcommand to `app`, and its flags if `with_flags`. Parsing writes
  // values into this object, so it must live as long as `app`.
  CLI::App* Register(CLI::App& app, bool with_flags);

  // Removes from `arguments` what must not be parsed, and keeps it: a program
  // to run, with its arguments. `arguments` begins with the name of nereusctl
  // and the name of this command. REQUIRES: Register was called.
  virtual void TakeRest(std::vector<std::string>& arguments);

  // Returns kInvalidArgument, with the flag, if a flag on the command line has
  // no effect together with the other flags. `argc` and `argv` are the command
  // line, which was parsed before.
  virtual absl::Status RefuseIdleFlags(int argc, char** argv) const;

  // Writes the first line of the log, if the command has a log. `argc` and
  // `argv`: see RefuseIdleFlags.
  virtual void BeginLog(int argc, char** argv) const;

  // Does the work after parsing. Writes results to `out`, and progress and
  // errors to `err`. Returns the exit code of Execute. If Execute returns an
  // error, or returns kExitDone and `out` cannot be written, calls Fail and
  // returns its exit code.
  int Run(std::ostream& out, std::ostream& err);

  // Writes the name of the command and an error to `err`. Returns the exit
  // code: kExitUsage for kInvalidArgument, otherwise kExitFailed.
  int Fail(const absl::Status& status, std::ostream& err) const;

 protected:
  // `name` is the name on the command line, `help` one sentence for --help.
  Command(std::string name, std::string help);

  // The subcommand. REQUIRES: Register was called.
  const CLI::App& app() const { return *app_; }

 private:
  // Adds the flags of the command to its subcommand `app`.
  virtual void AddFlags(CLI::App& app) = 0;

  // Does the work, and returns the exit code. Run writes the error, if any, to
  // `err`.
  virtual absl::StatusOr<int> Execute(std::ostream& out, std::ostream& err) = 0;

  const std::string name_;
  const std::string help_;
  // Subcommand that Register made. Not owned.
  CLI::App* app_ = nullptr;
};

// The flag --json[=FILE] of a command that can answer in text or in JSON.
class JsonFlag {
 public:
  // Adds the flag to the subcommand `app`. This must live as long as `app`.
  void Register(CLI::App& app);

  // Without --json, writes `text` to `out`. With --json, writes `json` and a
  // newline, to `out` or to FILE. Errors: kUnavailable, FILE cannot be written.
  absl::Status Write(const std::string& text, const std::string& json,
                     std::ostream& out) const;

 private:
  // Subcommand that has the flag. Not owned.
  CLI::App* app_ = nullptr;
  // FILE. Empty: standard output.
  std::string file_;
};

// Adds --server and --timeout, for commands that call a coordinator. Parsing
// writes into `server` and `timeout_seconds`, which must live as long as `app`.
void AddCoordinatorFlags(CLI::App& app, std::string& server,
                         double& timeout_seconds);

}  // namespace nereus
