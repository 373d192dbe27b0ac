#include "server/admin/what_if_flags.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/flags/flags.h"
#include "common/flags/model_file.h"
#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"

namespace nereus {
namespace {

constexpr char kColocated[] = "colocated";

}  // namespace

void WhatIfFlags::Register(CLI::App& app) {
  AddFlag(app, "model", model_, DescribeModelFlag());
  AddFlag(app, "workers", workers_, "machines with a worker")
      ->check(CLI::Range(int64_t{1}, kWorkersMax));
  AddFlag(app, "servers", servers_,
          "server shards: a number of them, on the first machines, or "
          "colocated: one on each worker's machine");
  AddFlag(app, "batch", batch_, "samples per worker and step")
      ->check(CLI::Range(int64_t{1}, kBatchMax));
  times_.AddLinkFlags(app);
  times_.AddComputeFlags(app);
  // A job's first steps are not what one asks for.
  spec_.options.dense_steps = 0;
  AddJobOptions(app, spec_,
                {"scheme", "cost", "wire", "overlap", "fusion", "quorum",
                 "staleness", "resync", "sparsity", "block", "dense-steps"});
  AddSwitch(app, "all-layers", all_layers_,
            "shows each layer in a line of its own, not equal layers in one");
}

absl::StatusOr<ClusterShape> WhatIfFlags::Cluster() const {
  ClusterShape cluster{workers_, workers_};
  if (servers_ == kColocated) return cluster;
  if (!absl::SimpleAtoi(servers_, &cluster.servers) || cluster.servers < 1 ||
      cluster.servers > kServersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--servers: \"", servers_, "\" is neither ", kColocated,
                     " nor a number from 1 to ", kServersMax));
  }
  return cluster;
}

absl::StatusOr<WhatIf> WhatIfFlags::Make(bool needs_times) const {
  if (model_.empty()) return absl::InvalidArgumentError("--model is required");
  if (workers_ == 0) return absl::InvalidArgumentError("--workers is required");
  WhatIf what_if;
  NEREUS_ASSIGN_OR_RETURN(what_if.plan.cluster, Cluster());
  what_if.plan.rules = spec_.rules;
  what_if.job = spec_.options;
  NEREUS_ASSIGN_OR_RETURN(what_if.layers, LoadModelOrFile(model_, batch_));
  if (needs_times || has_times()) {
    NEREUS_ASSIGN_OR_RETURN(what_if.times, times_.Times(what_if.layers));
  } else {
    what_if.times.resize(what_if.layers.size());
  }
  NEREUS_ASSIGN_OR_RETURN(const LinkSpeed link, times_.Link());
  what_if.node_rate = link.rate;
  what_if.latency = link.latency;
  what_if.message_time = link.message_time;
  return what_if;
}

}  // namespace nereus
