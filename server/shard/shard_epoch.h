#pragma once

#include <cstdint>

#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "common/protocol/peer.h"
#include "common/protocol/verdicts.h"

namespace nereus {

// Facts about one shard in the current epoch. All chunks of the shard read
// them.
//
// The Shard owns and changes them. The chunks borrow them, so that a chunk
// never works with the job of an epoch that is over.
struct ShardEpoch {
  JobPtr job;           // Job as of the epoch.
  int shard = 0;        // Index of the shard among job->shards().
  PeerId self;          // This server: the shard's primary or its backup.
  Verdicts verdicts;    // Verdicts on the last steps, with NanPolicy::kSkip.
  bool frozen = false;  // True while no round may advance: the epoch is ending.

  const ShardServers& servers() const { return job->shard_servers[shard]; }
  // True if this server runs the shard's rounds; false on its backup.
  bool serves() const { return servers().primary == self.rank; }
  // True if this server runs the rounds and another server follows them.
  bool has_backup() const { return serves() && servers().backup != -1; }

  // The other server of the shard, if it has a backup.
  PeerId other() const {
    return PeerId::Shard(serves() ? servers().backup : servers().primary);
  }

  // Returns the rank of the worker that carries a chunk for `host`, a host in
  // the line-up of `round`.
  int32_t CarrierOf(const Chunk& chunk, int64_t round, int host) const {
    return job->CarrierOf(chunk.layer, chunk.index, round, host);
  }
  // Returns the ranks of the chunk's carriers, one for each host of `round`.
  RankList CarriersOf(const Chunk& chunk, int64_t round) const;

  // True if the servers aggregate the gradients of `layer`.
  bool UsesServers(int layer) const {
    return nereus::UsesServers(job->routes[layer].scheme);
  }
  // True if `round` may close without all contributions.
  bool IsPartial(int64_t round) const {
    return job->partial() && round != kInitialRound;
  }
  // True if the servers update the parameters of `layer`, in the rounds of its
  // chunks; false if workers own the layer.
  bool Updates(int layer) const { return !job->WorkersOwn(layer); }
};

}  // namespace nereus
