#ifndef NEREUS_WORKER_SYNCER_H_
#define NEREUS_WORKER_SYNCER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "worker/result_assembly.h"

namespace nereus {

// What the caller hands over for one round of a fully connected layer. All
// float32, borrowed from the caller until the round is done.
struct FactorBuffers {
  Buffer output_gradient;  // K x M
  Buffer input;            // K x N
  Buffer gradient;         // {parameters}: for the mean gradient; may be empty.
};

// One layer's rounds on one worker (Poseidon's syncer): takes the contribution
// when backprop has produced it, and says LayerDone when the round's outcome is
// in place.
//
// Each scheme is a kind of syncer. Common to all is the start: the layer's
// initial parameters come from the shards. Pure; the worker machine owns it and
// calls it.
class Syncer {
 public:
  virtual ~Syncer() = default;

  // The syncer for the layer's route. `parameters`: the caller's, of the whole
  // layer.
  static std::unique_ptr<Syncer> Make(JobPtr job, int layer, int rank,
                                      Buffer parameters);

  // Worker 0 sends the initial parameters; everybody asks for them.
  void Start(Outbox& out);

  // The caller's contribution to `round`.
  // Errors: kInvalidArgument, not the round after the last one that is done;
  // kFailedPrecondition, the scheme needs factors.
  absl::Status Push(int64_t round, Buffer gradient, Outbox& out);
  absl::Status PushFactors(int64_t round, FactorBuffers factors, Outbox& out);

  // A frame of this layer, already checked against the job.
  virtual absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const;
  virtual void OnFrame(const FrameHeader& header, Outbox& out);

  // The last round that is done; kInitialRound - 1 before the initial
  // parameters.
  int64_t done_round() const { return done_round_; }
  // The last round that was pushed.
  int64_t pushed_round() const { return pushed_round_; }

  // What the open round waits for, for messages: "shard 1 (chunk 3)", "worker
  // 2".
  virtual std::string Missing() const;

 protected:
  Syncer(JobPtr job, int layer, int rank, Buffer parameters);

  virtual absl::Status DoPush(int64_t round, Buffer gradient, Outbox& out) = 0;
  virtual void DoPushFactors(int64_t round, FactorBuffers factors,
                             Outbox& out) = 0;

  void Done(int64_t round, Outbox& out);
  // Sends `values`, the whole layer, to the shards that own its chunks.
  void Contribute(int64_t round, const Buffer& values, Outbox& out);

  const LayerSpec& spec() const { return job_->layers[layer_]; }
  // Whether a bias follows the matrix.
  bool has_bias() const { return spec().parameters > spec().m * spec().n; }
  bool updates_here() const {
    return job_->options.optimizer_place == OptimizerPlace::kServer;
  }
  FrameHeader Header(FrameKind kind, int64_t chunk, int64_t round) const;

  // Constant after construction.
  const JobPtr job_;
  const int layer_;
  const int rank_;
  const Buffer parameters_;

  ResultAssembly results_;

 private:
  absl::Status CheckRound(int64_t round) const;

  int64_t pushed_round_ = kInitialRound;
  int64_t done_round_ = kInitialRound - 1;
};

}  // namespace nereus

#endif  // NEREUS_WORKER_SYNCER_H_
