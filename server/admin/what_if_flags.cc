#include "server/admin/what_if_flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"
#include "server/admin/quantity.h"

namespace nereus {
namespace {

constexpr char kColocated[] = "colocated";

// Returns the number of servers. 0: one on each host with workers.
absl::StatusOr<int64_t> ParseServers(absl::string_view text) {
  int64_t servers = 0;
  if (text == kColocated) return servers;
  if (absl::SimpleAtoi(text, &servers) && servers >= 1 &&
      servers <= kServersMax) {
    return servers;
  }
  return InvalidArgumentError("\"", text, "\" is neither ", kColocated,
                              " nor a number from 1 to ", kServersMax);
}

}  // namespace

void WhatIfFlags::Register(CLI::App& app) {
  AddFlag(app, "model", model_, DescribeModelFlag());
  AddNumber(app, "workers", cluster_.workers, 1, kWorkersMax,
            "number of workers");
  AddNumber(
      app, "hosts", cluster_.hosts, 1, kWorkersMax,
      "number of machines, over which the workers are spread evenly, and "
      "the servers if they are more; without it each worker has a machine "
      "of its own")
      ->default_str("");
  AddParsedFlag(app, "servers", cluster_.servers, ParseServers, kColocated,
                "number of servers, on the first machines; or colocated: one "
                "server on each machine with workers");
  AddNumber(app, "batch", batch_, 1, kBatchMax,
            "samples of each worker in a step");
  AddNetworkFlags(app);
  AddComputeFlags(app);
  // The default of --dense-steps is 0 here: the question is about a job that
  // has run for a while.
  spec_.options.sparsity.dense_steps = 0;
  AddJobOptions(
      app, spec_,
      {"scheme", "cost", "wire", "overlap", "fusion", "chunk", "quorum",
       "staleness", "resync", "sparsity", "block", "dense-steps"});
  AddSwitch(app, "waits-at-end", waits_at_end_,
            "programs wait for all layers at the end of a step, as those of "
            "PyTorch do by default; without it, for each layer before its "
            "forward");
  AddSwitch(app, "all-layers", all_layers_,
            "show a line for each layer; without it, equal layers share a "
            "line");
}

void WhatIfFlags::AddNetworkFlags(CLI::App& app) {
  AddParsedFlag(
      app, "bandwidth", bits_per_second_, ParseBitRate, "10Gbit",
      "bandwidth of each machine, each way, such as 10Gbit, 400Mbit or "
      "unlimited");
  AddParsedFlag(app, "latency", asked_.latency, ParseTimeWithUnit, "20us",
                "latency of each frame, such as 20us or 1ms");
  AddParsedFlag(app, "message-time", asked_.message_time, ParseTimeWithUnit,
                "0s",
                "time of a machine's processor for each message, sent or "
                "received, such as 30us");
  AddParsedFlag(app, "memory-bandwidth", memory_bits_per_second_, ParseBitRate,
                "unlimited",
                "bandwidth of each machine's memory, for what its processes "
                "send each other, such as 100Gbit or unlimited");
}

void WhatIfFlags::AddComputeFlags(CLI::App& app) {
  AddParsedFlag(app, "compute", compute_, ParseTimeWithUnit, "0s",
                "time of one machine for forward and backward of a step, such "
                "as 0.925s; it is split over the layers by their operations")
      ->default_str("");
  compute_ = -absl::InfiniteDuration();  // Not given: a given time is >= 0.
  AddNumber(app, "backward-share", backward_share_, 0.0, 1.0,
            "share of --compute that is backward");
  AddFlag(app, "compute-trace", compute_trace_,
          "instead of --compute, a JSON file with each layer's times: "
          "{\"layers\": [{\"name\", \"forward_seconds\", "
          "\"backward_seconds\"}]}");
}

absl::StatusOr<std::vector<LayerSpec>> WhatIfFlags::Layers() const {
  if (model_.empty()) return InvalidArgumentError("--model is required");
  if (cluster_.workers == 0) {
    return InvalidArgumentError("--workers is required");
  }
  return LoadModelOrFile(model_, batch_);
}

// Returns the times of --compute or of --compute-trace. Returns an error if
// both flags are given, or neither.
absl::StatusOr<std::vector<LayerTime>> WhatIfFlags::Times(
    const std::vector<LayerSpec>& layers) const {
  const bool has_compute = compute_ >= absl::ZeroDuration();
  if (has_compute == !compute_trace_.empty()) {
    return InvalidArgumentError(
        has_compute
            ? "--compute and --compute-trace are both given: leave one out"
            : "--compute=TIME of one machine's step is not given, nor "
              "--compute-trace=FILE with each layer's times");
  }
  if (has_compute) return SplitCompute(layers, compute_, backward_share_);
  return LoadComputeTrace(compute_trace_, layers);
}

absl::StatusOr<WhatIf> WhatIfFlags::Make(bool needs_times) const {
  if (cluster_.hosts != 0 && spec_.options.rounds.quorum != Quorum::kAll) {
    return InvalidArgumentError(
        "--hosts needs --quorum=all: in partial rounds each worker sends by "
        "itself, as without --hosts");
  }
  WhatIf what_if = asked_;
  what_if.waits_in_forward = !waits_at_end_;
  what_if.layers = NEREUS_TRY(Layers());
  what_if.plan.cluster = cluster_;
  if (cluster_.servers == 0)
    what_if.plan.cluster.servers = cluster_.worker_hosts();
  what_if.plan.rules = spec_.rules;
  what_if.job = spec_.options;
  // Times of 0, unless the caller needs times or a flag gives them.
  what_if.times.resize(what_if.layers.size());
  if (needs_times || compute_ >= absl::ZeroDuration() ||
      !compute_trace_.empty()) {
    what_if.times = NEREUS_TRY(Times(what_if.layers));
  }
  what_if.node_rate = bits_per_second_ / kBitsPerByte;
  what_if.memory_rate = memory_bits_per_second_ / kBitsPerByte;
  return what_if;
}

}  // namespace nereus
