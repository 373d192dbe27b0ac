#ifndef NEREUS_COMMON_FLAGS_FLAGS_H_
#define NEREUS_COMMON_FLAGS_FLAGS_H_

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "common/base/logging.h"
#include "common/compute/optimizer.h"
#include "common/plan/planner.h"
#include "common/protocol/job.h"
#include "common/transport/transport_type.h"

// What the command lines of all binaries share. For main files and commands
// alone.

namespace nereus {

// The variable of a flag in the environment: "learning-rate",
// NEREUS_LEARNING_RATE.
std::string FlagVariable(const std::string& name);

// Adds --`name`, which the environment may set too; the command line wins.
// `value` is the default, shown by --help, and is where the result goes.
template <typename T>
CLI::Option* AddFlag(CLI::App& app, const std::string& name, T& value,
                     const std::string& help) {
  return app.add_option("--" + name, value, help)
      ->envname(FlagVariable(name))
      ->capture_default_str();
}

// The same for a flag without a value.
inline CLI::Option* AddSwitch(CLI::App& app, const std::string& name,
                              bool& value, const std::string& help) {
  return app.add_flag("--" + name, value, help)->envname(FlagVariable(name));
}

// The same for one of a few named values.
template <typename T>
CLI::Option* AddChoice(CLI::App& app, const std::string& name, T& value,
                       const std::map<std::string, T>& names,
                       const std::string& help) {
  std::string given;
  for (const auto& [text, each] : names) {
    if (each == value) given = text;
  }
  return app.add_option("--" + name, value, help)
      ->envname(FlagVariable(name))
      ->transform(CLI::CheckedTransformer(names).description(""))
      ->type_name(help.empty() ? "" : "NAME")
      ->default_str(given);
}

// --version and --log-level.
void AddCommonFlags(CLI::App& app, const std::string& program,
                    LogLevel& log_level);

// --update, --learning-rate, ...
void AddUpdateFlags(CLI::App& app, OptimizerOptions& options);

// --scheme, --cost, --wire.
// `knows_times`: the plan may be made by what an iteration takes.
void AddPlanFlags(CLI::App& app, PlanRules& rules, bool knows_times = false);

// What the job's owner decides: the above, --optimizer, --update, ...
struct JobFlags {
  PlanRules rules;
  JobOptions options;
};
void AddOverlapFlag(CLI::App& app, Overlap& overlap);
// --quorum, --staleness, --resync.
void AddQuorumFlags(CLI::App& app, JobOptions& options);
// --sparsity, --block, --dense-steps.
void AddSparsityFlags(CLI::App& app, JobOptions& options);
// --transport, --shared-memory.
void AddTransportFlags(CLI::App& app, TransportType& transport,
                       bool& shared_memory);
void AddFusionFlag(CLI::App& app, int64_t& bytes, bool& tune);
void AddJobFlags(CLI::App& app, JobFlags& flags);

// Parses; -1: go on. Otherwise the program is to exit with this code: 0 after
// --help or
// --version, 2 after a usage error, each printed.
int ParseFlags(CLI::App& app, int argc, char** argv);

}  // namespace nereus

#endif  // NEREUS_COMMON_FLAGS_FLAGS_H_
