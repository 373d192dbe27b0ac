#pragma once

#include <ostream>

#include "absl/status/status.h"
#include "server/process/exit_codes.h"

namespace CLI {
class App;
}  // namespace CLI

namespace nereus {

// One subcommand of nereusctl: its flags, and what it does. main registers each
// one, parses the command line, and runs the one that was named.
class Command {
 public:
  virtual ~Command() = default;

  // Adds the subcommand and its flags to `app`, and returns it. Parsing writes
  // the flags into this object, which must live as long as `app`.
  virtual CLI::App* Register(CLI::App& app) = 0;

  // Of a parsed command line: kInvalidArgument with the flag that is typed but
  // does not count with the others.
  virtual absl::Status RefuseIdleFlags(const CLI::App& subcommand, int argc,
                                       char** argv) const {
    (void)subcommand, (void)argc, (void)argv;
    return absl::OkStatus();
  }

  // Does the work once the flags are parsed: results to `out`, trouble to
  // `err`. Returns the exit code.
  virtual int Run(std::ostream& out, std::ostream& err) = 0;
};

}  // namespace nereus
