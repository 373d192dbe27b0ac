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
#include "common/flags/model_file.h"
#include "common/plan/compute_times.h"
#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"
#include "server/admin/quantity.h"
#include "server/admin/simulate_report.h"

namespace nereus {
namespace {

constexpr char kColocated[] = "colocated";
constexpr int kIterationsMax = 1000;
constexpr absl::Duration kProgressInterval = absl::Seconds(2);

int Fail(const absl::Status& status, std::ostream& err) {
  err << "nereusctl simulate: " << std::string(status.message()) << "\n";
  const bool usage =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return usage ? kExitUsage : kExitFailed;
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
  AddFlag(*subcommand_, "model", model_, DescribeModelFlag())->required();
  AddClusterFlags();
  times_.AddComputeFlags(*subcommand_);
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
          "iterations to measure, after one that warms up")
      ->check(CLI::Range(1, kIterationsMax));
  AddFlag(*subcommand_, "seed", seed_, "of the jitter");
  subcommand_
      ->add_option("--json", json_file_,
                   "prints JSON; with =FILE, writes it to that file")
      ->expected(0, 1);
  return subcommand_;
}

void SimulateCommand::AddClusterFlags() {
  AddFlag(*subcommand_, "workers", workers_, "machines with a worker")
      ->check(CLI::Range(int64_t{1}, kSimulatedNodesMax))
      ->required();
  AddFlag(*subcommand_, "servers", servers_,
          "server shards: a number of them, on the first machines, or "
          "colocated: one on each worker's machine");
  AddFlag(*subcommand_, "batch", batch_, "samples per worker and step")
      ->check(CLI::Range(int64_t{1}, kBatchMax));
  times_.AddLinkFlags(*subcommand_);
  AddFlag(*subcommand_, "jitter", jitter_,
          "up to this more latency, by chance");
  rules_.cost = CostKind::kTime;
  AddPlanFlags(*subcommand_, rules_, /*knows_times=*/true);
  AddOverlapFlag(*subcommand_, job_.overlap);
  AddFusionFlag(*subcommand_, job_.fusion_bytes, job_.tune_fusion);
  AddQuorumFlags(*subcommand_, job_);
  job_.dense_steps = 0;
  AddSparsityFlags(*subcommand_, job_);
}

absl::Status SimulateCommand::SetPlan(WhatIf& what_if) const {
  what_if.plan.cluster = {workers_, workers_};
  if (servers_ != kColocated) {
    int64_t& servers = what_if.plan.cluster.servers;
    if (!absl::SimpleAtoi(servers_, &servers) || servers < 1 ||
        servers > kSimulatedNodesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--servers: \"", servers_, "\" is neither ", kColocated,
                       " nor a number from 1 to ", kSimulatedNodesMax));
    }
  }
  what_if.plan.rules = rules_;
  return absl::OkStatus();
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
  WhatIf what_if;
  NEREUS_RETURN_IF_ERROR(SetPlan(what_if));
  NEREUS_ASSIGN_OR_RETURN(what_if.layers, LoadModelOrFile(model_, batch_));
  NEREUS_ASSIGN_OR_RETURN(what_if.times, times_.Times(what_if.layers));
  NEREUS_RETURN_IF_ERROR(SetDelays(what_if));
  NEREUS_ASSIGN_OR_RETURN(const LinkSpeed link, times_.Link());
  what_if.node_rate = link.rate;
  what_if.latency = link.latency;
  what_if.message_time = link.message_time;
  NEREUS_ASSIGN_OR_RETURN(what_if.jitter,
                          FlagValue("jitter", ParseTime(jitter_)));
  NEREUS_ASSIGN_OR_RETURN(what_if.host_copy,
                          FlagValue("host-copy", ParseTime(host_copy_)));
  what_if.job = job_;
  what_if.iterations = iterations_;
  what_if.seed = seed_;
  return what_if;
}

int SimulateCommand::Run(std::ostream& out, std::ostream& err) {
  absl::StatusOr<WhatIf> what_if = MakeWhatIf();
  if (!what_if.ok()) return Fail(what_if.status(), err);
  Progress progress(err);
  absl::StatusOr<IterationResult> result = SimulateIterations(
      *what_if, [&progress](double done) { progress.Show(done); });
  if (!result.ok()) return Fail(result.status(), err);
  const SimulateReport report{model_, batch_, *std::move(what_if),
                              *std::move(result)};

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
