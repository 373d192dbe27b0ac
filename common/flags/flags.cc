#include "common/flags/flags.h"

#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/flags/given_options.h"
#include "common/flags/job_file.h"

namespace nereus {

std::string FlagVariable(const std::string& name) {
  return "NEREUS_" +
         absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}}));
}

CLI::Option* AddTextFlag(CLI::App& app, const std::string& name,
                         const std::string& value,
                         std::function<absl::Status(const std::string&)> set,
                         const std::string& help) {
  const std::string flag = "--" + name;
  const auto set_or_throw = [flag,
                             set = std::move(set)](const std::string& given) {
    const absl::Status status = set(given);
    if (status.ok()) return;
    throw FlagError(flag, given, absl::StrCat(": ", status.message()));
  };
  return app.add_option_function<std::string>(flag, set_or_throw, help)
      ->envname(FlagVariable(name))
      ->default_str(value);
}

absl::Status NoChoice(absl::string_view given,
                      const std::vector<std::string>& choices) {
  return InvalidArgumentError("\"", given, "\" is not one of ",
                              absl::StrJoin(choices, ", "));
}

void AddCommonFlags(CLI::App& app, const std::string& program, LogFlags& log) {
  app.set_version_flag("--version", program + " " + kVersion);
  AddChoice(app, "log-level", log.level,
            {{"debug", LogLevel::kDebug},
             {"info", LogLevel::kInfo},
             {"warning", LogLevel::kWarning},
             {"error", LogLevel::kError}},
            "lowest level of the log lines to show: debug, info, warning or "
            "error");
  AddChoice(app, "log-format", log.format,
            {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
            "form of the log lines on standard error: text, or json, an object "
            "a line for programs that collect logs");
}

void AddSharedMemoryFlag(CLI::App& app, bool& shared_memory) {
  AddChoice(app, "shared-memory", shared_memory,
            {{"auto", true}, {"off", false}},
            "auto: processes on one host exchange gradients through shared "
            "memory, if all of them can; off: this process uses TCP alone");
}

void AddAddressFlags(CLI::App& app, ProcessAddress& address,
                     absl::Duration& connect_timeout,
                     const std::string& control_help,
                     const std::string& data_help,
                     const std::string& http_help) {
  AddFlag(app, "host", address.host,
          "address that the other processes connect to, and to listen at");
  AddFlag(app, "listen", address.listen,
          "address to listen at, if it is another than --host: 0.0.0.0 in a "
          "container");
  AddFlag(app, "control-port", address.control_port, control_help);
  AddFlag(app, "data-port", address.data_port, data_help);
  AddFlag(app, "http-port", address.http_port, http_help);
  AddTextFlag(
      app, "connect-timeout",
      absl::StrCat(absl::ToDoubleSeconds(connect_timeout)),
      [&connect_timeout](const std::string& text) {
        double seconds = 0.0;
        if (!absl::SimpleAtod(text, &seconds) || !(seconds > 0.0)) {
          return InvalidArgumentError("\"", text,
                                      "\" is no number of seconds above 0");
        }
        connect_timeout = absl::Seconds(seconds);
        return absl::OkStatus();
      },
      "seconds to try to connect to the coordinator or to another process, "
      "and to go on without the coordinator once it is gone")
      ->type_name("SECONDS");
}

CLI::Option* AddSeedFlag(CLI::App& app, const std::string& name, uint64_t& seed,
                         const std::string& help) {
  return AddTextFlag(
             app, name, absl::StrCat(seed),
             [&seed](const std::string& text) {
               if (absl::SimpleAtoi(text, &seed)) return absl::OkStatus();
               return InvalidArgumentError(
                   "\"", text, "\" is no whole number from 0 to 2^64 - 1");
             },
             help)
      ->type_name("UINT");
}

void AddNodeFlag(CLI::App& app, std::string& node) {
  AddFlag(app, "node", node,
          "name of the host, for example the node of a pod; processes that "
          "name the same node of one machine count as one host. Empty: "
          "processes of one machine and one network namespace do");
}

// A flag's check also sets the option.
void AddJobOptions(CLI::App& app, JobSpec& spec,
                   const std::vector<std::string>& names) {
  for (const JobOption& option : JobOptionTable()) {
    if (!names.empty() && !absl::c_linear_search(names, option.name)) continue;
    const bool is_switch = option.values == "off|on";
    auto given = std::make_shared<std::string>();
    CLI::Option* const flag =
        is_switch ? app.add_flag(option.flag() + "{on}", *given, option.help)
                  : app.add_option(option.flag(), *given, option.help);
    flag->check([&option, &spec, given](const std::string& text) {
          const absl::Status status = option.set(text, spec);
          if (!status.ok()) {
            throw FlagError(option.flag(), text,
                            absl::StrCat(": ", status.message()));
          }
          return std::string();
        })
        ->envname(FlagVariable(option.name))
        ->default_str(option.get(spec))
        ->group("Options of the job, which --job=FILE sets too");
    if (!is_switch) flag->type_name(option.values);
  }
}

// CLI11 handles flags in the order in which the program adds them. --job comes
// first, so that flags and variables replace the values of the file.
void AddJobFlags(CLI::App& app, JobFlags& flags) {
  const auto read_file = [&flags](const std::string& path) -> absl::Status {
    flags.file_options = NEREUS_TRY(ReadJobFile(path, flags.spec));
    return absl::OkStatus();
  };
  AddTextFlag(app, "job", "", read_file,
              "a file with options of the job, a line NAME = VALUE for each; "
              "NAME is the name of a flag below. Flags and variables win over "
              "the file")
      ->type_name("FILE");
  AddJobOptions(app, flags.spec);
}

// An option without effect is most likely a mistake of the user.
absl::Status RefuseIdleJobFlags(const CLI::App& app, int argc, char** argv,
                                const JobSpec& spec,
                                const std::vector<std::string>& file_options) {
  std::vector<std::string> idle;
  for (const JobOption& option : JobOptionTable()) {
    const std::string why = option.WhyIdle(spec);
    if (why.empty()) continue;
    if (IsOnCommandLine(option.flag(), argc, argv)) {
      return InvalidArgumentError(option.flag(), " does not count ", why);
    }
    const CLI::Option* const flag = app.get_option_no_throw(option.flag());
    if (flag != nullptr && flag->count() > 0) {
      idle.push_back(absl::StrCat(FlagVariable(option.name), " ", why));
    } else if (absl::c_linear_search(file_options, option.name)) {
      idle.push_back(absl::StrCat(option.name, " of the job file ", why));
    }
  }
  if (!idle.empty()) {
    NEREUS_LOG(Info) << "some options do not count: "
                     << absl::StrJoin(idle, ", ");
  }
  return absl::OkStatus();
}

}  // namespace nereus
