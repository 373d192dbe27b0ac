#include "worker/measure/probe_plan.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/job.h"

namespace nereus {

ProbePlan PlanProbes(const EpochStart& start) {
  const Job& job = *start.job;
  const int rank = start.self.rank;
  const Lineup& lineup = job.LineupOf(kStepMax);
  const int host = lineup.HostOf(rank);
  if (host < 0) return {};  // This worker has left.
  const absl::Span<const int32_t> local = lineup.at(host);
  const int index = lineup.LocalOf(rank);
  const auto local_workers = static_cast<int>(local.size());
  if (index == 1 && !job.partial()) {
    return {Probed::kMemory, PeerId::Worker(local[0]), local_workers};
  }
  if (index > 0) return {};
  const int32_t own = job.workers[job.PositionOf(rank)].host;
  std::vector<int32_t> near;
  std::vector<int32_t> far;
  for (const EpochMember& member : start.epoch_members) {
    if (member.id.role != Role::kShard) continue;
    const bool is_near = own >= 0 && member.host == own;
    (is_near ? near : far).push_back(member.id.rank);
  }
  // Hosts probe different servers, if there are enough.
  const std::vector<int32_t>& servers = far.empty() ? near : far;
  return {Probed::kLink, PeerId::Shard(servers[host % servers.size()]),
          local_workers};
}

}  // namespace nereus
