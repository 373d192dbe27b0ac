#include "common/flags/flags.h"

#include <cctype>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/flags/job_file.h"

namespace nereus {

std::string FlagVariable(const std::string& name) {
  std::string variable = "NEREUS_";
  for (const char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  }
  return variable;
}

CLI::Option* AddNamedChoice(CLI::App& app, const std::string& name,
                            const std::vector<std::string>& choices,
                            const std::string& value,
                            std::function<void(const std::string&)> set,
                            const std::string& help) {
  const std::string flag = "--" + name;
  return app
      .add_option_function<std::string>(
          flag,
          [flag, choices, set = std::move(set)](const std::string& given) {
            if (absl::c_linear_search(choices, given)) return set(given);
            throw CLI::ValidationError(
                flag, absl::StrCat("\"", given, "\" is not one of ",
                                   absl::StrJoin(choices, ", ")));
          },
          help)
      ->envname(FlagVariable(name))
      ->type_name(absl::StrJoin(choices, "|"))
      ->default_str(value);
}

void AddCommonFlags(CLI::App& app, const std::string& program,
                    LogLevel& log_level) {
  app.set_version_flag("--version", program + " " + kVersion);
  AddChoice(app, "log-level", log_level,
            {{"debug", LogLevel::kDebug},
             {"info", LogLevel::kInfo},
             {"warning", LogLevel::kWarning},
             {"error", LogLevel::kError}},
            "least level of lines to log: debug, info, warning or error");
}

void AddSharedMemoryFlag(CLI::App& app, bool& shared_memory) {
  AddChoice(app, "shared-memory", shared_memory,
            {{"auto", true}, {"off", false}},
            "auto: processes on one host exchange gradients through memory "
            "that both have, where both are willing and able; off: this "
            "process is not");
}

namespace {

// The flag of one option, which sets it in `spec`.
void AddJobOption(CLI::App& app, const JobOption& option, JobSpec& spec) {
  const bool is_switch = option.values == "off|on";
  auto given = std::make_shared<std::string>();
  CLI::Option* const flag =
      is_switch ? app.add_flag(option.flag() + "{on}", *given, option.help)
                : app.add_option(option.flag(), *given, option.help);
  flag->check([&option, &spec, given](const std::string& text) {
        return std::string(option.set(text, spec).message());
      })
      ->envname(FlagVariable(option.name))
      ->default_str(option.get(spec))
      ->group("Options of the job, which --job=FILE sets too");
  if (!is_switch) flag->type_name(option.values);
}

}  // namespace

void AddJobOptions(CLI::App& app, JobSpec& spec,
                   const std::vector<std::string>& names) {
  for (const JobOption& option : JobOptionTable()) {
    if (!names.empty() && !absl::c_linear_search(names, option.name)) continue;
    AddJobOption(app, option, spec);
  }
}

void AddJobFlags(CLI::App& app, JobFlags& flags) {
  // First of all: what comes later wins.
  app.add_option_function<std::string>(
         "--job",
         [&flags](const std::string& path) {
           auto names = ReadJobFile(path, flags.spec);
           if (!names.ok()) {
             throw CLI::ValidationError("--job",
                                        std::string(names.status().message()));
           }
           flags.file_options = *std::move(names);
         },
         "a file with options of the job, each as NAME = VALUE in a line, by "
         "the names of the flags below; flags and variables win")
      ->envname(FlagVariable("job"))
      ->type_name("FILE");
  AddJobOptions(app, flags.spec);
}

absl::Status RefuseIdleJobFlags(const CLI::App& app, int argc, char** argv,
                                const JobSpec& spec,
                                const std::vector<std::string>& file_options) {
  for (const JobOption& option : JobOptionTable()) {
    const std::string why = option.WhyIdle(spec);
    if (why.empty()) continue;
    NEREUS_RETURN_IF_ERROR(RefuseFlags(app, argc, argv, {option.flag()}, why));
    if (absl::c_linear_search(file_options, option.name)) {
      NEREUS_LOG(Info) << option.name << " of the job file does not count "
                       << why;
    }
  }
  return absl::OkStatus();
}

}  // namespace nereus
