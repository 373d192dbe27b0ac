#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"
#include "server/admin/simulate/simulated_iteration.h"
#include "server/admin/time_flags.h"

namespace nereus {

// The question that `nereusctl plan` and `nereusctl simulate` answer: which
// model, on which cluster, by which job's options. The same flags with the same
// defaults, so that both answer one question.
class WhatIfFlags {
 public:
  void Register(CLI::App& app);

  // `needs_times`: one of --compute and --compute-trace is required; otherwise
  // layers compute in no time without them.
  //
  // Errors: kInvalidArgument, a flag is missing or makes no sense; others, a
  // file cannot be read.
  absl::StatusOr<WhatIf> Make(bool needs_times) const;

  const std::string& model() const { return model_; }
  int64_t batch() const { return batch_; }
  const JobSpec& spec() const { return spec_; }
  bool has_times() const { return times_.has_times(); }
  // Whether reports have a line for each layer, equal or not.
  bool all_layers() const { return all_layers_; }

 private:
  absl::StatusOr<ClusterShape> Cluster() const;

  std::string model_;
  int64_t workers_ = 0;
  std::string servers_ = "colocated";
  int64_t batch_ = 32;
  JobSpec spec_;
  TimeFlags times_;
  bool all_layers_ = false;
};

}  // namespace nereus
