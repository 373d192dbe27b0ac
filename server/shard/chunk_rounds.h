#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/machine.h"
#include "server/shard/chunk_replica.h"
#include "server/shard/full_round.h"
#include "server/shard/held_chunk.h"
#include "server/shard/partial_round.h"
#include "server/shard/round_saver.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Rounds of one chunk, on its primary or on its backup.
//
// The first round, kInitialRound, has the initial parameters of worker 0; a
// chunk from a checkpoint begins with the round after the checkpoint's. In each
// later round every host contributes the sum of its workers' gradients, through
// the worker that carries the chunk for the host. The round then closes: the
// optimizer updates the parameters once, the result goes to the carriers, and
// the next round opens. Workers that join ask for the last result
// before their first step, and are answered one by one.
//
// Phases of the open round on the primary (enum Phase):
//
//   kCollecting --all have contributed, verdict known--> kClosing
//   kClosing ----no backup, or it lacks the chunk--------> next round
//   kClosing ----mean sent to the backup--> kOffered
//   kOffered ----the backup has the round----------------> next round
//   kOffered ----new epoch, still primary--> kClosing
//   any phase ---new epoch, now backup-----> kCollecting, with no contribution
//
// So a current backup has every result that a worker has seen, to the last bit.
// On the backup a round has one contribution, the mean that the primary sends.
// A round that is closing stays so in later epochs, whatever workers they have.
// A new epoch drops the contributions of a round that is collecting, and the
// workers contribute again: a dead worker's gradient is in the open round for
// no worker, and in a closed round for all.
//
// With a partial quorum (Job::partial), rounds after the initial one close by
// PartialRound's rule; such a job has no backups. Contributions to closed
// rounds count in the open one, and their workers are answered with the current
// parameters.
class ChunkRounds {
 public:
  enum class Phase {
    kCollecting,  // Contributions are missing, or the verdict on the step.
    kClosing,     // Complete; the backup must have the mean first.
    kOffered,     // The backup was sent the mean in this epoch.
  };

  // `epoch` and `saver` are borrowed and must outlive this. `index`: position
  // of the chunk among the shard's.
  ChunkRounds(const ShardEpoch* epoch, RoundSaver* saver, int index,
              const Chunk& chunk);
  ChunkRounds(const ChunkRounds&) = delete;
  ChunkRounds& operator=(const ChunkRounds&) = delete;

  // Allocates the values as of the base round, which the caller loads. Returns
  // false if there is nothing to load: the block layer begins with all blocks.
  bool Restore();

  // Start an epoch, in this order: Reroute, on the primary, if the routes have
  // changed; Reopen begins the open round again; Enter, when all chunks have
  // reopened, sends frames and closes rounds.
  void Reroute(const Job& before);
  void Reopen();
  void Enter(Outbox& out);

  // Take frames of the worker at `position`, and of the other server.
  absl::StatusOr<Landing> OnWorkerHeader(const FrameHeader& header,
                                         int position) const;
  void OnWorkerFrame(const Frame& frame, int position, Outbox& out);
  absl::StatusOr<Landing> OnServerHeader(const FrameHeader& header) const;
  void OnServerFrame(const Frame& frame, Outbox& out);

  // Starts to close the open round if all contributions are here and the
  // verdict on the step is known.
  void CompleteIfDecided(Outbox& out);
  // Sends the whole chunk to the backup, which lacks a round.
  void SendToBackup(Outbox& out);

  // Gives the saver the values as of `round`, the last round of the job.
  void SaveLast(int64_t round, Outbox& out);

  // Values as of the last closed round.
  const HeldChunk& held() const { return held_; }
  int64_t round() const { return round_; }  // Open round.
  int layer() const { return held_.chunk.layer; }
  bool is_block_layer() const { return layer() == epoch_.job->pool.layer; }
  bool uses_servers() const { return epoch_.UsesServers(layer()); }
  // True if all contributions have arrived and the backup must have the mean
  // first.
  bool waits_for_backup() const { return phase_ != Phase::kCollecting; }
  ChunkReplica::State backup_state() const { return replica_.state(); }
  const PartialRound& partial() const { return partial_; }

  // Positions of the workers that the open round waits for.
  std::vector<int> MissingWorkers() const;
  // Memory of the values and of the open round, in bytes.
  int64_t held_bytes() const;

 private:
  // Requests of the workers in this epoch. Each worker may ask for a round
  // once. Without this limit, a worker that only asks would fill the queue of
  // frames to it.
  struct Requests {
    std::vector<int64_t> pulled;  // Last round pulled, by worker's position.
    // Last step with an answered contribution to a partial round, likewise.
    std::vector<int64_t> repeated;
    std::vector<PullRequest> waiting;  // Requests for rounds still open.
  };

  // Returns the number of the contributor that sends a contribution to a full
  // round: of the sender's host in the line-up. Errors: kInvalidArgument, the
  // round or the sender is wrong.
  absl::StatusOr<int> FindContributor(const FrameHeader& header,
                                      int position) const;
  // Checks a request for values. Each worker may ask once for each round.
  absl::StatusOr<Landing> OnPullHeader(const FrameHeader& header,
                                       int position) const;
  // True if the round was complete in an earlier epoch. Its result was sent, if
  // at all, to workers of that epoch, and may have been lost.
  bool WasComplete(int64_t round) const;

  // Answers a request at once, or when the round it names is closed.
  void Answer(PullRequest request, Outbox& out);
  // Answers all waiting requests again; requests for rounds that are still open
  // keep waiting.
  void AnswerWaiting(Outbox& out);

  // Opens the round `round_`, or begins it again.
  void ReopenRound();
  // Closes a complete round, unless the backup must have it first.
  void CloseUnlessAwaited(Outbox& out);
  // Applies the round, sends the result, and opens the next round.
  void Close(Outbox& out);
  void OpenNext(Outbox& out);
  // Notes that the backup has all rounds before `round`, and closes the open
  // round if it waited for that.
  void OnHave(int64_t round, Outbox& out);

  // Returns a contribution from the worker `rank`, with the check that the job
  // asks for.
  Addend AddendOf(const Frame& frame, int rank) const;
  // Counts a contribution to a partial round, or answers a repeated one.
  void OnPartialFrame(const Frame& frame, int position, Outbox& out);
  // Closes the partial rounds that may close.
  void AdvancePartial(Outbox& out);

  const ShardEpoch& epoch_;
  RoundSaver& saver_;
  const int index_;                // Index of the chunk among the shard's.
  HeldChunk held_;                 // Values as of the last closed round.
  int64_t round_ = kInitialRound;  // Open round.
  Phase phase_ = Phase::kCollecting;
  FullRound full_;               // Contributions to the open round.
  PartialRound partial_;         // Replaces full_ after round -1, if partial.
  int64_t partial_updates_ = 0;  // Optimizer steps made by partial rounds.
  uint64_t completed_in_ = 0;    // Epoch in which the open round was complete.
  bool skipped_ = false;         // True if the closing round makes no update.
  float scale_ = 1.0f;           // Factor from the sum to the mean.
  Requests requests_;
  ChunkReplica replica_;  // Relation to the other server of the shard.
};

}  // namespace nereus
