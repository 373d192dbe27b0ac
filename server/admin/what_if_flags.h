#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/protocol/job_spec.h"
#include "server/admin/simulate/simulated_iteration.h"

namespace nereus {

// Flags by which `nereusctl plan` and `nereusctl simulate` ask their question:
// a model, a cluster, and options of a job. Both commands have these flags with
// the same defaults, so that their answers can be compared.
class WhatIfFlags {
 public:
  // Adds the flags to `app`. Parsing writes into this object, which must live
  // as long as `app`.
  void Register(CLI::App& app);

  // Returns the question. Without `needs_times`, both --compute and
  // --compute-trace may be left out; then layers compute in no time.
  //
  // Errors: kInvalidArgument, a flag is missing, its value is impossible, or
  // two flags exclude each other; kUnavailable, a file cannot be read;
  // kDataLoss, a file has wrong content.
  absl::StatusOr<WhatIf> Make(bool needs_times) const;

  // Question as far as parsing sets it directly: latency and message time.
  // Before parsing, a command may add flags for jitter, delays and the like.
  // Make adds the model, the cluster, the job, the times and the rates.
  WhatIf& asked() { return asked_; }
  const std::string& model() const { return model_; }
  int64_t batch() const { return batch_; }
  const JobSpec& spec() const { return spec_; }
  // True if reports have a line for each layer. False: layers that are equal
  // share a line.
  bool all_layers() const { return all_layers_; }

 private:
  void AddNetworkFlags(CLI::App& app);
  void AddComputeFlags(CLI::App& app);
  absl::StatusOr<std::vector<LayerSpec>> Layers() const;
  absl::StatusOr<std::vector<LayerTime>> Times(
      const std::vector<LayerSpec>& layers) const;

  // Question with the fields that parsing sets: see asked().
  WhatIf asked_;
  // Value of --model. Empty: not given.
  std::string model_;
  // Values of --workers, --servers and --hosts. 0: --workers or --hosts is not
  // given, --servers is "colocated".
  ClusterShape cluster_{0, 0};
  // Value of --batch.
  int64_t batch_ = 32;
  // Value of --bandwidth.
  double bits_per_second_ = 0;
  // Value of --memory-bandwidth.
  double memory_bits_per_second_ = 0;
  // Value of --compute. Negative: not given.
  absl::Duration compute_;
  // Value of --backward-share.
  double backward_share_ = 0.667;
  // Value of --compute-trace. Empty: not given.
  std::string compute_trace_;
  // Options of the job.
  JobSpec spec_;
  // True with --waits-at-end.
  bool waits_at_end_ = false;
  // True with --all-layers.
  bool all_layers_ = false;
};

}  // namespace nereus
