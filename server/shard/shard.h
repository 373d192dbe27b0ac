#ifndef NEREUS_SERVER_SHARD_SHARD_H_
#define NEREUS_SERVER_SHARD_SHARD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/placement.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/verdicts.h"
#include "server/shard/aggregation_round.h"
#include "server/shard/checkpoint_collector.h"
#include "server/shard/chunk_copy.h"
#include "server/shard/partial_sum.h"

namespace nereus {

// One shard of the parameter servers: owns a set of chunks, and runs their
// rounds; or another server's copy of it, which follows them.
//
// Of each chunk it holds the parameters, the optimizer's state and the open
// round. A round closes when every worker of the epoch has contributed its
// gradient; then the update runs once and the result goes to all workers. With
// OptimizerPlace::kWorker the result is the mean gradient, and the parameters
// stay the initial ones.
//
// The life of a chunk: worker 0 contributes the initial parameters (round -1),
// or they are loaded from a checkpoint (the base round); every worker pulls
// them, then come the rounds after it. Chunks of layers whose rounds do not
// pass the servers (PassesServers) stay as of the base round.
//
// A new epoch drops what the open rounds have: the workers contribute to them
// again, in the new epoch, and those who missed the result of a round that was
// closed are sent it. With Overlap::kDecoupled nobody is sent a result who has
// not asked for it. So a dead worker's part of an open round is never
// counted, and that of a closed one is, for all alike.
//
// If the shard has a copy, a round whose contributions are all there is
// closing: its mean goes to the copy, which updates what it has, by the same
// arithmetic, and says so. Only then does the server update and the result go
// out. So what a worker has seen of a shard outlives the shard, to the last
// bit. A closing round stays what it is in later epochs.
//
//   open --all contributed--> closing --the copy has it--> closed
//
// Each epoch begins with the copy saying what it has of each chunk. It may be a
// round behind, where roles have changed, or have nothing, where it is new:
// then the server sends it the chunk as it is, one chunk at a time, and waits
// for it with that chunk alone.
//
// With NanPolicy::kSkip a round with all contributions waits for the verdict on
// its step, and is closed without an update if that is skipped.
//
// With a partial quorum (Job::partial) a round closes as soon as JobOptions::
// quorum, staleness and resync_every let it. Contributions to rounds that are
// closed already count in the open one, and their workers are answered at once,
// with the parameters as of now (shard_partial.cc).
//
// A checkpoint of a round is collected by reference: the next update of a chunk
// that is still to be written goes to memory of its own.
//
// Bounded: memory is linear in the shard's chunks, whatever the number of
// workers or their speed (but see JobOptions::deterministic).
class Shard final : public Machine {
 public:
  // `index`: this shard among job->shards(). `self`: the server whose it is.
  Shard(JobPtr job, int index, PeerId self);

  // The same, of the server that serves it.
  Shard(const JobPtr& job, int index)
      : Shard(job, index, PeerId::Shard(job->shard_servers[index].primary)) {}

  // Once, at first: loads the values of the base round, if the job goes on from
  // a checkpoint.
  void Start(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  // No round gets further from now on until OnEpoch, on the server or the copy,
  // so that what they report stays true.
  void Freeze() override { frozen_ = true; }
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;
  // Its server's votes on a step are all in.
  void OnVerdict(const StepVerdict& verdict, Outbox& out);

  int index() const { return index_; }
  // Whether this is the shard itself, and not the copy.
  bool serves() const {
    return job_->shard_servers[index_].primary == self_.rank;
  }

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
  int64_t chunk_count() const { return static_cast<int64_t>(slots_.size()); }

  // The oldest round that is open on some chunk, and who is missing from it:
  // for messages. Nothing if the shard has no chunks that take rounds.
  struct OpenRound {
    int32_t layer = 0;
    int64_t round = 0;
    std::vector<int> missing_workers;  // Ranks.
    int missing_copy = -1;  // The rank of the server that has to have it first.
  };
  std::optional<OpenRound> oldest_open_round() const;

  // What is held of a chunk of this shard, for tests and tools.
  const Buffer& parameters(int layer, int chunk) const {
    return SlotOf(layer, chunk).parameters;
  }
  const Buffer& state(int layer, int chunk) const {
    return SlotOf(layer, chunk).state;
  }
  int64_t open_round(int layer, int chunk) const {
    return SlotOf(layer, chunk).round;
  }
  const PartialSum& partial_sum(int layer, int chunk) const {
    return SlotOf(layer, chunk).partial;
  }

 private:
  // What a server knows of the copy of one chunk.
  enum class CopyState {
    kUnknown,  // It has not yet said what it has.
    kBehind,   // It needs the chunk.
    kSent,     // The chunk is on its way.
    kWhole,    // It follows the rounds.
  };

  // A worker that asked for a chunk's values as of a round that is still open.
  struct EarlyPull {
    int rank = 0;
    int64_t round = 0;
  };

  // One chunk's state.
  struct Slot {
    Slot(AggregationRound round, int64_t elements)
        : aggregation(std::move(round)), partial(elements) {}

    Chunk chunk;
    // The open one; kInitialRound until the initial parameters are there.
    int64_t round = kInitialRound;
    // The epochs in which the open one, and the one before, had all their
    // contributions.
    uint64_t completed_in = 0;
    uint64_t closed_in = 0;
    AggregationRound aggregation;
    // Of a sparse layer, of the last round that was closed in this epoch: by
    // frame, whether it was in it.
    std::vector<bool> closed_frames;
    PartialSum partial;   // Instead, with a partial quorum.
    int64_t updates = 0;  // The same: for the optimizer.
    Buffer parameters;
    Buffer state;    // Of the optimizer.
    Buffer average;  // OptimizerPlace::kWorker: of the last closed round.

    // The open round has all its contributions, whatever workers the next epoch
    // has. `aggregation` has their sum, times `scale` their mean.
    bool closing = false;
    bool skipped = false;  // It closes without an update.
    float scale = 1.0f;

    // The copy, as this epoch's server knows it.
    CopyState copy = CopyState::kUnknown;
    bool offered = false;  // It was sent the mean of the closing round.
    ChunkCopy incoming;    // On the copy: from the server.

    // Of this epoch, by the workers' positions: a worker may ask for a round
    // once, and is sent again once what it missed; the last such rounds.
    std::vector<int64_t> pulled;
    std::vector<int64_t> repeated;
    std::vector<EarlyPull> early_pulls;
  };

  // Whether a frame moves a round, which may not be moved now. Such a frame is
  // sent again in the next epoch.
  bool Ignores(FrameKind kind) const {
    return frozen_ && kind != FrameKind::kPull && kind != FrameKind::kOwned;
  }
  absl::StatusOr<Landing> FindLanding(PeerId from, const Slot& slot,
                                      const FrameHeader& header) const;
  absl::StatusOr<Landing> OnWorkerHeader(const Slot& slot,
                                         const FrameHeader& header,
                                         int position) const;
  absl::StatusOr<Landing> OnOwnedHeader(const Slot& slot,
                                        const FrameHeader& header,
                                        int position) const;
  absl::Status CheckContribution(const Slot& slot, const FrameHeader& header,
                                 int position) const;
  absl::StatusOr<Landing> OnPullHeader(const Slot& slot,
                                       const FrameHeader& header,
                                       int position) const;
  // Whether a worker may ask for a round's outcome: of one that it takes part
  // in, and that may be the last one closed, or the open one.
  bool MayGather(const Slot& slot, const FrameHeader& header,
                 int position) const;
  // Whether a contribution to a round that had all of them in an earlier epoch
  // asks for its result.
  bool AsksAgain(const Slot& slot, const FrameHeader& header,
                 int position) const;
  void Pull(Slot& slot, EarlyPull pull, Outbox& out);
  void ServeEarlyPulls(Slot& slot, Outbox& out);
  void SendValues(const Slot& slot, int rank, int64_t round, Outbox& out) const;
  // If the open round has all contributions, and may be closed, it is closing.
  void CompleteIfSettled(Slot& slot, Outbox& out);
  // Closes the round that is closing, unless the copy has to have it first.
  void CloseUnlessAwaited(Slot& slot, Outbox& out);
  void Close(Slot& slot, Outbox& out);
  void CloseInitial(Slot& slot, Outbox& out);
  // With the mean gradient times 1 / `scale`.
  void Update(Slot& slot, int64_t step, const Buffer& sum, float scale,
              Outbox& out);
  // Hands what is held to a checkpoint of `round`, or to the next plan, if one
  // wants it.
  void Collect(const Slot& slot, int64_t round, Outbox& out);
  void OnCollected(std::optional<CheckpointCollector::Collected> collected,
                   Outbox& out);
  // The routes of a new plan.
  void Reroute(const Job& before);
  void Load(Outbox& out);
  // Starts the epoch for one chunk, and then for all.
  void Reopen(Slot& slot) const;
  void Enter(Outbox& out);
  int ContributorsOf(const Slot& slot) const;
  void ReopenRound(Slot& slot) const;
  // Memory for what an update makes of a chunk: its own, if nobody reads it.
  Buffer RoomForUpdate(Slot& slot, Outbox& out) const;

  // Sparse layers, and that which says what of them travels (shard_sparse.cc).
  void UpdateFromRound(Slot& slot, Outbox& out);
  void UpdateBlocks(Slot& slot, Outbox& out);
  void ScaleSum(const Slot& slot, Outbox& out) const;
  void NoteFrames(Slot& slot) const;
  // Where all are gone who were to say what travels next, it stays as it was.
  void LeaveChoice(Slot& slot) const;
  // Calls `send` with the frames of a round's result: of a sparse one those
  // that were in it, or, if there are none, one without payload. `whole`: all,
  // and that one, for those who may have begun the round with another choice.
  template <typename Send>
  void SendResult(const Slot& slot, bool whole, FrameHeader header,
                  const Buffer& values, Send send) const;

  // With a partial quorum (shard_partial.cc).
  absl::StatusOr<Landing> OnPartialHeader(const Slot& slot,
                                          const FrameHeader& header,
                                          int position) const;
  void OnPartialFrame(Slot& slot, const Frame& frame, int position,
                      Outbox& out);
  // Closes the rounds that may be.
  void AdvancePartial(Slot& slot, Outbox& out);
  // The positions of those whose contributions the open round waits for.
  std::vector<int> AwaitedFor(const Slot& slot) const;
  // Whether a worker may have the values that it has asked for.
  bool MayHave(const Slot& slot, const EarlyPull& pull) const;
  // How many steps workers may be ahead of the open round.
  int64_t steps_ahead() const {
    return job_->options.quorum == Quorum::kEach ? job_->options.staleness : 0;
  }
  int64_t CountedOf(const Slot& slot, int position) const {
    return slot.partial.counted(job_->workers[position].rank);
  }

  // With the copy, on either side (shard_copy.cc).
  const ShardServers& servers() const { return job_->shard_servers[index_]; }
  bool has_copy() const { return serves() && servers().backup != -1; }
  // Whether the round that is closing has to wait for the copy.
  bool AwaitsCopy(const Slot& slot) const;
  // Whether workers may see what is here: the copy has it too.
  bool MayShow(const Slot& slot) const;
  absl::StatusOr<Landing> OnServerHeader(PeerId from, const Slot& slot,
                                         const FrameHeader& header) const;
  absl::StatusOr<Landing> OnSkipHeader(const Slot& slot,
                                       const FrameHeader& header) const;
  absl::StatusOr<Landing> OnCopyHeader(const Slot& slot,
                                       const FrameHeader& header) const;
  absl::StatusOr<Landing> OnHaveHeader(const Slot& slot,
                                       const FrameHeader& header) const;
  void OnServerFrame(Slot& slot, const Frame& frame, Outbox& out);
  void OnHave(Slot& slot, int64_t round, Outbox& out);
  void SayWhatIsHere(const Slot& slot, Outbox& out) const;
  void OfferMean(Slot& slot, Outbox& out) const;
  void SendNextCopy(Outbox& out);
  void SendCopy(const Slot& slot, Outbox& out) const;
  void TakeCopy(Slot& slot) const;
  ChunkCopy MakeCopy(const Slot& slot, int64_t round) const;
  // Index into slots_ of the chunk that a frame means. Errors:
  // kInvalidArgument.
  absl::StatusOr<int> FindSlot(const FrameHeader& header) const;
  const Slot& SlotOf(int layer, int chunk) const;
  // Whether a slot's parameters and state are those after `round`, if nobody
  // begins a later one.
  bool IsHereAsOf(int64_t round, const Slot& slot) const;
  // Whether rounds change the parameters held here.
  bool updates_here(const Slot& slot) const {
    return !job_->WorkersOwn(slot.chunk.layer);
  }
  SumOrder sum_order() const;
  FrameHeader ResultHeader(const Slot& slot, int64_t round) const;

  // Constant after construction.
  const PeerId self_;
  const int index_;
  std::vector<int>
      slot_of_chunk_;  // By position in placement; -1: another shard's.

  JobPtr job_;
  // The rank of a worker that sends what workers own as of the last round of
  // all; -1: there is none yet.
  int32_t last_sender_ = -1;
  int64_t saved_round_ = kInitialRound;  // Of the last checkpoint that is.
  Verdicts verdicts_;
  bool frozen_ = false;
  std::vector<Slot> slots_;
  int64_t behind_ = 0;    // Count of slots with CopyState::kBehind.
  bool copying_ = false;  // One is kSent.
  CheckpointCollector collector_;
  // As of Job::switch_round, of the chunks that workers own; none yet.
  std::optional<CheckpointCollector::Collected> handed_over_;
};

template <typename Send>
void Shard::SendResult(const Slot& slot, bool whole, FrameHeader header,
                       const Buffer& values, Send send) const {
  const FrameGrid grid = job_->GridOf(slot.chunk);
  if (!job_->IsSparse(slot.chunk.layer)) {
    return CutIntoFrames(*job_, header, grid, values, send);
  }
  whole = whole || slot.closed_frames.empty();
  bool none = true;
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!whole && !slot.closed_frames[index]) continue;
    send(CutFrame(*job_, header, grid, index, values));
    none = false;
  }
  if (!whole && !none) return;
  header.wire = job_->WireOf(header);
  send(Frame{header, {}});
}

}  // namespace nereus

#endif  // NEREUS_SERVER_SHARD_SHARD_H_
