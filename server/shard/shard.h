#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/placement.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "server/shard/chunk_rounds.h"
#include "server/shard/round_saver.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// One shard of the parameter servers: routes frames to the rounds of its chunks
// (ChunkRounds), and does what concerns all chunks together. A server holds a
// shard either as its primary or as its backup.
//
// Worker 0 contributes the initial parameters, or they are loaded from a
// checkpoint; every worker pulls them; then rounds follow. Chunks of layers
// that do not use the servers stay as of the base round. With
// OptimizerPlace::kWorker a result is the mean gradient, and the parameters
// stay the initial ones.
//
// Each epoch begins with the backup saying, per chunk, which rounds it has. The
// primary sends the chunks that the backup lacks one at a time, so that rounds
// of the other chunks go on meanwhile.
//
// Memory: linear in the shard's chunks, whatever the number or the speed of the
// workers (but see JobOptions::deterministic).
class Shard final : public Machine {
 public:
  // `index`: this shard among job->shards(). `self`: the server whose it is.
  Shard(JobPtr job, int index, PeerId self);

  // The same, of the server that serves it.
  Shard(const JobPtr& job, int index)
      : Shard(job, index, PeerId::Shard(job->shard_servers[index].primary)) {}
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Once, at first: loads the values of the base round, if the job goes on from
  // a checkpoint.
  void Start(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  // No round gets further from now on until OnEpoch, on the server or the copy,
  // so that what they report stays true.
  void Freeze() override { epoch_.frozen = true; }
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;
  // Its server's votes on a step are all in.
  void OnVerdict(const StepVerdict& verdict, Outbox& out);

  int index() const { return epoch_.shard; }
  // True if this server is the shard's primary.
  bool serves() const { return epoch_.serves(); }

  // The last round that is closed for every chunk of the model that takes
  // rounds; none if there is no such chunk.
  std::optional<int64_t> closed_round() const;

  // Whether all that the plan's last round comes to is here.
  bool drained() const;

  // Whether the copy has all that workers have seen of this shard.
  bool copy_is_whole() const;

  // Parameters and optimizer state held, in bytes.
  int64_t stored_bytes() const;
  // The same with what open rounds and checkpoints under way hold; twice where
  // those share it.
  int64_t held_bytes() const;
  int64_t chunk_count() const { return static_cast<int64_t>(chunks_.size()); }

  // The oldest round that is open on some chunk, and who is missing from it:
  // for messages. Nothing if the shard has no chunks that take rounds.
  struct OpenRound {
    int32_t layer = 0;
    int64_t round = 0;
    std::vector<int> missing_workers;  // Ranks.
    int missing_copy = -1;  // The rank of the server that has to have it first.
  };
  std::optional<OpenRound> oldest_open_round() const;

  // One chunk of this shard, for tests and tools.
  const ChunkRounds& chunk(int layer, int chunk) const;

 private:
  // True for a frame that moves a round while no round may move. The sender
  // sends it again in the next epoch.
  bool Ignores(FrameKind kind) const {
    return epoch_.frozen && kind != FrameKind::kPull &&
           kind != FrameKind::kOwned;
  }
  // Returns the index into chunks_ of the chunk that a frame means. Errors:
  // kInvalidArgument.
  absl::StatusOr<int> FindIndex(const FrameHeader& header) const;
  absl::StatusOr<Landing> FindLanding(PeerId from, int index,
                                      const FrameHeader& header) const;
  // Notes whether the backup lacks the chunk, after the backup has said so.
  void NoteBackup(int index, Outbox& out);
  void SendNextToBackup(Outbox& out);
  void Load(Outbox& out);
  void Enter(Outbox& out);

  ShardEpoch epoch_;
  RoundSaver saver_;
  std::deque<ChunkRounds> chunks_;
  std::vector<int> index_of_chunk_;  // By position in the placement, or -1.
  std::set<int> behind_;  // Indexes of the chunks that the backup lacks.
  int sending_ = -1;      // Index of the chunk on its way to it; -1: none.
};

}  // namespace nereus
