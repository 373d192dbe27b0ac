#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "common/base/status.h"
#include "common/plan/placement.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "server/shard/chunk_rounds.h"
#include "server/shard/round_saver.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// A shard of the parameter servers: routes frames to the rounds of its chunks
// (ChunkRounds), and does all work that concerns several chunks: epochs,
// checkpoints, and bringing the backup up to date. A server holds a shard
// either as its primary or as its backup.
//
// The first worker contributes the initial parameters, or the shard loads them
// from a checkpoint. Every worker pulls them. Then rounds follow. Chunks of
// layers that do not use the servers stay as of the base round. With
// OptimizerPlace::kWorker a result is the mean gradient, and the parameters of
// all chunks stay as of the base round.
//
// At the beginning of each epoch the backup says for each chunk which rounds it
// has. If it lacks a round, the primary sends it the whole chunk. The primary
// sends only one chunk at a time, so that rounds of the other chunks go on
// meanwhile.
//
// Memory: linear in the shard's chunks, whatever the number or the speed of the
// workers. JobOptions::deterministic needs more memory.
class Shard final : public Machine {
 public:
  // `index`: number of this shard among job->shards(). `self`: this server,
  // which is the primary or the backup of the shard.
  Shard(JobPtr job, int index, PeerId self);

  // Makes the shard on its primary.
  Shard(const JobPtr& job, int index)
      : Shard(job, index, PeerId::Shard(job->shard_servers[index].primary)) {}
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Loads the values of the base round if the job goes on from a checkpoint,
  // and begins the epoch. The caller calls this once, before all other methods.
  void Start(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  // Do the same without CheckFrame and FindChunk: the caller has called these,
  // and FindChunk has returned `chunk`.
  absl::StatusOr<Landing> OnHeader(PeerId from, const FrameHeader& header,
                                   const Chunk& chunk) const;
  void OnFrame(PeerId from, const Frame& frame, const Chunk& chunk,
               Outbox& out);
  // Stops all rounds until OnEpoch, on the primary and on the backup, so that
  // the report of this server stays true.
  void Freeze() override { epoch_.frozen = true; }
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;
  std::optional<ReplicaChecksums> OnChecksum(const ChecksumValues& checked,
                                             uint32_t crc) override;
  // Notes the verdict on a step, and closes the rounds that have waited for it.
  void OnVerdict(const StepVerdict& verdict, Outbox& out);

  // Number of this shard among job->shards().
  int index() const { return epoch_.shard; }
  // True if this server is the shard's primary.
  bool serves() const { return epoch_.serves(); }

  // Last round that is closed for every chunk that takes rounds. Empty if there
  // is no such chunk. Chunks of the block layer do not count.
  std::optional<int64_t> closed_round() const;

  // True if the job has a switch round, all rounds up to it are closed, and the
  // values that workers hand over as of it have arrived.
  bool ready_to_switch() const;

  // True on the primary if the backup is current for every chunk: it has all
  // results that workers have seen of this shard.
  bool has_current_backup() const;

  // Bytes of parameters and optimizer state.
  int64_t stored_bytes() const;
  // Bytes of stored_bytes(), of open rounds and of checkpoints under way.
  // Memory that two of them share counts twice.
  int64_t held_bytes() const;
  int64_t chunk_count() const { return std::ssize(chunks_); }

  // Round that is open on some chunk, and the members that it waits for; for
  // messages.
  struct OpenRound {
    int32_t layer = 0;
    int64_t round = 0;
    std::vector<int> missing_workers;  // Ranks of workers.
    // Rank of the backup that must have the round's mean first; -1: none.
    int missing_backup = -1;
  };
  // Returns the oldest open round. Empty if the shard has no chunk that takes
  // rounds.
  std::optional<OpenRound> oldest_open_round() const;

  // Rounds of one chunk of this shard, for tests and tools.
  const ChunkRounds& chunk(int layer, int chunk) const;

 private:
  // True if the shard ignores frames of this kind, because they would advance a
  // round while the shard is frozen. The sender sends them again in the next
  // epoch.
  bool Ignores(FrameKind kind) const {
    return epoch_.frozen && kind != FrameKind::kPull &&
           kind != FrameKind::kOwned;
  }
  // Returns the index of a chunk in chunks_, or -1 if it is another shard's.
  int IndexOf(const Chunk& chunk) const;
  // Returns the landing of a frame from its chunk, or an error if the sender
  // may not send this server such frames.
  absl::StatusOr<Landing> FindLanding(PeerId from, int index,
                                      const FrameHeader& header) const;
  // Notes, after a frame of the backup, whether the backup lacks a round of the
  // chunk. Sends the backup the next chunk of behind_ if none is on its way.
  void NoteBackup(int index, Outbox& out);
  // Sends the backup the next of the chunks in behind_, unless a chunk is on
  // its way.
  void SendNextToBackup(Outbox& out);
  // Asks the driver for the values of the base round.
  void Load(Outbox& out);

  ShardEpoch epoch_;         // Borrowed by saver_, checksums_ and chunks_.
  RoundSaver saver_;         // Values of rounds that are to be saved.
  CopyChecksums checksums_;  // Checksums for the coordinator.
  std::deque<ChunkRounds> chunks_;  // A deque, as ChunkRounds cannot be moved.
  // Index in chunks_ of each chunk of the placement; -1: of another shard.
  std::vector<int> index_of_chunk_;
  // Indexes of the chunks of which the backup lacks a round.
  std::set<int> behind_;
  int sending_ = -1;  // Index of the chunk on its way to the backup; -1: none.
};

}  // namespace nereus
