#include "server/admin/time_flags.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "server/admin/quantity.h"

namespace nereus {

void TimeFlags::AddLinkFlags(CLI::App& app) {
  AddFlag(app, "bandwidth", bandwidth_,
          "of each machine, each way: 10Gbit, 400Mbit, unlimited");
  AddFlag(app, "latency", latency_, "of each frame: 20us, 1ms");
  AddFlag(app, "message-time", message_time_,
          "what each message costs a machine, sent and received, beside its "
          "bytes: 30us");
}

void TimeFlags::AddComputeFlags(CLI::App& app) {
  AddFlag(app, "compute", compute_,
          "forward and backward of one step on one machine: 0.925s; split over "
          "the layers by their operations");
  AddFlag(app, "backward-share", backward_share_,
          "of the compute time that is backward")
      ->check(CLI::Range(0.0, 1.0));
  AddFlag(app, "compute-trace", compute_trace_,
          "instead of --compute, a JSON file with each layer's times: "
          "{\"layers\": [{\"name\", \"forward_seconds\", "
          "\"backward_seconds\"}]}");
}

absl::StatusOr<std::vector<LayerTime>> TimeFlags::Times(
    absl::Span<const LayerSpec> layers) const {
  if (compute_.empty() == compute_trace_.empty()) {
    return absl::InvalidArgumentError(
        compute_.empty()
            ? "--compute=TIME of one machine's step is not given, nor "
              "--compute-trace=FILE with each layer's times"
            : "--compute and --compute-trace are both given: leave one out");
  }
  if (compute_trace_.empty()) {
    NEREUS_ASSIGN_OR_RETURN(const absl::Duration compute,
                            FlagValue("compute", ParseTime(compute_)));
    if (compute > kComputeTimeMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--compute: ", compute_, " is more than ",
                       absl::FormatDuration(kComputeTimeMax)));
    }
    return SplitCompute(layers, compute, backward_share_);
  }
  NEREUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(compute_trace_));
  absl::StatusOr<std::vector<LayerTime>> times =
      ParseComputeTrace(text, layers);
  if (times.ok()) return times;
  return absl::DataLossError(
      absl::StrCat(compute_trace_, ": ", times.status().message()));
}

absl::StatusOr<LinkSpeed> TimeFlags::Link() const {
  LinkSpeed link;
  NEREUS_ASSIGN_OR_RETURN(const double bits,
                          FlagValue("bandwidth", ParseBitRate(bandwidth_)));
  link.rate = bits / 8;
  NEREUS_ASSIGN_OR_RETURN(link.latency,
                          FlagValue("latency", ParseTime(latency_)));
  NEREUS_ASSIGN_OR_RETURN(link.message_time,
                          FlagValue("message-time", ParseTime(message_time_)));
  return link;
}

}  // namespace nereus
