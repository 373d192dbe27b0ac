#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client_options.h"
#include "worker/public/client_report.h"

namespace nereus {

// Binds one layer of the caller's model to the memory that holds its
// parameters.
struct LayerBinding {
  LayerSpec spec;

  // Parameters of the layer: float32, shape {spec.parameters}, host memory. The
  // weight comes first (row-major, M x N), then the bias (M).
  //
  // Not owned; must outlive the client. The client writes this memory in
  // Connect (without Connect: from Join until AwaitJoined returns OK), in
  // BeginStep, and between a Push of the layer and the return of the Wait for
  // that round. At all other times the caller may read it, and with
  // `optimizer=worker` write it. After an error, the client may write it for as
  // long as it may write pushed buffers (see Client).
  absl::Span<float> parameters;

  // State of the caller's optimizer, with `optimizer=worker`: float32 arrays of
  // shape {spec.parameters}, one after the other, host memory. The number of
  // arrays is the same for every layer, at most kStateArraysMax. May be empty.
  // Not owned; must outlive the client.
  //
  // The caller sets the state to zero before Connect, because in a new job the
  // client does not write it. A worker that joins a running job, and every
  // worker of a job that goes back to a checkpoint, receives the job's state
  // here. An optimizer with state that is not bound here makes replicas differ
  // as soon as one worker is replaced.
  //
  // The client writes this memory in Connect (or AwaitJoined) and BeginStep
  // only. It reads the memory between a Push of the layer and the return of the
  // Wait for that round, and in Leave.
  absl::Span<float> state = {};
};

// Factors of a fully connected layer: two matrices that, multiplied, give the
// gradient of its weight.
//
//   weight gradient (M x N) = output_gradient^T (M x K) * input (K x N)
//   bias gradient (M)       = column sums of output_gradient
//
// float32, row-major, host memory; K = spec.rows. A caller with fewer than K
// rows fills the missing rows with zeros. Source: sufficient factors, Poseidon
// (Zhang et al., USENIX ATC 2017), section 2.2.
struct Factors {
  // Gradient of the mean loss over the K rows with respect to the layer's
  // output, times StepInfo::loss_scale. Shape {K, M}.
  absl::Span<const float> output_gradient;
  // Input of the layer in the forward pass. Shape {K, N}.
  absl::Span<const float> input;
};

// Describes one step of the job to one worker: the number of the step, and the
// worker's share of the examples.
struct StepInfo {
  // Number of the step, counted from 0 over the whole job. All workers use the
  // same number for the same step.
  int64_t step = 0;

  // Seat of this worker: its index among the `workers` of the step, host by
  // host, in [0, workers). Both values may change from step to step, as workers
  // join and leave. The workers of one host have consecutive seats.
  int position = 0;
  int workers = 1;

  // Index of this worker among the `local_workers` of the step that run on its
  // host, in [0, local_workers). A caller may choose its GPU or its cores by
  // this index. Work that a host needs only once can be left to index 0. Both
  // values may change from step to step, too.
  int local_position = 0;
  int local_workers = 1;

  // Number of contributions of all workers to all earlier steps; equal on all
  // workers. With batches of B examples, this worker's examples in this step
  // start at example (contributions_before + position) * B of the endless
  // sequence of examples. The examples of two workers then never overlap, even
  // after the number of workers has changed.
  int64_t contributions_before = 0;

  // Factor by which the caller multiplies the loss, and so all gradients. With
  // `--loss-scale=dynamic` a power of two that keeps small gradients from
  // becoming zero in fp16; otherwise 1. The client divides it out again.
  float loss_scale = 1.0f;

  // True if, since its previous step, this worker had to discard its values
  // (kOutOfRange, see Client). Parameters and state are now the job's, often
  // those of a checkpoint, and `step` may be a step that this worker has done
  // before. The caller also drops what it has kept of steps that it has not
  // waited for, such as their losses.
  bool went_back = false;
};

// Properties of the job that a client has joined. They never change while the
// client exists.
struct JobTraits {
  // Rank of this worker. Unique in the job: a worker that joins again receives
  // a new rank.
  int rank = 0;

  // Optimizer of the job. Its settings are equal on every worker.
  OptimizerOptions optimizer;

  // True if the caller must update the parameters from the mean gradients
  // (`optimizer=worker`). False if the job updates them.
  bool updates_parameters = false;

  // True if layers become ready in the order of the next forward pass
  // (`--overlap=dear`). The caller then begins the next step without WaitAll,
  // and calls WaitForward for each layer before that layer's forward. Waiting
  // for all layers is correct too, but it gives up the overlap.
  bool decoupled = false;

  // True if the job skips each step in which a gradient has a NaN or an
  // infinity (`--nan=skip`). The caller then checks Skipped after each step.
  bool may_skip = false;

  // True if only a part of each gradient travels in a round (`--sparsity`).
  bool sparse = false;
};

// Handle of one worker on the parameters that all workers of a job share.
//
// In each step, the caller begins the step, pushes each layer's gradient as
// soon as the backward pass has produced it (last layer first), and waits for
// each layer before it uses that layer again. The plan of the job decides how a
// layer travels: through the servers, around a ring of workers, or as factors
// from worker to worker. The caller's loop is the same for every plan. Workers
// may join, leave and die between any two calls.
//
//   // Memory first: the client uses it until the client is destroyed.
//   std::vector<std::vector<float>> parameters = ..., gradients = ...;
//   auto client = NEREUS_TRY(Client::Connect(options, layers));
//   for (;;) {
//     const StepInfo step = NEREUS_TRY(client->BeginStep());
//     if (step.step >= kSteps) break;
//     ... read this worker's examples (StepInfo::contributions_before) ...
//     ... forward ...
//     absl::Status status;
//     for (int layer = last; layer >= 0 && status.ok(); --layer) {
//       ... backward of `layer` writes gradients[layer] ...
//       status = client->Push(layer, step.step,
//                             absl::MakeSpan(gradients[layer]));
//     }
//     if (status.ok()) status = client->WaitAll(step.step);
//     if (absl::IsOutOfRange(status)) continue;  // The job has gone back.
//     NEREUS_TRY(status);
//     // Now `parameters` are those after step.step, on every worker.
//   }
//   NEREUS_TRY(client->Leave());
//
// worker/examples has complete programs.
//
// Errors that every call but Connect may return, and what the caller does:
//
//   kOutOfRange   This worker must discard its values and continue from the
//                 job's: in most cases the job has lost a shard and gone back
//                 to its last checkpoint. Call BeginStep: it writes the job's
//                 parameters and returns the step that is next. (BeginStep
//                 never returns this error itself.)
//   kCancelled    The coordinator has removed this worker, for example because
//                 it was silent for too long, could not keep a connection, or
//                 lost its place to another process. Destroy the client and
//                 connect again.
//   kInvalidArgument or kFailedPrecondition, where the call documents it
//                 A mistake in the call. Correct the caller.
//   kDeadlineExceeded, and kUnavailable of Leave
//                 A time limit has passed. The call's comment says what to do.
//   other errors  The job has failed. Every later call that returns a status
//                 returns the same error. Report it and end the process.
//
// Calls that wait may have a timeout, so that a program can handle signals or
// other work in between. After a timeout, the program makes the same call
// again. ClientOptions::round_timeout limits each call of Wait by itself. So a
// program that repeats a Wait with short timeouts must limit the total time
// itself.
//
// After an error other than a mistake in the call, the client may still read
// and write pushed buffers: after kOutOfRange until BeginStep returns OK, after
// a timeout until a later Wait returns OK, otherwise until it is destroyed.
// Destroy the client first, then the buffers.
//
// Thread-safe: any thread may call any method. One thread usually makes all
// calls; a second one may, for example, ask for a Report.
//
// Memory, besides the frames in flight:
//
//   each layer by factors  two times the factors of all workers, and one
//                          gradient (two gradients if the workers of one host
//                          share the product)
//   each layer on a ring   two gradients
//   both of these kinds    memory for a third round, after the first change of
//                          the epoch; the state of the job's optimizer, if the
//                          job runs it
//   with `--sparsity`      twice the model, for the values that are held back
class Client {
 public:
  // Joins the job and writes the job's parameters to every layer of `layers`.
  //
  // Waits until all members of a new job have joined; in a running job, until
  // the next epoch begins. Every few seconds it logs which members are missing.
  // In a job that does not begin from a checkpoint, the parameters of the first
  // worker that joins become the initial parameters. The parameters of all
  // other workers are overwritten.
  //
  // `layers`: all layers of the model, in forward order. The index in this
  // vector is the `layer` of every later call.
  //
  // Errors:
  //   kInvalidArgument     Bad options or layers. Correct them.
  //   kUnavailable         A port is in use, or no coordinator answered within
  //                        connect_timeout. Check the address, or call again.
  //   kFailedPrecondition  Another protocol version, model or setting than
  //                        the job's. The message names the layer or setting
  //                        and both values.
  //   kNotFound            The coordinator serves a job of another name.
  //   kAlreadyExists       A live worker of the job has this name.
  //   kResourceExhausted   The job has all its workers.
  //   kAborted             The job has failed.
  //   kOutOfRange          The job has finished. Nothing is left to do.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options, std::vector<LayerBinding> layers);

  // Begins to join the job, and returns at once: the first half of Connect, for
  // a caller that wants to stop waiting. AwaitJoined is the second half.
  // Errors: kInvalidArgument; kUnavailable, a port is in use.
  static absl::StatusOr<std::unique_ptr<Client>> Join(
      const ClientOptions& options, std::vector<LayerBinding> layers);

  // Leaves the job as if this process had died, unless Leave has returned OK.
  virtual ~Client() = default;

  // Waits until the client that Join returned has joined the job and written
  // the job's parameters. REQUIRES: before it has returned OK, the caller makes
  // no other call. Errors: those of Connect; kDeadlineExceeded after `timeout`:
  // call it again, or destroy the client.
  virtual absl::Status AwaitJoined(absl::Duration timeout) = 0;

  // Returns the properties of the job. The reference is valid as long as the
  // client.
  virtual const JobTraits& traits() const = 0;

  // Begins the next step and returns it. The next step is the one after the
  // last step that this worker began, or the step at which this worker joined,
  // or the step after the checkpoint to which the job has gone back. Waits
  // while the job changes to another epoch, and for workers that are too many
  // steps behind.
  //
  // The caller must push every layer in every step that it begins. There is one
  // exception: the caller may call Leave without any push in its last step.
  // This worker then has no part in that step.
  //
  // Errors: kFailedPrecondition, a layer of the previous step was not pushed;
  // the message names the layers. kDeadlineExceeded after `timeout`: call it
  // again, for the same step.
  virtual absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout) = 0;
  absl::StatusOr<StepInfo> BeginStep() {
    return BeginStep(absl::InfiniteDuration());
  }

  // Contributes `gradient` to round `step` of `layer`. Does not wait for the
  // round. May search the gradient for NaNs before it returns.
  //
  // `layer`: index in Connect's `layers`, of a layer that has no factors.
  // `step`: the step that BeginStep returned. Each layer is pushed once in a
  // step, after the Wait for its previous round.
  //
  // `gradient`: gradient of the mean loss over this worker's rows, times
  // StepInfo::loss_scale. float32, shape {spec.parameters}, host memory. The
  // client uses this memory, without a copy, until the Wait for the round
  // returns; the caller must not touch it before. The client divides it by the
  // loss scale in place. With `optimizer=worker`, the mean gradient over all
  // workers replaces it (for the exception see ClientOptions::means_in_place).
  // In a sparse job its values are undefined afterwards.
  //
  // Errors: kInvalidArgument, no such layer, wrong length, or another step;
  // kFailedPrecondition, the layer has factors (LayerSpec::has_factors): call
  // PushFactors. With `--nan=fail`, a NaN or an infinity ends the job for all
  // workers. Push or the Wait for the layer then returns that error.
  virtual absl::Status Push(int layer, int64_t step,
                            absl::Span<float> gradient) = 0;

  // Contributes the gradient of a layer that has factors
  // (LayerSpec::has_factors), so that the caller need not compute the weight
  // gradient. If the plan does not send factors, the client multiplies them, on
  // a thread of its own or in a call that waits. The client reads the factors
  // until the Wait for the round returns.
  //
  // `gradient`: memory for the mean gradient with `optimizer=worker`, shape
  // {spec.parameters}; otherwise may be empty. Other arguments and errors: as
  // for Push, but kInvalidArgument for a layer without factors.
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const Factors& factors,
                                   absl::Span<float> gradient) = 0;

  // Waits until round `step` of `layer` is done. Then the layer's parameters
  // (with `optimizer=worker`: its mean gradient) have the result of the round.
  // If rounds wait for all workers (`--quorum=all`), the result has the same
  // bits on every worker. The pushed buffers belong to the caller again.
  //
  // Errors: kInvalidArgument, the step was not pushed; kDeadlineExceeded,
  // `timeout` or round_timeout has passed. The message names what is missing.
  // The round may still become done later: call Wait again, or give up and
  // destroy the client.
  virtual absl::Status Wait(int layer, int64_t step,
                            absl::Duration timeout) = 0;
  absl::Status Wait(int layer, int64_t step) {
    return Wait(layer, step, absl::InfiniteDuration());
  }

  // Waits for the last round of `layer` that was pushed. Returns at once if the
  // layer was never pushed. A forward pass calls this before it uses the layer.
  // Errors: as for Wait.
  virtual absl::Status WaitForward(int layer, absl::Duration timeout) = 0;
  absl::Status WaitForward(int layer) {
    return WaitForward(layer, absl::InfiniteDuration());
  }

  // Waits for round `step` of every layer, for at most `timeout` in total.
  // Errors: as for Wait.
  virtual absl::Status WaitAll(int64_t step, absl::Duration timeout) = 0;
  absl::Status WaitAll(int64_t step) {
    return WaitAll(step, absl::InfiniteDuration());
  }

  // Returns the mean gradient of `layer` over all workers, with
  // `optimizer=worker`, after the Wait for the layer. float32, shape
  // {spec.parameters}, host memory. The span is valid until the next Push of
  // the layer. It is the pushed buffer, or memory of the client (see
  // ClientOptions::means_in_place). Its values are undefined if the step was
  // skipped. The span is empty until the round is done. Do not use it before
  // the Wait for the layer has returned OK.
  virtual absl::Span<const float> Mean(int layer) const = 0;

  // True if the job skipped `step` because some worker's gradient had a NaN or
  // an infinity (`--nan=skip`). `step`: the last step that this worker has
  // waited for. The job's parameters did not change in that step. A caller that
  // updates the parameters must leave parameters and state unchanged, too.
  virtual bool Skipped(int64_t step) const = 0;

  // Requests a checkpoint of the next step that no worker has begun. Returns at
  // once. If the servers have a folder for checkpoints, they also save the last
  // step of the job, without a request.
  //
  // Errors: kFailedPrecondition, the servers run without --checkpoint-dir.
  virtual absl::Status Checkpoint() = 0;

  // Collects one value of each worker, and returns the values by
  // StepInfo::position, this worker's among them: a barrier, and a way to
  // average a few numbers. Workers that have pushed all layers of the same last
  // step gather together, and before their first pushes those that begin with
  // the same step. They must gather equally often between the pushes of two
  // steps. A worker that joins later gets the values that the first workers
  // gathered before their first pushes.
  //
  // `value`: at most 64 KiB; the values of all workers, at most 2 MiB.
  //
  // Errors: kInvalidArgument, the value is too long; kFailedPrecondition,
  // another worker has begun a later step without gathering, the values of all
  // are too long, or the job has a partial quorum; kDeadlineExceeded after
  // `timeout`: call again, and the value of the first call counts.
  virtual absl::StatusOr<std::vector<std::string>> Gather(
      absl::string_view value, absl::Duration timeout) const = 0;

  // Returns the cost of each layer, the bytes exchanged with each peer, and the
  // measurements of this worker.
  virtual ClientReport Report() const = 0;

  // Ends the job for all workers with `reason`. Call it if this worker cannot
  // continue, and another worker in its place could not either: for example,
  // the training data is wrong. A caller that only stops itself calls Leave or
  // destroys the client. Returns kFailedPrecondition with the reason, or the
  // error that had ended the job before.
  virtual absl::Status Abort(absl::string_view reason) = 0;

  // Leaves the job once all pushed rounds are done. Returns when the other
  // workers have left and the job's last checkpoint is written, or when the
  // other workers go on and need nothing more from this worker. Every later
  // call that returns a status fails.
  //
  // A caller that updates the parameters applies the last update before it
  // calls Leave, and changes neither parameters nor state until Leave returns.
  //
  // Errors: kFailedPrecondition, the last step is not complete (see BeginStep);
  // kDeadlineExceeded, a pushed round is not done after round_timeout (see
  // Wait), or `timeout` has passed and the other workers are not done: call
  // Leave again, or destroy the client. Make no other call in between.
  // kUnavailable, the coordinator has been silent for round_timeout, while this
  // worker waited for the other workers: destroy the client. Repeated calls do
  // not begin this time again.
  virtual absl::Status Leave(absl::Duration timeout) = 0;
  absl::Status Leave() { return Leave(absl::InfiniteDuration()); }
};

}  // namespace nereus
