#include "tests/simulation/frame_watch.h"

#include "common/base/crc32c.h"
#include "server/shard/chunk_rounds.h"
#include "server/shard/shard.h"

namespace nereus {
namespace {

uint32_t Checksum(const Buffer& buffer) {
  return Crc32c(buffer.data(), static_cast<size_t>(buffer.bytes()));
}

ChunkChecksums ChecksumsOf(const ChunkRounds& chunk) {
  return {Checksum(chunk.held().parameters), Checksum(chunk.held().state)};
}

// Returns the shard of a frame's chunk.
int ShardOf(const Job& job, const FrameHeader& header) {
  return job.placement
      .layer_chunks(static_cast<int>(header.layer))[header.chunk]
      .shard;
}

void WatchMemory(SimulatedWorld& world, const SimulatedProcess& process) {
  if (!process.alive || process.server == nullptr) return;
  world.laws.Tell(ServerHolds{process.shard(), process.server->held_bytes(),
                              process.start()->job.get()});
}

// Called when the primary has just heard that the backup has a chunk. If both
// have the same round open, their values must be equal.
void WatchBackup(SimulatedWorld& world, const SimulatedProcess& backup,
                 const SimulatedProcess& primary, const Job& job,
                 const FrameHeader& header) {
  const int index = ShardOf(job, header);
  const Shard* here = primary.server->shard(index);
  const Shard* there = backup.server->shard(index);
  if (here == nullptr || there == nullptr) return;
  const auto layer = static_cast<int>(header.layer);
  const auto chunk = static_cast<int>(header.chunk);
  const ChunkRounds& held = here->chunk(layer, chunk);
  const ChunkRounds& copied = there->chunk(layer, chunk);
  if (held.round() != copied.round()) return;
  world.laws.Tell(BackupHas{primary.id, backup.id, layer, chunk, held.round(),
                            ChecksumsOf(held), ChecksumsOf(copied)});
}

// Called when a worker has just received a result. A current backup must have
// the result too.
void WatchResult(SimulatedWorld& world, const SimulatedProcess& worker,
                 const FrameHeader& header) {
  const EpochStart& start = *worker.start();
  const int index = ShardOf(*start.job, header);
  const ShardServers& servers = start.job->shard_servers[index];
  if (!servers.backup_is_current) return;
  const auto found = FindProcess(start, PeerId::Shard(servers.backup));
  if (!found.has_value() || !world.processes.alive(*found)) return;
  const SimulatedProcess& backup = world.processes[*found];
  // A backup that is already in a later epoch may have another role there.
  if (backup.server == nullptr ||
      backup.start()->job->epoch > start.job->epoch) {
    return;
  }
  const auto layer = static_cast<int>(header.layer);
  const auto chunk = static_cast<int>(header.chunk);
  world.laws.Tell(
      ResultShown{worker.worker->rank(), layer, chunk, header.round, backup.id,
                  backup.server->shard(index)->chunk(layer, chunk).round()});
}

}  // namespace

void WatchFrame(SimulatedWorld& world, ProcessId from, ProcessId to,
                const FrameHeader& header) {
  const SimulatedProcess& sender = world.processes[from];
  const SimulatedProcess& receiver = world.processes[to];
  WatchMemory(world, receiver);
  // The values of a server that could not load a checkpoint are undefined.
  if (receiver.failed || sender.failed || receiver.lacks_values ||
      sender.lacks_values) {
    return;
  }
  if (header.kind == FrameKind::kHave && sender.alive) {
    WatchBackup(world, sender, receiver, world.laws.view().job(), header);
  }
  if (header.kind == FrameKind::kResult && header.sender.role == Role::kShard) {
    WatchResult(world, receiver, header);
  }
}

}  // namespace nereus
