#ifndef NEREUS_WORKER_PUBLIC_CLIENT_H_
#define NEREUS_WORKER_PUBLIC_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/compute/optimizer.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/timeline.h"
#include "common/tensor/arrival.h"
#include "worker/public/client_options.h"

namespace nereus {

class GradientSplitter;  // common/driver/gradient_splitter.h

// One layer of the caller's model and the memory that holds its parameters.
struct LayerBinding {
  LayerSpec spec;

  // float32, shape {spec.parameters}, host memory, the weight (row-major M x N)
  // first, then the bias. Not owned; must outlive the client. The client writes
  // it, between a Push of the layer and the return of the Wait for it, and at
  // no other time but in Connect and BeginStep; after an error, until the
  // client is destroyed.
  absl::Span<float> parameters;

  // With `optimizer=worker`: the caller's optimizer state that a worker which
  // joins must be given, arrays of shape {spec.parameters} one after the other:
  // as many for every layer, at most kStateArraysMax, and zero in a new job.
  // May be empty. The client writes it in Connect and BeginStep alone, and
  // reads it between a Push of the layer and the return of the Wait for it.
  absl::Span<float> state = {};

  // With `optimizer=worker`, where both are copies of what lives elsewhere, on
  // a GPU, say: what the client waits for before it reads them. May be null.
  std::shared_ptr<Arrival> arrival = nullptr;

  // In a sparse job: what splits its gradients in the CPU's place, and keeps
  // what is held back. May be null.
  std::shared_ptr<GradientSplitter> splitter = nullptr;
};

// The two matrices whose product is a fully connected layer's weight gradient:
//   weight gradient (M x N) = output_gradient^T (M x K) * input (K x N)
//   bias gradient (M) = column sums of output_gradient
// float32, row-major, host memory, K = spec.rows; with fewer rows, the rest
// must be 0.
struct Factors {
  // K x M, of the mean loss over the K rows, times StepInfo::loss_scale.
  absl::Span<const float> output_gradient;
  absl::Span<const float> input;  // K x N

  // Held as long as the client reads them. May be null.
  std::shared_ptr<Arrival> arrival = nullptr;
};

// One step of the job, as a worker takes part in it.
struct StepInfo {
  int64_t step = 0;  // From 0, the same on all workers.

  // This worker among those that take part, in [0, workers), and how many
  // there are. Both may change from step to step, as workers come and go.
  int position = 0;
  int workers = 1;

  // Contributions of all workers to all steps before: the same on all workers,
  // so that with batches of B examples, this worker's are those from
  // (contributions_before + position) * B on.
  int64_t contributions_before = 0;

  // With `--loss-scale=dynamic`: what the caller multiplies the loss by, so
  // that the gradients that it pushes are as many times too large; the client
  // divides them. A power of two. Otherwise 1.
  float loss_scale = 1.0f;

  // The job went back to an earlier step since the step that this worker began
  // before: what it has not waited for by now is of no use.
  bool went_back = false;
};

// What one layer cost this worker so far.
struct LayerReport {
  std::string name;
  // By the latest plan: "server", "factor" or "ring";
  std::string scheme;
  std::string wire = "fp32";  // or "bf16", "fp16".
  std::string reason;  // Why the planner chose it, with both sides' figures.
  int64_t rounds = 0;
  int64_t bytes_sent = 0;  // Payload and frame headers.
  int64_t bytes_received = 0;
  absl::Duration latency_total;  // From Push to ready, summed over the rounds.
};

// What a worker has measured, as medians over its last steps.
struct Measurements {
  std::vector<LayerTime> times;  // By layer.
  absl::Duration step_time;      // Of an iteration, all told.
  LinkSpeed link;
};

// Bytes exchanged with one peer since Connect, frame headers included.
struct PeerTraffic {
  bool is_shard = false;  // Otherwise a worker.
  int rank = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

// One worker's handle on the shared parameters.
//
// A step is: begin it; as backward produces each layer's gradient (last layer
// first), Push it; before a layer is used again, Wait for it. How a layer
// travels (through the servers, around the workers, or as factors between
// them) is the plan's business, and the client's; so is who else is there:
// workers may come, leave and die between any two calls.
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
// A job that has lost a shard goes back to its last checkpoint: then every call
// fails with kOutOfRange until BeginStep, which fills in the parameters of that
// time and says which step is next.
//
// After an error of the job, or a Wait that timed out, buffers that were pushed
// stay in use until the client is destroyed: declare them before it.
//
// Thread-safe: any thread may call any method. Memory: of each
// open round (two of them) a factor layer's K rows per worker, and a ring
// layer's gradient; with --sparsity what is held back, twice the model; and the
// frames in flight.
class Client {
 public:
  // Joins the job, waits until all its members are there or, if it is running
  // already, until it goes on to an epoch with this worker, and fills every
  // layer's parameters with the job's. The parameters that the first worker
  // passes in are the initial ones; those of the other workers are overwritten.
  //
  // While it waits, it logs every few seconds who is missing.
  //
  // Errors: kInvalidArgument, bad options or layers; kUnavailable, no
  // coordinator at that address within connect_timeout; kFailedPrecondition,
  // another protocol version or another model than the job's (names the layer
  // and both shapes); kNotFound, another job; kResourceExhausted, the job has
  // all its workers; kOutOfRange, the job is finished.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options, std::vector<LayerBinding> layers);

  // Leaves the job as if this process had died, unless Leave was called.
  virtual ~Client() = default;

  // This worker's rank: no other worker of the job has it or had it.
  virtual int rank() const = 0;

  // Begins the next step: the one after the last that this worker began, or the
  // one at which it joined. Waits while the job goes on to another epoch.
  //
  // Every step that is begun needs a push of every layer. The last one may be
  // left untouched: a worker that leaves then has done the steps before it.
  //
  // Errors: kFailedPrecondition, the step before is not complete: names the
  // layers that were not pushed.
  //
  // Errors, of this and the calls below: any error of the job; kOutOfRange (but
  // not of this one), the job has gone back, see above; kCancelled, this
  // process was counted as dead, having been silent for too long: destroy the
  // client and connect again.
  virtual absl::StatusOr<StepInfo> BeginStep() = 0;

  // With `optimizer=worker`, after the Wait for the layer: the mean over the
  // workers, float32, shape {spec.parameters}, host memory, where it is until
  // the layer's next Push: in the buffer that was pushed or, with
  // ClientOptions::means_in_place off, maybe in the client's memory. Any values
  // if the step is skipped. Otherwise whatever was pushed.
  virtual absl::Span<const float> Mean(int layer) const = 0;

  // Adds `gradient` to round `step` of `layer`; returns at once.
  //
  // `gradient`: float32, shape {spec.parameters}, host memory, of the mean loss
  // over this worker's rows, times StepInfo::loss_scale, by which the client
  // divides it in place. The client reads it, without copying it first, until
  // the Wait for the layer returns. With `optimizer=worker`, the caller updates
  // the parameters: by then the mean over the workers is where Mean says, by
  // default in its place. A sparse job leaves nothing of it. `step`: the one
  // that was begun; each layer is pushed once, after the Wait for the step
  // before.
  //
  // Works whatever the plan, for every layer that has no factors.
  //
  // Errors: kInvalidArgument, no such layer, wrong size, or another step;
  // kFailedPrecondition, the layer has factors (LayerSpec::has_factors), which
  // PushFactors takes; any error of the job, once it has failed. A value that
  // is NaN or infinite ends the job for all (`--nan=fail`), maybe not before
  // this call has returned; this worker's Wait for it does not return OK.
  virtual absl::Status Push(int layer, int64_t step,
                            absl::Span<float> gradient) = 0;

  // The same of a gradient that is still being written, from its first value
  // on, by a copy from a device: what is there leaves at once, and whoever
  // comes to the rest too early waits for it. With `--nan=skip`, and in a
  // sparse job, this call waits until all is there, or known to be finite
  // (Arrival::FindNotFinite). If it never will be, that ends the job for all,
  // with the arrival's reason. A layer that has factors is taken too, unless it
  // goes by them (takes_factors): who has multiplied them himself pushes so.
  virtual absl::Status PushArriving(int layer, int64_t step,
                                    absl::Span<float> gradient,
                                    const std::shared_ptr<Arrival>& arrival) {
    const absl::Status there =
        arrival->Await(static_cast<int64_t>(gradient.size() * sizeof(float)));
    return there.ok() ? Push(layer, step, gradient) : there;
  }

  // The same for a layer that has factors (LayerSpec::has_factors): without
  // computing the weight gradient. Where the plan sends such a layer another
  // way, the client multiplies the factors itself, off the caller's thread. The
  // factors are read until the Wait for the layer returns.
  //
  // `gradient`: where the mean gradient goes with `optimizer=worker`, shape
  // {spec.parameters}; otherwise may be empty.
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const Factors& factors,
                                   absl::Span<float> gradient) = 0;

  // Waits until round `step` of `layer` is done: its parameters (with
  // `optimizer=worker`: its gradient) are the job's, the same bits on every
  // worker, and the buffers passed to Push are the caller's again.
  //
  // Errors: kInvalidArgument, `step` was not pushed; kDeadlineExceeded after
  // round_timeout, naming what is missing; any error of the job.
  virtual absl::Status Wait(int layer, int64_t step) = 0;

  // Wait for the last step that was pushed of `layer`, if any: what the next
  // forward does before it uses the layer.
  virtual absl::Status WaitForward(int layer) = 0;

  // Says that a Wait for the layer is to come: what is held back for it, to go
  // with other layers or in the order of the forward pass, is not any longer.
  virtual absl::Status Hurry(int /*layer*/) { return absl::OkStatus(); }

  // Wait for every layer.
  virtual absl::Status WaitAll(int64_t step) = 0;

  // Whether outcomes come in the order of the next forward (`--overlap=dear`):
  // then a step is best begun at once, and WaitForward called in it layer by
  // layer, instead of WaitAll before it.
  virtual bool decoupled() const = 0;

  // With `--nan=skip`: true if the votes of all workers on the last step that
  // this worker has waited for came to this: a gradient has a NaN or an
  // infinity, and nobody's parameters change by it. The caller's own optimizer
  // (`optimizer=worker`) must leave parameters and state as they are.
  virtual bool Skipped(int64_t step) const = 0;

  // Whether steps may be skipped (`--nan=skip`).
  virtual bool may_skip() const = 0;

  // True if the plan takes the layer's factors, so that only PushFactors will
  // do. Plans change, but not between a BeginStep and the next.
  virtual bool takes_factors(int layer) const = 0;

  // True if the plan sends the layer's gradients as bfloat16 and nothing else
  // is done with them here: then they may be pushed in that form alone
  // (Arrival::bfloat16). Plans change, as above.
  virtual bool takes_bfloat16(int /*layer*/) const { return false; }

  // True if only a part of the gradients travels in a round (`--sparsity`).
  virtual bool sparse() const { return false; }

  // True if the caller's own optimizer updates the parameters
  // (`optimizer=worker`).
  virtual bool updates_parameters() const = 0;

  // The job's optimizer, for callers that update the parameters themselves: the
  // same on every worker, as equal replicas need.
  virtual const OptimizerOptions& optimizer() const = 0;

  // What each layer cost, and what went to and came from each peer.
  virtual std::vector<LayerReport> layer_reports() const = 0;
  virtual std::vector<PeerTraffic> traffic() const = 0;

  // What this worker has told the planner last; nothing, if it has not measured
  // enough, or the planner does not ask (`--cost=time`).
  virtual std::optional<Measurements> measurements() const {
    return std::nullopt;
  }

  // What every call would say now, if anything: any error of the job, or
  // kOutOfRange.
  virtual absl::Status Interruption() const { return absl::OkStatus(); }

  // Ends the job for all with `reason`, since this worker cannot go on, nor can
  // another one in its place. Returns it, or what ended the job before.
  virtual absl::Status Abort(absl::string_view reason) {
    return absl::FailedPreconditionError(reason);
  }

  // Asks for a checkpoint of the next step that no worker has begun, and
  // returns at once. The job's last step is saved without being asked for,
  // where there is a folder.
  //
  // Errors: kFailedPrecondition, the servers have no --checkpoint-dir; any
  // error of the job.
  virtual absl::Status Checkpoint() {
    return absl::FailedPreconditionError("there is no job to save");
  }

  // The newest checkpoint when this worker left: the round that it is of, the
  // last step's as a rule. Nothing: there is none, or this worker has not left.
  virtual std::optional<int64_t> saved_round() const { return std::nullopt; }

  // Leaves the job politely, when all that was pushed is done; returns when the
  // other workers have left, too, and the job's last checkpoint is written, or
  // when they have gone on and need nothing more of this one. Every push and
  // wait fails afterwards. A caller with an optimizer of its own
  // (`optimizer=worker`) has applied it to the last step before, and leaves
  // parameters and state as they are.
  //
  // Errors: kFailedPrecondition, the last step is not complete (see BeginStep);
  // kDeadlineExceeded, others are not done within round_timeout, nor has the
  // coordinator said since what it waits for; any error of the job.
  virtual absl::Status Leave() = 0;
};

}  // namespace nereus

#endif  // NEREUS_WORKER_PUBLIC_CLIENT_H_
