#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/printable.h"
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

// Flags that the jobs of --with have in common with the question's job.
constexpr absl::string_view kClusterFlags[] = {
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
    const std::vector<Other> others = NEREUS_TRY(ReadOthers());
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
    if (!others.empty()) {
      std::vector<SharedReport::Job> jobs = {
          JobOf(report.model, report.what_if, report.result)};
      for (const Other& other : others) {
        const IterationResult result = NEREUS_TRY(simulate(other.what_if));
        jobs.push_back(JobOf(other.path, other.what_if, result));
      }
      report.shared = NEREUS_TRY(Share(std::move(jobs)));
    }
    NEREUS_TRY(json_.Write(FormatSimulateText(report),
                           FormatSimulateJson(report), out));
    return kExitDone;
  }

  // A job of --with.
  struct Other {
    std::string path;
    WhatIf what_if;
  };

  // Reads the jobs of --with. Errors: kInvalidArgument, with the file.
  absl::StatusOr<std::vector<Other>> ReadOthers() const {
    std::vector<Other> others;
    for (const std::string& path : with_) {
      auto what_if = ReadOther(path);
      if (!what_if.ok()) {
        return InvalidArgumentError("--with=", path, ": ",
                                    what_if.status().message());
      }
      others.push_back({path, *std::move(what_if)});
    }
    return others;
  }

  absl::StatusOr<WhatIf> ReadOther(const std::string& path) const {
    const std::string text = NEREUS_TRY(ReadTextFile(path));
    const auto lines = NEREUS_TRY(ParseOptionLines(text));
    WhatIfFlags flags;
    CLI::App app;
    app.set_help_flag();
    flags.Register(app);
    std::vector<std::string> names;
    for (CLI::Option* const option : app.get_options()) {
      names.push_back(option->get_single_name());
      option->envname("");  // The variables are for the question's job.
    }
    std::vector<std::string> arguments;
    for (const OptionLine& line : lines) {
      if (absl::c_linear_search(kClusterFlags, line.name)) {
        return InvalidArgumentError(
            "line ", line.number, ": ", line.name,
            " is a flag of the cluster, which is the same for all jobs");
      }
      if (!absl::c_linear_search(names, line.name)) {
        return InvalidArgumentError("line ", line.number, ": \"",
                                    Printable(line.name),
                                    "\" is not a flag that the file may have",
                                    Suggest(line.name, names));
      }
      arguments.push_back(absl::StrCat("--", line.name, "=", line.value));
    }
    for (const absl::string_view name : kClusterFlags) {
      const std::string flag = absl::StrCat("--", name);
      const CLI::Option* const own = this->app().get_option(flag);
      if (own->count() == 0) continue;
      arguments.push_back(absl::StrCat(flag, "=", own->as<std::string>()));
    }
    try {
      app.parse(std::move(arguments));
    } catch (const FlagError& error) {
      return InvalidArgumentError(error.flag().substr(2), error.what());
    } catch (const CLI::ParseError& error) {
      return InvalidArgumentError(error.what());
    }
    return flags.Make(/*needs_times=*/true);
  }

  // Predicts all jobs together. Errors: kInvalidArgument.
  static absl::StatusOr<SharedReport> Share(
      std::vector<SharedReport::Job> jobs) {
    const auto [shortest, longest] = std::minmax_element(
        jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
          return a.times.alone < b.times.alone;
        });
    for (const SharedReport::Job& job : jobs) {
      if (job.times.compute > 0) continue;
      return InvalidArgumentError(
          job.name, " computes for no time, so it cannot share a device");
    }
    if (longest->times.alone > kSharingRatioMax * shortest->times.alone) {
      return InvalidArgumentError("--with: a step of ", longest->name,
                                  " is more than ", kSharingRatioMax,
                                  " times as long as one of ", shortest->name);
    }
    return ShareDevices(std::move(jobs));
  }

  // Returns a job's times on its busiest node.
  static SharedReport::Job JobOf(const std::string& name, const WhatIf& asked,
                                 const IterationResult& result) {
    SharedReport::Job job;
    job.name = name;
    job.times.compute = absl::ToDoubleSeconds(result.compute);
    job.times.alone = absl::ToDoubleSeconds(result.iteration);
    // Half of the bytes go each way.
    job.times.link =
        static_cast<double>(result.node_bytes[result.busiest_node]) / 2 /
        asked.node_rate;
    return job;
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
