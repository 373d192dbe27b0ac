#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/admin/command.h"
#include "server/admin/run_file.h"
#include "server/admin/verdict.h"
#include "server/admin/what_if_flags.h"

namespace nereus {

// `nereusctl plan`: how each layer of a model would travel in a cluster, why,
// and what it costs. Needs no cluster; but it can say, of a run that is over,
// what had been predicted and what was measured.
class PlanCommand : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;
  absl::Status RefuseIdleFlags(const CLI::App& subcommand, int argc,
                               char** argv) const override;

  // kExitUsage for an unknown model or impossible sizes, kExitFailed for a file
  // that cannot be read, understood or written.
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  struct Answer {
    ExplainedPlan plan;
    Verdict verdict;
  };

  // Of the run, or by the flags.
  absl::StatusOr<Answer> MakeAnswer() const;

  WhatIfFlags question_;
  std::vector<std::string> question_flags_;
  bool explain_ = false;
  std::string run_file_;   // Empty: of no run.
  std::string json_file_;  // Empty: standard output.
  CLI::App* subcommand_ = nullptr;
};

}  // namespace nereus
