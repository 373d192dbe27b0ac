#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/flags/job_file.h"
#include "common/flags/model_file.h"
#include "server/admin/commands.h"
#include "server/admin/diagnosis.h"
#include "server/admin/quantity.h"
#include "server/admin/simulate_report.h"
#include "server/admin/what_if_flags.h"

namespace nereus {
namespace {

// Limit of --iterations, which bounds the time of a simulation.
constexpr int kIterationsMax = 1000;
// Time between two lines of progress.
constexpr absl::Duration kProgressInterval = absl::Seconds(2);

// Flags that a file of --with takes from the command line.
constexpr const char* kClusterFlags[] = {
    "workers", "hosts",        "servers",         "bandwidth",
    "latency", "message-time", "memory-bandwidth"};

// Writes the progress of simulations every kProgressInterval. Short simulations
// write nothing.
class Progress {
 public:
  explicit Progress(std::ostream& err) : err_(err) {}

  void Show(double done) {
    const absl::Time now = SteadyNow();
    if (now - shown_at_ < kProgressInterval) return;
    shown_at_ = now;
    err_ << absl::StrFormat("simulating: %3.0f %%, %.0f s\n", 100 * done,
                            absl::ToDoubleSeconds(now - started_at_))
         << std::flush;
  }

 private:
  std::ostream& err_;
  const absl::Time started_at_ = SteadyNow();
  absl::Time shown_at_ = started_at_;  // Time of the last line.
};

class SimulateCommand final : public Command {
 public:
  SimulateCommand()
      : Command("simulate",
                "Predicts the time of an iteration on a cluster: runs the "
                "protocol itself on a modelled network") {}

  absl::Status RefuseIdleFlags(int argc, char** argv) const override {
    return RefuseIdleJobFlags(app(), argc, argv, question_.spec(), {});
  }

 private:
  void AddFlags(CLI::App& app) override {
    question_.Register(app);
    AddParsedFlag(app, "jitter", question_.asked().jitter, ParseTimeWithUnit,
                  "0s", "largest random latency of a frame beside --latency");
    app.add_option_function<std::vector<std::string>>(
           "--delay",
           [this](const std::vector<std::string>& delays) {
             for (const std::string& text : delays) {
               const absl::Status added = AddDelay(text);
               if (added.ok()) continue;
               throw FlagError("--delay", text,
                               absl::StrCat(": ", added.message()));
             }
           },
           "WORKER:SECONDS: delay of that worker before each forward; may be "
           "given several times. turn:SECONDS: delay of another worker in each "
           "step")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->type_name("TEXT");
    AddParsedFlag(
        app, "host-copy", question_.asked().host_copy, ParseTimeWithUnit, "0s",
        "time to copy all gradients to host memory and all parameters "
        "back, if nothing overlaps");
    AddNumber(
        app, "iterations", question_.asked().iterations, 0, kIterationsMax,
        "iterations to measure after one that warms up; 0: one, or, with "
        "--delay or --jitter, until more of them change the mean by half a "
        "per cent at most");
    AddSeedFlag(app, "seed", question_.asked().seed, "seed of the jitter");
    app.add_option("--with", with_,
                   "FILE with the flags of another job that shares the "
                   "devices of all nodes, one NAME = VALUE in a line, such as "
                   "compute = 0.1s; flags of the cluster are those given here; "
                   "may be given several times")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->type_name("FILE");
    json_.Register(app);
  }

  absl::StatusOr<int> Execute(std::ostream& out, std::ostream& err) override {
    WhatIf what_if = NEREUS_TRY(question_.Make(/*needs_times=*/true));
    Progress progress(err);
    const auto simulate = [&progress](const WhatIf& asked) {
      return SimulateIterations(
          asked, [&progress](double done) { progress.Show(done); });
    };
    SimulateReport report;
    report.model = question_.model();
    report.batch = question_.batch();
    report.what_if = what_if;
    report.all_layers = question_.all_layers();
    report.result = NEREUS_TRY(simulate(what_if));
    report.advice = FindAdvice(what_if);
    if (what_if.is_delayed()) {
      // Also simulates the job without delays: the difference is the time that
      // the delays add.
      WhatIf punctual = what_if;
      punctual.delays.clear();
      punctual.delay_in_turn = absl::ZeroDuration();
      const IterationResult result = NEREUS_TRY(simulate(punctual));
      report.late = std::max(absl::ZeroDuration(),
                             report.result.iteration - result.iteration);
    }
    if (what_if.is_delayed() && what_if.job.rounds.quorum == Quorum::kAll) {
      what_if.job.rounds.quorum = Quorum::kMajority;
      if (const auto partial = simulate(what_if); partial.ok()) {
        AddAdvice("--quorum=majority", report.result.iteration,
                  partial->iteration, report.advice);
      }
    }
    if (!with_.empty()) {
      report.shared = NEREUS_TRY(Share(report));
    }
    NEREUS_TRY(json_.Write(FormatSimulateText(report),
                           FormatSimulateJson(report), out));
    return kExitDone;
  }

  // Simulates the jobs of --with alone, and predicts all jobs together.
  absl::StatusOr<SharedReport> Share(const SimulateReport& own) const {
    std::vector<SharedReport::Job> jobs = {
        JobOf(own.model, own.what_if, own.result)};
    for (const std::string& path : with_) {
      WhatIfFlags flags;
      NEREUS_TRY(ReadWhatIf(path, flags));
      const auto with_path = [&path](const absl::Status& status) {
        return InvalidArgumentError("--with=", path, ": ", status.message());
      };
      const auto what_if = flags.Make(/*needs_times=*/true);
      if (!what_if.ok()) return with_path(what_if.status());
      const auto result = SimulateIterations(*what_if);
      if (!result.ok()) return with_path(result.status());
      jobs.push_back(JobOf(flags.model(), *what_if, *result));
    }
    for (const SharedReport::Job& job : jobs) {
      if (job.times.compute <= 0) {
        return InvalidArgumentError(
            "--with: ", job.model,
            " computes for no time, so it does not share a device");
      }
    }
    return ShareDevices(std::move(jobs));
  }

  // Returns a job's times on its busiest node.
  static SharedReport::Job JobOf(const std::string& model, const WhatIf& asked,
                                 const IterationResult& result) {
    SharedReport::Job job;
    job.model = model;
    job.times.compute = absl::ToDoubleSeconds(result.compute);
    job.times.alone = absl::ToDoubleSeconds(result.iteration);
    // Half of the bytes go each way.
    job.times.link =
        static_cast<double>(result.node_bytes[result.busiest_node]) / 2 /
        asked.node_rate;
    return job;
  }

  // Reads the flags of a job. The cluster is that of this command, unless the
  // file says otherwise. Errors: kInvalidArgument, with the file.
  absl::Status ReadWhatIf(const std::string& path, WhatIfFlags& flags) const {
    const std::string text = NEREUS_TRY(ReadTextFile(path));
    const auto lines = ParseOptionLines(text);
    if (!lines.ok()) {
      return InvalidArgumentError("--with=", path, ", ",
                                  lines.status().message());
    }
    CLI::App app;
    flags.Register(app);
    std::vector<std::string> arguments;
    for (const OptionLine& line : *lines) {
      if (app.get_option_no_throw("--" + line.name) == nullptr) {
        return InvalidArgumentError("--with=", path, ", line ", line.number,
                                    ": ", line.name,
                                    " is no flag of a job's question");
      }
      arguments.push_back(absl::StrCat("--", line.name, "=", line.value));
    }
    for (const char* name : kClusterFlags) {
      const bool is_set = absl::c_any_of(
          *lines, [name](const auto& line) { return line.name == name; });
      const CLI::Option* const own =
          this->app().get_option(absl::StrCat("--", name));
      if (is_set || own->count() == 0) continue;
      arguments.push_back(
          absl::StrCat("--", name, "=", own->as<std::string>()));
    }
    try {
      app.parse(std::move(arguments));
    } catch (const FlagError& error) {
      return InvalidArgumentError("--with=", path, ": ", error.flag().substr(2),
                                  error.what());
    } catch (const CLI::ParseError& error) {
      return InvalidArgumentError("--with=", path, ": ", error.what());
    }
    return absl::OkStatus();
  }

  // Adds the delay of --delay=`text`. Errors: kInvalidArgument.
  absl::Status AddDelay(const std::string& text) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text, absl::MaxSplits(':', 1));
    int worker = 0;
    if (parts.first != "turn" && !absl::SimpleAtoi(parts.first, &worker)) {
      return InvalidArgumentError("\"", text,
                                  "\" is not WORKER:SECONDS, as in 2:0.1s");
    }
    absl::Duration& delay = parts.first == "turn"
                                ? question_.asked().delay_in_turn
                                : question_.asked().delays[worker];
    delay = NEREUS_TRY(ParseTime(parts.second));
    return absl::OkStatus();
  }

  WhatIfFlags question_;  // Model, cluster, job, and more fields of WhatIf.
  std::vector<std::string> with_;  // Values of --with.
  JsonFlag json_;                  // --json
};

}  // namespace

std::unique_ptr<Command> MakeSimulateCommand() {
  return std::make_unique<SimulateCommand>();
}

}  // namespace nereus
