#include "server/admin/node_bytes.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/plan/host_map.h"
#include "common/plan/traffic.h"
#include "common/plan/wide_integer.h"
#include "common/protocol/frame.h"
#include "common/protocol/job_options.h"

namespace nereus {
namespace {

// True if a host has several workers, and they add up their gradients before
// the host sends.
bool SumsOnHosts(const LocalOptions& options) {
  return options.cluster().shares_hosts() &&
         options.spec.options.rounds.quorum == Quorum::kAll;
}

// Returns the hosts that workers, by rank, and shards play.
HostMap HostsOf(const LocalOptions& options,
                const std::vector<WorkerResult>& results) {
  const HostMap processes = HostMap::Of(options.cluster());
  std::vector<int32_t> workers;
  for (const WorkerResult& worker : results) {
    workers.push_back(processes.HostOfWorker(worker.process));
  }
  std::vector<int32_t> shards;
  for (int64_t shard = 0; shard < processes.shards(); ++shard) {
    shards.push_back(processes.HostOfShard(shard));
  }
  return HostMap(std::move(workers), std::move(shards));
}

// Returns the bytes of each node: those of its workers and of its servers.
// Bytes between processes of one node do not count.
std::vector<int64_t> MeasuredBytes(const std::vector<WorkerResult>& workers,
                                   const HostMap& hosts) {
  std::vector<WideInteger> nodes(hosts.hosts());
  for (const WorkerResult& worker : workers) {
    const int32_t own = hosts.HostOfWorker(worker.rank);
    for (const WorkerTraffic& traffic : worker.traffic) {
      const int32_t peer = traffic.is_shard ? hosts.HostOfShard(traffic.rank)
                                            : hosts.HostOfWorker(traffic.rank);
      if (peer == own) continue;
      const WideInteger bytes =
          WideInteger{traffic.bytes_sent} + traffic.bytes_received;
      nodes[own] += bytes;
      // Each of two workers reports the traffic between them. Shards report
      // nothing, so the worker's figure counts for the shard too.
      if (traffic.is_shard) nodes[peer] += bytes;
    }
  }
  std::vector<int64_t> bytes;
  for (const WideInteger node : nodes) bytes.push_back(SaturateToInt64(node));
  return bytes;
}

// Returns the bytes of each node, exactly as the protocol would send them: the
// initial parameters once, and then the same bytes in each step.
std::vector<int64_t> PredictedBytes(const JobOptions& options,
                                    const PlanReport& plan,
                                    const HostMap& hosts, int64_t steps) {
  std::vector<int64_t> bytes = PredictInitialBytes(
      plan.plan.routes, plan.placement, hosts, kFrameHeaderBytes,
      kFrameElementsMax, options.optimizer_place == OptimizerPlace::kServer);
  const std::vector<int64_t> step =
      PredictLinkBytes(plan.layers, plan.plan.routes, plan.placement, hosts,
                       kFrameHeaderBytes, kFrameElementsMax);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = SaturateToInt64(bytes[i] + WideInteger{step[i]} * steps);
  }
  return bytes;
}

}  // namespace

int64_t NodeBytes::Busiest(const std::vector<int64_t>& nodes) {
  return nodes.empty() ? 0 : *absl::c_max_element(nodes);
}

bool PlansByTime(const JobSpec& spec) {
  const PlanRules rules = RulesFor(spec.options, spec.rules);
  return rules.cost == CostKind::kTime && rules.choose() &&
         !spec.options.deterministic;
}

ClusterShape PlannedCluster(const LocalOptions& options) {
  ClusterShape cluster = options.cluster();
  if (!SumsOnHosts(options)) cluster.hosts = 0;
  return cluster;
}

std::string WhyNotPredicted(const LocalOptions& options) {
  const JobSpec& spec = options.spec;
  if (spec.options.sparsity.share > 0) {
    return "not predicted, because the sizes of the blocks that travel with "
           "--sparsity are not known beforehand";
  }
  if (options.cluster().shares_hosts() && !SumsOnHosts(options)) {
    return absl::StrCat("not predicted, because with --quorum=",
                        QuorumName(spec.options.rounds.quorum),
                        " each worker of a host sends by itself");
  }
  if (!PlansByTime(spec)) return "";
  return "not predicted, because the plan may change while a job runs: "
         "--cost=bytes keeps the first plan";
}

NodeBytes CountNodeBytes(const LocalOptions& options, const PlanReport& plan,
                         const std::vector<WorkerResult>& workers) {
  const HostMap hosts = HostsOf(options, workers);
  NodeBytes bytes;
  bytes.measured = MeasuredBytes(workers, hosts);
  if (WhyNotPredicted(options).empty()) {
    bytes.predicted = PredictedBytes(options.spec.options, plan, hosts,
                                     workers[0].steps.done);
  }
  return bytes;
}

}  // namespace nereus
