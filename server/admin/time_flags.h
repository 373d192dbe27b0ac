#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/timeline.h"

namespace nereus {

// What a cluster's links carry, and what its devices compute, as the user says:
// --bandwidth, --latency, --message-time, --compute, --backward-share,
// --compute-trace.
class TimeFlags {
 public:
  void AddLinkFlags(CLI::App& app);
  void AddComputeFlags(CLI::App& app);

  // Whether one of --compute and --compute-trace is given.
  bool has_times() const {
    return !compute_.empty() || !compute_trace_.empty();
  }

  // Errors: kInvalidArgument, a value makes no sense, or neither or both of
  // --compute and --compute-trace are given; others, the trace cannot be read.
  absl::StatusOr<std::vector<LayerTime>> Times(
      absl::Span<const LayerSpec> layers) const;
  absl::StatusOr<LinkSpeed> Link() const;

 private:
  std::string bandwidth_ = "10Gbit";
  std::string latency_ = "20us";
  std::string message_time_ = "0s";
  std::string compute_;
  double backward_share_ = 0.667;
  std::string compute_trace_;  // A file; empty: none.
};

// A flag's value, or an error that names the flag.
template <typename T>
absl::StatusOr<T> FlagValue(const char* name, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": ", value.status().message()));
}

}  // namespace nereus
