#ifndef NEREUS_SERVER_ADMIN_COMMAND_H_
#define NEREUS_SERVER_ADMIN_COMMAND_H_

#include <ostream>

namespace CLI {
class App;
}  // namespace CLI

namespace nereus {

// Exit codes of nereusctl.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // The operation did not succeed.
inline constexpr int kExitUsage = 2;   // The command line makes no sense.

// One subcommand of nereusctl: its flags, and what it does. main registers each
// one, parses the command line, and runs the one that was named.
class Command {
 public:
  virtual ~Command() = default;

  // Adds the subcommand and its flags to `app`, and returns it. Parsing writes
  // the flags into this object, which must live as long as `app`.
  virtual CLI::App* Register(CLI::App& app) = 0;

  // Does the work once the flags are parsed: results to `out`, trouble to
  // `err`. Returns the exit code.
  virtual int Run(std::ostream& out, std::ostream& err) = 0;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_ADMIN_COMMAND_H_
