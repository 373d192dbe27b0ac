#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace nereus {

// Takes the program and its arguments from the command line of `nereusctl run`,
// and returns them. They are all arguments behind "--". Without "--", they
// begin at the first argument that is neither a flag nor the value of a flag of
// `app`, the subcommand. Empty: there is no program.
//
// `arguments` begins with the name of nereusctl and the name of the subcommand.
// Afterwards it has only the flags, with "--workers" in the place of "-np" and
// "-n". (CLI11 would take "-np" for "-n" with the value "p".) "--" is never the
// value of a flag.
std::vector<std::string> TakeProgram(const CLI::App& app,
                                     std::vector<std::string>& arguments);

}  // namespace nereus
