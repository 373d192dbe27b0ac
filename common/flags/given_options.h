#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/flags/flags.h"

namespace nereus {

// Returns the options of `app` and of the subcommands on the command line.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& app);

// True if the command line has `flag`, with or without a value.
bool IsOnCommandLine(const std::string& flag, int argc, char** argv);

// Returns the text of the first line in the log of a program or of its
// subcommand `app`: the name, the version, and the options that differ from
// their defaults, by origin: the command line, variables, and the job file.
// `job`: null if the program has no job file. REQUIRES: `app` has parsed the
// command line.
std::string DescribeStart(const CLI::App& app, int argc, char** argv,
                          const JobFlags* job = nullptr);

}  // namespace nereus
