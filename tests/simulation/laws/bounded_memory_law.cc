#include "tests/simulation/laws/bounded_memory_law.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/compute/optimizer.h"

namespace nereus {

int64_t BoundedMemoryLaw::BytesMax(const Job& job, int server) {
  int64_t values = 0;
  for (const Chunk& chunk : job.placement.chunks()) {
    const ShardServers& servers = job.shard_servers[chunk.shard];
    const bool is_held = servers.primary == server || servers.backup == server;
    if (is_held) values += chunk.length;
  }
  // A server may have the parameters and the optimizer's state three times: in
  // use, and in two checkpoints or in a copy from another server. It may have
  // as many values three times more: the mean, the open sum, and a result that
  // is still being sent. In a deterministic job, each worker's contribution may
  // wait for its turn.
  const int64_t states = OptimizerStateCount(job.options.optimizer.rule);
  const int64_t waiting = job.options.deterministic ? job.worker_count() : 0;
  return values * static_cast<int64_t>(sizeof(float)) *
         (3 * (1 + std::max<int64_t>(states, job.state_arrays)) + 3 + waiting);
}

void BoundedMemoryLaw::Observe(const ClusterEvent& event) {
  const auto* holds = std::get_if<ServerHolds>(&event);
  if (holds == nullptr) return;
  const int64_t bytes_max = BytesMax(*holds->job, holds->server);
  if (holds->bytes <= bytes_max) return;
  Breach({}, absl::StrCat("server ", holds->server, " holds ", holds->bytes,
                          " bytes, at most ", bytes_max, " are right"));
}

}  // namespace nereus
