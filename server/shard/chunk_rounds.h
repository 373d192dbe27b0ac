#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/machine.h"
#include "server/shard/chunk_replica.h"
#include "server/shard/copy_checksums.h"
#include "server/shard/full_round.h"
#include "server/shard/held_chunk.h"
#include "server/shard/partial_round.h"
#include "server/shard/round_saver.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Rounds of one chunk, on its primary or on its backup.
//
// The first round is kInitialRound (-1). It has one contribution: the initial
// parameters, from the first worker of the epoch. In a job that goes on from a
// checkpoint, the first round is the one after the checkpoint's. In each later
// round every host contributes the sum of its workers' gradients, through the
// worker that carries the chunk for the host. The round then closes: the
// optimizer updates the parameters once, the result goes to the carriers, and
// the next round opens. A worker that joins asks for the last result before its
// first step, and the server answers this worker alone.
//
// Phases of the open round on the primary (enum Phase):
//
//   kCollecting --all have contributed, verdict known--> kClosing
//   kClosing ----no backup, or one that delays no round--> next round
//   kClosing ----mean sent to the backup--> kOffered
//   kOffered ----the backup has the round----------------> next round
//   kOffered ----new epoch, still primary--> kClosing
//   any phase ---new epoch, now backup-----> kCollecting, with no contribution
//
// ChunkReplica::DelaysClosing says which backups delay no round. A current
// backup has every result that a worker has seen, to the last bit. On the
// backup a round has one contribution, the mean that the primary sends.
//
// On a server that stays the primary, a complete round keeps its sum in later
// epochs, whatever workers they have. A new epoch drops the contributions to a
// round that is not complete, and the workers contribute again. So the gradient
// of a dead worker is either in a round for all workers or for none.
//
// With a partial quorum (Job::partial), rounds after the initial one close by
// PartialRound's rule; such a job has no backups. A contribution that arrives
// after its round has closed counts in the open round, and the server answers
// its worker with the current parameters.
class ChunkRounds {
 public:
  enum class Phase {
    kCollecting,  // Contributions are missing, or the verdict on the step.
    kClosing,     // Complete; the mean was not sent to the backup yet.
    kOffered,     // The mean was sent to the backup in this epoch.
  };

  // `epoch`, `saver` and `checksums` are borrowed and must outlive this.
  // `index`: index of the chunk among the shard's chunks.
  ChunkRounds(const ShardEpoch* epoch, RoundSaver* saver,
              CopyChecksums* checksums, int index, const Chunk& chunk);
  ChunkRounds(const ChunkRounds&) = delete;
  ChunkRounds& operator=(const ChunkRounds&) = delete;

  // Allocates memory for the values as of the base round, and opens the round
  // after it. Returns true if the caller must load the values. Returns false
  // for the block layer, which begins with all blocks chosen.
  bool Restore();

  // Start an epoch. The shard calls each of them for all its chunks before the
  // next one. Reroute takes the chunk to its new route; the shard calls it if
  // it was the primary and a route has changed. Reopen begins the open round
  // again. Enter sends frames and closes rounds. `before`: job of the epoch
  // before.
  void Reroute(const Job& before);
  void Reopen();
  void Enter(Outbox& out);

  // Check and handle frames, as Machine does: of the worker at `position`, and
  // of the other server of the shard.
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

  // Gives the saver the values as of `round`, the last round of the job, if
  // this chunk or the saver has them.
  void SaveLast(int64_t round, Outbox& out);

  // Asks for the checksums of the values as of `round`, the last round of the
  // job, for the comparison with the other copy.
  void CompareLast(int64_t round, Outbox& out);

  // Values as of the last closed round.
  const HeldChunk& held() const { return held_; }
  int64_t round() const { return round_; }  // Number of the open round.
  int layer() const { return held_.chunk.layer; }
  bool is_block_layer() const { return layer() == epoch_.job->pool.layer; }
  bool uses_servers() const { return epoch_.UsesServers(layer()); }
  // True if the open round is complete and closes only when the backup has its
  // mean.
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
    // Last step whose contribution to a partial round was answered, or waits in
    // `waiting` for its answer; by worker's position.
    std::vector<int64_t> repeated;
    std::vector<PullRequest> waiting;  // Requests that have no answer yet.
  };

  // Returns the number of the contributor (FullRound) that a contribution comes
  // from: the index of the sender's host in the line-up of its round; 0 in the
  // initial round. Errors: kInvalidArgument, the round or the sender is wrong.
  absl::StatusOr<int> FindContributor(const FrameHeader& header,
                                      int position) const;
  // Checks a request for values. Each worker may ask once for each round.
  absl::StatusOr<Landing> OnPullHeader(const FrameHeader& header,
                                       int position) const;
  // True if the round was complete in an earlier epoch. Its result was sent, if
  // at all, to workers of that epoch, and may have been lost.
  bool WasComplete(int64_t round) const;

  // Answers a request at once, or keeps it until the answer is allowed: for
  // example, until the round that it names has closed.
  void Answer(PullRequest request, Outbox& out);
  // Calls Answer for all waiting requests; those that still have no answer keep
  // waiting.
  void AnswerWaiting(Outbox& out);

  // Opens the round `round_`, or begins it again.
  void ReopenRound();
  // Closes a complete round, unless the backup must have its mean first.
  void CloseUnlessAwaited(Outbox& out);
  // Applies the round, sends the result, and opens the next round.
  void Close(Outbox& out);
  // Asks for the checksums of the values as of `round` (CopyChecksums), if
  // another server has a copy of them.
  void Compare(int64_t round, Outbox& out);
  void OpenNext(Outbox& out);
  // Notes that the backup has all rounds before `round`, and closes the open
  // round if it has waited for this.
  void OnHave(int64_t round, Outbox& out);

  // Returns the values of a contribution from the worker `rank`. The addend
  // asks the driver to look for NaNs, if the job checks contributions and no
  // carrier has checked these values.
  Addend AddendOf(const Frame& frame, int rank) const;
  // Counts a frame of a contribution to a partial round, and answers a
  // contribution that is whole or repeated.
  void OnPartialFrame(const Frame& frame, int position, Outbox& out);
  // Closes the partial rounds that may close.
  void AdvancePartial(Outbox& out);

  const ShardEpoch& epoch_;
  RoundSaver& saver_;
  CopyChecksums& checksums_;
  const int index_;                // Index of the chunk among the shard's.
  HeldChunk held_;                 // Values as of the last closed round.
  int64_t round_ = kInitialRound;  // Open round.
  Phase phase_ = Phase::kCollecting;
  FullRound full_;               // Contributions to the open round.
  PartialRound partial_;         // Replaces full_ in rounds that are partial.
  int64_t partial_updates_ = 0;  // Optimizer steps made by partial rounds.
  uint64_t completed_in_ = 0;    // Epoch in which the open round got complete.
  bool skipped_ = false;         // True if the closing round makes no update.
  float scale_ = 1.0f;           // Factor from the sum to the mean.
  Requests requests_;
  ChunkReplica replica_;  // Replication to or from the shard's other server.
};

}  // namespace nereus
