#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client_options.h"
#include "worker/public/client_report.h"

namespace nereus {

// One layer of the caller's model and the memory that holds its parameters.
struct LayerBinding {
  LayerSpec spec;

  // float32, shape {spec.parameters}, host memory: the weight (row-major M x N)
  // first, then the bias. Not owned; must outlive the client. The client writes
  // it in Connect and BeginStep, and between a Push of the layer and the return
  // of the Wait for it. After an error, the client may write it until the
  // client is destroyed.
  absl::Span<float> parameters;

  // With `optimizer=worker`: the caller's optimizer state, which a worker that
  // joins later is given. Float32 arrays of shape {spec.parameters}, one after
  // the other, the same number for every layer, at most kStateArraysMax. Zero
  // in a new job. May be empty. The client writes it in Connect and BeginStep
  // alone, and reads it between a Push of the layer and the return of the Wait
  // for it.
  absl::Span<float> state = {};
};

// The two matrices whose product is a fully connected layer's weight gradient:
//   weight gradient (M x N) = output_gradient^T (M x K) * input (K x N)
//   bias gradient (M) = column sums of output_gradient
// float32, row-major, host memory, K = spec.rows. A caller with fewer rows sets
// the rest to 0. Source: sufficient factors, Poseidon, section 2.2.
struct Factors {
  // K x M: gradient of the mean loss over the K rows, times
  // StepInfo::loss_scale.
  absl::Span<const float> output_gradient;
  absl::Span<const float> input;  // K x N
};

// One step of the job, for one worker.
struct StepInfo {
  int64_t step = 0;  // Number of the step, from 0, the same on all workers.

  // Position of this worker among the `workers` that take part in the step, in
  // [0, workers). Both may change from step to step, as workers come and go.
  int position = 0;
  int workers = 1;

  // Number of contributions of all workers to all steps before this one, the
  // same on all workers. With batches of B examples, this worker's examples of
  // the step are those from (contributions_before + position) * B on.
  int64_t contributions_before = 0;

  // With `--loss-scale=dynamic`: a power of two by which the caller multiplies
  // the loss. The client divides the gradients by it. Otherwise 1.
  float loss_scale = 1.0f;

  // True if the job went back to a checkpoint since this worker's last step:
  // what the caller has not waited for is of no use any more.
  bool went_back = false;
};

// Properties of the job that a client has joined. Constant while it lives.
struct JobTraits {
  // Rank of this worker. No other worker of the job has or had the same.
  int rank = 0;

  // Optimizer of the job, with the same settings on every worker.
  OptimizerOptions optimizer;

  // True if the caller updates the parameters, with the mean gradients
  // (`optimizer=worker`). False if the job does.
  bool updates_parameters = false;

  // True if layers become ready in the order of the next forward pass
  // (`--overlap=dear`). Then the caller begins the next step at once, and calls
  // WaitForward in it layer by layer, instead of WaitAll before it.
  bool decoupled = false;

  // True if the job may skip a step that has a NaN (`--nan=skip`).
  bool may_skip = false;

  // True if only a part of the gradients travels in a round (`--sparsity`).
  bool sparse = false;
};

// A worker's handle on the parameters that all workers of a job share.
//
// The caller begins a step, pushes each layer's gradient as soon as backward
// has produced it (last layer first), and waits for a layer before it uses the
// layer again. How a layer travels (through the servers, around a ring of
// workers, or as factors between workers) is decided by the job's plan. Workers
// may come, leave and die between any two calls.
//
//   NEREUS_ASSIGN_OR_RETURN(auto client, Client::Connect(options, layers));
//   for (;;) {
//     NEREUS_ASSIGN_OR_RETURN(const StepInfo step, client->BeginStep());
//     ... done? break; otherwise take this worker's examples; forward ...
//     absl::Status status;
//     for (int layer = last; layer >= 0 && status.ok(); --layer) {
//       ... backward of `layer` ...
//       status = client->Push(layer, step.step, gradient[layer]);
//     }
//     if (status.ok()) status = client->WaitAll(step.step);
//     if (absl::IsOutOfRange(status)) continue;  // The job has gone back.
//     NEREUS_RETURN_IF_ERROR(status);
//   }
//   NEREUS_RETURN_IF_ERROR(client->Leave());
//
// Errors that every call but Connect may return:
//   kOutOfRange  A job that has lost a shard has gone back to its last
//                checkpoint. Call BeginStep: it fills in the parameters of that
//                time and says which step is next. (BeginStep does not return
//                this error.)
//   kCancelled   This process was silent for too long and counts as dead.
//                Destroy the client and connect again.
//   others       The job has failed. Every later call returns the same error.
//
// After such an error, or a Wait that timed out, the client may use buffers
// that were pushed until it is destroyed. So declare them before the client.
//
// Thread-safe: any thread may call any method. Memory: for two open rounds,
// each factor layer's K rows per worker and each ring layer's gradient; with
// --sparsity twice the model for what is held back; and the frames in flight.
class Client {
 public:
  // Joins the job, waits until all its members are there or, if the job is
  // running, until its next epoch begins, and fills every layer's parameters
  // with the job's. The first worker's parameters are the job's initial ones;
  // those of the other workers are overwritten. While it waits, it logs every
  // few seconds which members are missing.
  //
  // Errors: kInvalidArgument, bad options or layers; kUnavailable, no
  // coordinator answers at the address within connect_timeout;
  // kFailedPrecondition, another protocol version, or another model than the
  // job's (names the layer and both shapes); kNotFound, the coordinator serves
  // another job; kResourceExhausted, the job has all its workers; kOutOfRange,
  // the job is finished.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options, std::vector<LayerBinding> layers);

  // Leaves the job as if this process had died, unless Leave was called.
  virtual ~Client() = default;

  // Properties of the job. Valid as long as the client.
  virtual const JobTraits& traits() const = 0;

  // Begins the next step: the step after the last that this worker began, or
  // the step at which it joined. Waits while the job goes on to another epoch.
  //
  // Every layer must be pushed in every step that is begun. Only the last step
  // may be left without any push: a worker that leaves then has done the steps
  // before it.
  //
  // Errors: kFailedPrecondition, the last step is not complete (names the
  // layers that were not pushed).
  virtual absl::StatusOr<StepInfo> BeginStep() = 0;

  // Adds `gradient` to round `step` of `layer`. Returns at once.
  //
  // `gradient`: float32, shape {spec.parameters}, host memory, of the mean loss
  // over this worker's rows, times StepInfo::loss_scale, by which the client
  // divides it in place. The client reads it without a copy until the Wait for
  // the layer returns. With `optimizer=worker` the mean over all workers takes
  // its place (see Mean). A sparse job leaves any values in it. `step`: the
  // step that was begun. Each layer is pushed once in a step, after the Wait
  // for the step before.
  //
  // Works under every plan, for every layer that has no factors.
  //
  // Errors: kInvalidArgument, no such layer, wrong length, or another step;
  // kFailedPrecondition, the layer has factors (LayerSpec::has_factors), which
  // PushFactors takes. A NaN or an infinity ends the job for all workers
  // (`--nan=fail`), maybe after this call has returned; then the Wait for the
  // layer fails.
  virtual absl::Status Push(int layer, int64_t step,
                            absl::Span<float> gradient) = 0;

  // Pushes the factors of a layer that has them (LayerSpec::has_factors), so
  // that the caller does not compute the weight gradient. Where the plan sends
  // the layer another way, the client multiplies the factors, off the caller's
  // thread. The client reads the factors until the Wait for the layer returns.
  //
  // `gradient`: room for the mean gradient with `optimizer=worker`, shape
  // {spec.parameters}; otherwise may be empty. Errors: those of Push.
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const Factors& factors,
                                   absl::Span<float> gradient) = 0;

  // Waits until round `step` of `layer` is done. Then the layer's parameters
  // (with `optimizer=worker`: its mean gradient) are the job's, with the same
  // bits on every worker, and the buffers that were pushed are the caller's
  // again.
  //
  // Errors: kInvalidArgument, the step was not pushed; kDeadlineExceeded after
  // round_timeout, with what is missing.
  virtual absl::Status Wait(int layer, int64_t step) = 0;

  // Waits for the last step that was pushed of `layer`, if any. The next
  // forward pass calls it before it uses the layer.
  virtual absl::Status WaitForward(int layer) = 0;

  // Waits for every layer.
  virtual absl::Status WaitAll(int64_t step) = 0;

  // Returns the mean gradient of a layer after the Wait for it, with
  // `optimizer=worker`: float32, shape {spec.parameters}, host memory, in the
  // buffer that was pushed (see ClientOptions::means_in_place). Valid until the
  // layer's next Push. Any values if the step was skipped.
  virtual absl::Span<const float> Mean(int layer) const = 0;

  // True if the job skipped `step`, the last step that this worker has waited
  // for, since a gradient of some worker had a NaN or an infinity
  // (`--nan=skip`). No parameters change by that step; the caller's own
  // optimizer must leave parameters and state as they are.
  virtual bool Skipped(int64_t step) const = 0;

  // Asks for a checkpoint of the next step that no worker has begun. Returns at
  // once. Where the servers have a folder for checkpoints, the job's last step
  // is saved without being asked for.
  //
  // Errors: kFailedPrecondition, the servers have no --checkpoint-dir.
  virtual absl::Status Checkpoint() = 0;

  // Reports what each layer cost, what each peer was sent, and what this worker
  // has measured.
  virtual ClientReport Report() const = 0;

  // Ends the job for all workers with `reason`, for a caller that cannot go on,
  // and that another worker could not replace: its data is wrong, say. Returns
  // kFailedPrecondition with the reason, or the error that ended the job
  // before.
  virtual absl::Status Abort(absl::string_view reason) = 0;

  // Leaves the job when all rounds that were pushed are done. Returns when the
  // other workers have left, too, and the job's last checkpoint is written; or
  // when the other workers have gone on and need nothing more from this one.
  // Every call fails afterwards. A caller with its own optimizer applies it to
  // the last step before, and does not change parameters and state meanwhile.
  //
  // Errors: kFailedPrecondition, the last step is not complete (see BeginStep);
  // kDeadlineExceeded, the other workers are not done within round_timeout, and
  // the coordinator has not said since what it waits for.
  virtual absl::Status Leave() = 0;
};

}  // namespace nereus
