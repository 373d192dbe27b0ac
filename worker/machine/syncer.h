#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/verdicts.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/sparse_gradient.h"

namespace nereus {

// One layer's memory, the caller's.
struct LayerMemory {
  Buffer parameters;  // float32 of the whole layer.
  // What a worker that joins must be given beside the parameters, where the
  // caller's own optimizer runs: arrays of as many values each, one after the
  // other. May be empty.
  Buffer state;
  // Whether mean gradients for the caller's own optimizer go to where gradients
  // were pushed from. Else schemes that make them elsewhere leave them there,
  // as they are until the layer is pushed again.
  bool means_in_place = true;
  // In a sparse job: what is held back is the machine's. Else whoever carries
  // out SplitGradient has it.
  bool holds_here = true;
};

// What the caller hands over for one round of a fully connected layer. All
// float32, borrowed from the caller until the round is done.
struct FactorBuffers {
  Buffer output_gradient;  // K x M
  Buffer input;            // K x N
  Buffer gradient;         // {parameters}: for the mean gradient; may be empty.
  float scale = 1.0f;      // What output_gradient is to be multiplied by.
};

// One layer's rounds on one worker (Poseidon's syncer): takes the contribution
// when backprop has produced it, and says LayerDone when the round's outcome is
// in place.
//
//   fetching --all values are there--> idle <--push, done--> a round is open
//
// An open round is reduced, from the contribution on, and gathered, from Gather
// on; with any Overlap but kDecoupled both go on together.
//
// Each scheme is a kind of syncer. Common to all is the start: the layer's
// values as of the round before this worker's first one, from the shards, or
// from a worker where the workers own them. A new epoch asks again for what is
// missing, and contributes again. Pure; the worker machine owns it and calls
// it.
class Syncer {
 public:
  virtual ~Syncer() = default;

  // The syncer for the layer's route.
  static std::unique_ptr<Syncer> Make(JobPtr job, int layer, int rank,
                                      LayerMemory memory);

  // Asks for the layer's values, whose memory is written from now on. The first
  // worker of a new job sends them.
  void Start(Outbox& out);

  // Instead: goes on where `before`, the layer's syncer by another route, has
  // ended; with what the shards have of that, once it has been fetched again.
  void Adopt(const Syncer& before, Outbox& out);
  void Refetch(Outbox& out);

  // The caller's contribution to `round`, which is held until Send. Errors:
  // kInvalidArgument, not the round after the last one that is done;
  // kFailedPrecondition, the scheme needs factors.
  absl::Status Push(int64_t round, Buffer gradient, Outbox& out);
  absl::Status PushFactors(int64_t round, FactorBuffers factors, Outbox& out);

  // Sends the contribution that is held, if one is; of a sparse layer what
  // `choice` has travel of it (SparseGradient::Begin).
  void Send(Outbox& out, const BlockChoice& choice = nullptr,
            const Buffer& norms = Buffer());

  // With Overlap::kDecoupled: asks for the outcome of the open round, if nobody
  // has. REQUIRES: waits().
  void Gather(Outbox& out);

  // The caller has done its last step, and updated the layer, if that is its
  // part.
  void Leave(Outbox& out);

  // This worker is to send the shards what workers own of the layer, as of
  // `round`, after which all have left.
  void SaveLast(int64_t round, Outbox& out) const;

  // The job's next epoch; the layer's route is as it was. What was sent for a
  // checkpoint may have been lost with the old one. What is held stays so.
  void OnEpoch(JobPtr job, Outbox& out);

  // With NanPolicy::kSkip: what is to be done about the open round. Nobody is
  // told that a round is done before.
  void OnVerdict(const StepVerdict& verdict, Outbox& out);

  // A frame of this layer, already checked against the job.
  virtual absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const;
  virtual void OnFrame(const FrameHeader& header, Outbox& out);

  const LayerMemory& memory() const { return memory_; }

  // The last round that is done; below kInitialRound before the values are
  // there.
  int64_t done_round() const { return done_round_; }
  bool fetching() const { return done_round_ < kInitialRound; }
  // Whether the caller has pushed a round that is not done.
  bool waits() const { return pushed(); }
  int64_t pushed_round() const { return pushed_round_; }
  // Whether the contribution to the open round has not been sent.
  bool held() const { return held_; }
  // Whether the caller has been told of all that is done.
  bool told() const { return told_; }
  // Whether its outcome may come.
  bool gathers() const {
    return !job_->decoupled() || gathered_round_ > done_round_;
  }
  // How many workers' contributions that round has.
  int contributors() const { return contributors_; }

  // What the open round waits for, for messages: "shard 1 (chunk 3)", "worker
  // 2".
  virtual std::string Missing() const;

  // Of a sparse layer, for tests; else nullptr.
  const SparseGradient* sparse() const {
    return sparse_.has_value() ? &*sparse_ : nullptr;
  }

 protected:
  Syncer(JobPtr job, int layer, int rank, LayerMemory memory);

  // Takes the caller's contribution to next_round() and keeps it until Done.
  virtual absl::Status Keep(Buffer gradient) = 0;
  virtual void KeepFactors(FactorBuffers factors, Outbox& out) = 0;
  // The gradient that is kept, if that is what is.
  virtual Buffer kept() const = 0;
  // Sends what was kept.
  virtual void Contribute(Outbox& out) = 0;
  // gathers() is true from now on.
  virtual void BeginGather(Outbox& out) = 0;
  // The round is done: what was kept is the caller's again.
  virtual void Release() = 0;
  // job_ is new. What was kept is contributed again afterwards.
  virtual void EnterEpoch(Outbox& out) = 0;
  // The open round's verdict is there.
  virtual void Settle(Outbox& out) = 0;
  // The optimizer's state where this worker owns it, an array of as many values
  // as the layer has per part.
  virtual Buffer state() const = 0;

  // Whether a round's step is skipped; nothing: there is no verdict yet.
  std::optional<bool> Skipped(int64_t round) const;

  // `mean`: LayerDone::mean.
  void Done(int contributors, Outbox& out, Buffer mean = Buffer());
  // Sends `values`, the whole layer, to the shards that own its chunks, but for
  // chunks whose results are in.
  void SendToShards(int64_t round, const Buffer& values, Outbox& out) const;
  // Asks the shards for the chunks of that round that are not in.
  void AskShards(int64_t round, Outbox& out) const;

  // The gradient that `factors` are of: where the caller wants it, or in
  // `product`, which is made if it is not there or in use.
  Buffer Multiply(FactorBuffers factors, Buffer& product, Outbox& out) const;

  const LayerSpec& spec() const { return job_->layers[layer_]; }
  WireType wire() const { return job_->routes[layer_].wire; }
  // Whether a bias follows the matrix.
  bool has_bias() const { return spec().parameters > spec().m * spec().n; }
  bool updates_here() const {
    return job_->options.optimizer_place == OptimizerPlace::kServer;
  }
  bool pushed() const { return pushed_round_ > done_round_; }
  int64_t next_round() const;
  int position() const { return job_->PositionOf(rank_); }
  FrameHeader Header(FrameKind kind, int64_t chunk, int64_t round) const;

  // Constant after construction.
  const int layer_;
  const int rank_;
  const LayerMemory memory_;

  JobPtr job_;
  ResultAssembly results_;
  std::optional<SparseGradient> sparse_;

 private:
  // A worker that has joined, and wants the layer as of `round`.
  struct Joiner {
    int rank = 0;
    int64_t round = 0;
  };

  absl::Status CheckRound(int64_t round) const;
  void OnPushed(int64_t round, Outbox& out);
  absl::StatusOr<Landing> OnPullHeader(const FrameHeader& header) const;
  // Says that done_round_ is done, once there is a verdict.
  void TellIfSettled(Outbox& out);
  // Asks for what is missing of this worker's first values.
  void Fetch(Outbox& out);
  void ServeJoiners(Outbox& out);
  // The layer is as of `round`, and stays so until the outbox is carried out.
  // Where a checkpoint is made of it, or if it is the `last` one, asks for its
  // checksum; and sends the layer to the shards, if this worker saves it.
  void OnValuesOf(int64_t round, bool last, Outbox& out) const;
  // Sends the layer as of `round` to the shards, if workers own it.
  void SendToCheckpoint(int64_t round, Outbox& out) const;
  void SendOwned(const Joiner& joiner, Outbox& out) const;

  bool started_ = false;
  bool left_ = false;  // The values stay as they are.
  // Below kInitialRound while fetching.
  int64_t pushed_round_ = kInitialRound - 1;
  int64_t done_round_ = kInitialRound - 1;
  int64_t gathered_round_ = kInitialRound - 1;  // Asked for, at least.
  bool held_ = false;  // The contribution to pushed_round_.
  int contributors_ = 0;
  Verdicts verdicts_;
  bool told_ = true;  // That done_round_ is done.
  Buffer mean_;       // Until then.

  // Of this epoch.
  std::vector<bool> asked_;  // By position: this worker was asked for values.
  std::vector<Joiner> joiners_;
};

}  // namespace nereus
