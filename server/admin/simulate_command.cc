#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
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
    NEREUS_TRY(json_.Write(FormatSimulateText(report),
                           FormatSimulateJson(report), out));
    return kExitDone;
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
  JsonFlag json_;         // --json
};

}  // namespace

std::unique_ptr<Command> MakeSimulateCommand() {
  return std::make_unique<SimulateCommand>();
}

}  // namespace nereus
