#include "server/admin/simulate_command.h"

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "server/admin/quantity.h"
#include "server/admin/simulate_report.h"
#include "server/admin/time_flags.h"
#include "server/admin/verdict.h"

namespace nereus {
namespace {

constexpr int kIterationsMax = 1000;
constexpr absl::Duration kProgressInterval = absl::Seconds(2);

int Fail(const absl::Status& status, std::ostream& err) {
  err << "nereusctl simulate: " << std::string(status.message()) << "\n";
  const bool usage =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return usage ? kExitUsage : kExitFailed;
}

bool IsDelayed(const WhatIf& what_if) {
  return what_if.delay_in_turn > absl::ZeroDuration() ||
         !what_if.delays.empty();
}

WhatIf WithoutDelays(WhatIf what_if) {
  what_if.delay_in_turn = absl::ZeroDuration();
  what_if.delays.clear();
  return what_if;
}

// Says every kProgressInterval how far a run is; nothing for short ones.
class Progress {
 public:
  explicit Progress(std::ostream& err) : err_(err) {}

  void Show(double done) {
    const absl::Time now = absl::Now();
    if (now - shown_at_ < kProgressInterval) return;
    shown_at_ = now;
    err_ << absl::StrFormat("simulating: %3.0f %%, %.0f s\n", 100 * done,
                            absl::ToDoubleSeconds(now - started_at_))
         << std::flush;
  }

 private:
  std::ostream& err_;
  const absl::Time started_at_ = absl::Now();
  absl::Time shown_at_ = started_at_;
};

}  // namespace

CLI::App* SimulateCommand::Register(CLI::App& app) {
  subcommand_ = app.add_subcommand(
      "simulate",
      "Says what an iteration would take on a cluster: runs the protocol "
      "itself on a modelled network");
  question_.Register(*subcommand_);
  AddFlag(*subcommand_, "jitter", jitter_,
          "up to this more latency, by chance");
  subcommand_
      ->add_option("--delay", delays_,
                   "WORKER:SECONDS: before each forward of that worker; may be "
                   "given several times; turn:SECONDS: of another worker in "
                   "each step")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("TEXT");
  AddFlag(*subcommand_, "host-copy", host_copy_,
          "what copying all gradients to host memory and all parameters back "
          "takes if nothing overlaps");
  AddFlag(*subcommand_, "iterations", iterations_,
          "iterations to measure, after one that warms up; 0: one, or, with "
          "--delay or --jitter, as many as it takes until more of them change "
          "their mean by half a per cent at most")
      ->check(CLI::Range(0, kIterationsMax));
  AddFlag(*subcommand_, "seed", seed_, "of the jitter");
  subcommand_
      ->add_option("--json", json_file_,
                   "prints JSON; with =FILE, writes it to that file")
      ->expected(0, 1);
  return subcommand_;
}

absl::Status SimulateCommand::SetDelays(WhatIf& what_if) const {
  for (const std::string& text : delays_) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text, absl::MaxSplits(':', 1));
    if (parts.first == "turn") {
      NEREUS_ASSIGN_OR_RETURN(what_if.delay_in_turn,
                              FlagValue("delay", ParseTime(parts.second)));
      continue;
    }
    int worker = 0;
    if (!absl::SimpleAtoi(parts.first, &worker)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--delay: \"", text, "\" is not WORKER:SECONDS, as in 2:0.1s"));
    }
    NEREUS_ASSIGN_OR_RETURN(what_if.delays[worker],
                            FlagValue("delay", ParseTime(parts.second)));
  }
  return absl::OkStatus();
}

absl::StatusOr<WhatIf> SimulateCommand::MakeWhatIf() const {
  NEREUS_ASSIGN_OR_RETURN(WhatIf what_if, question_.Make(/*needs_times=*/true));
  NEREUS_RETURN_IF_ERROR(SetDelays(what_if));
  NEREUS_ASSIGN_OR_RETURN(what_if.jitter,
                          FlagValue("jitter", ParseTime(jitter_)));
  NEREUS_ASSIGN_OR_RETURN(what_if.host_copy,
                          FlagValue("host-copy", ParseTime(host_copy_)));
  what_if.iterations = iterations_;
  what_if.seed = seed_;
  return what_if;
}

absl::Status SimulateCommand::RefuseIdleFlags(const CLI::App& subcommand,
                                              int argc, char** argv) const {
  return RefuseIdleJobFlags(subcommand, argc, argv, question_.spec(), {});
}

int SimulateCommand::Run(std::ostream& out, std::ostream& err) {
  absl::StatusOr<WhatIf> what_if = MakeWhatIf();
  if (!what_if.ok()) return Fail(what_if.status(), err);
  Progress progress(err);
  const auto simulate = [&progress](const WhatIf& asked) {
    return SimulateIterations(
        asked, [&progress](double done) { progress.Show(done); });
  };
  absl::StatusOr<IterationResult> result = simulate(*what_if);
  if (!result.ok()) return Fail(result.status(), err);
  std::vector<Verdict::Advice> advice = FindAdvice(*what_if);
  absl::Duration late = absl::ZeroDuration();
  if (IsDelayed(*what_if)) {
    // What the delays add shows in the iteration without them.
    const auto punctual = simulate(WithoutDelays(*what_if));
    if (!punctual.ok()) return Fail(punctual.status(), err);
    late = std::max(late, result->iteration - punctual->iteration);
    if (what_if->job.quorum == Quorum::kAll) {
      WhatIf partial = *what_if;
      partial.job.quorum = Quorum::kMajority;
      const auto other = simulate(partial);
      if (other.ok()) {
        AddAdvice("--quorum=majority", result->iteration, other->iteration,
                  advice);
      }
    }
  }
  const SimulateReport report{question_.model(),
                              question_.batch(),
                              *std::move(what_if),
                              *std::move(result),
                              late,
                              std::move(advice),
                              question_.all_layers()};

  if (subcommand_ == nullptr || subcommand_->count("--json") == 0) {
    out << FormatSimulateText(report);
    return kExitDone;
  }
  const std::string json = FormatSimulateJson(report);
  if (json_file_.empty()) {
    out << json << "\n";
    return kExitDone;
  }
  const absl::Status written = WriteTextFile(json_file_, json);
  return written.ok() ? kExitDone : Fail(written, err);
}

}  // namespace nereus
