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
// The first worker contributes the initial parameters, or they are loaded from
// a checkpoint; every worker pulls them; then rounds follow. Chunks of layers
// that do not use the servers stay as of the base round. With
// OptimizerPlace::kWorker a result is the mean gradient, and the parameters of
// all chunks stay as of the base round.
//
// Each epoch begins with the backup saying, per chunk, which rounds it has. The
// primary sends the chunks that the backup lacks one at a time, so that rounds
// of the other chunks go on meanwhile.
//
// Memory: linear in the shard's chunks, whatever the number or the speed of the
// workers (but see JobOptions::deterministic).
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
  // and begins the epoch. Call it once, first.
  void Start(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  // Do the same for a caller that has called CheckFrame, and FindChunk for
  // `chunk`.
  absl::StatusOr<Landing> OnHeader(PeerId from, const FrameHeader& header,
                                   const Chunk& chunk) const;
  void OnFrame(PeerId from, const Frame& frame, const Chunk& chunk,
               Outbox& out);
  // Stops all rounds until OnEpoch, on the primary or on the backup, so that
  // their reports stay true.
  void Freeze() override { epoch_.frozen = true; }
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;
  // Notes the verdict on a step, for which rounds may have waited.
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
  bool drained() const;

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
    int missing_backup = -1;  // Rank of the backup that must have it first.
  };
  // Returns the oldest one. Empty if the shard has no chunk that takes rounds.
  std::optional<OpenRound> oldest_open_round() const;

  // Rounds of one chunk of this shard, for tests and tools.
  const ChunkRounds& chunk(int layer, int chunk) const;

 private:
  // True for a frame that moves a round while no round may move. The sender
  // sends it again in the next epoch.
  bool Ignores(FrameKind kind) const {
    return epoch_.frozen && kind != FrameKind::kPull &&
           kind != FrameKind::kOwned;
  }
  // Returns the index of a chunk in chunks_, or -1 if it is another shard's.
  int IndexOf(const Chunk& chunk) const;
  // Asks the chunk where a frame lands, if its sender may send to this server.
  absl::StatusOr<Landing> FindLanding(PeerId from, int index,
                                      const FrameHeader& header) const;
  // Notes whether the backup lacks the chunk, after a frame of the backup.
  // Sends the next chunk if none is on its way.
  void NoteBackup(int index, Outbox& out);
  // Sends the backup the next chunk that it lacks, unless one is on its way.
  void SendNextToBackup(Outbox& out);
  // Asks the driver for the values of the base round.
  void Load(Outbox& out);

  ShardEpoch epoch_;                // Borrowed by saver_ and chunks_.
  RoundSaver saver_;                // Rounds that are saved.
  std::deque<ChunkRounds> chunks_;  // A deque: chunks do not move.
  // Index in chunks_ of each chunk of the placement; -1: of another shard.
  std::vector<int> index_of_chunk_;
  std::set<int> behind_;  // Indexes of the chunks that the backup lacks.
  int sending_ = -1;      // Index of the chunk on its way to it; -1: none.
};

}  // namespace nereus
