#pragma once

#include <cstdint>
#include <memory>
#include <utility>
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

struct CUstream_st;  // CUDA's stream: a cudaStream_t is a pointer to it.

namespace nereus {

// Stream of a GPU: a cudaStream_t. Null where all layers are in host memory.
using Stream = CUstream_st*;

// Binds one layer of the caller's model to the memory that holds the layer's
// parameters: host memory or, with a client of a GPU (worker/public/gpu.h),
// memory of that GPU.
struct LayerBinding {
  LayerSpec spec;

  // Parameters of the layer: float32, shape {spec.parameters}. The matrix comes
  // first (row-major, spec.m x spec.n), then the values beside it, such as the
  // bias.
  //
  // Not owned; must outlive the client. The client writes this memory in
  // Connect (without Connect: from Join until AwaitJoined returns OK), in
  // BeginStep, and between a Push of the layer and the return of the Wait for
  // that round. At all other times the caller may read this memory. In a job
  // with `--optimizer=worker`, in which the callers update the parameters, the
  // caller may then write it, too. After an error the client may write this
  // memory for a longer time (see "After an error" at Client).
  absl::Span<float> parameters;

  // State of the caller's optimizer in a job with `--optimizer=worker`: float32
  // arrays of shape {spec.parameters}, one after the other. The number of
  // arrays is the same for every layer, at most kStateArraysMax. May be empty.
  // Not owned; must outlive the client.
  //
  // The caller sets the state to zero before Connect: the client does not write
  // this memory in a new job, unless the job begins from a checkpoint. A worker
  // that joins a running job, and a worker that must discard its values
  // (kOutOfRange), receives the job's state here. An optimizer with state that
  // is not bound here makes replicas differ as soon as one worker is replaced.
  //
  // The client writes this memory in Connect (without Connect: from Join until
  // AwaitJoined returns OK) and in BeginStep only. The client reads this memory
  // between a Push of the layer and the return of the Wait for that round, and
  // in Leave.
  absl::Span<float> state = {};

  // With a client of a GPU: true if this layer is in host memory, for example
  // an embedding that does not fit on the GPU. All memory of the layer, here
  // and in Push, is then host memory. The stream of a call orders it as for
  // other layers. Such a layer must not have factors.
  bool on_host = false;
};

// Factors of a fully connected layer: two matrices whose product is the
// gradient of the layer's weight.
//
//   weight gradient (M x N) = output_gradient^T (M x K) * input (K x N)
//   bias gradient (M)       = column sums of output_gradient
//
// The matrices are float32, row-major, in the memory of the layer. K =
// spec.rows or, if the caller did not know its rows when it joined,
// Client::factor_rows. M = spec.m, N = spec.n. A caller with fewer than K rows
// fills the missing rows with zeros. Source: sufficient factors, Poseidon
// (Zhang et al., USENIX ATC 2017), section 2.2.
struct Factors {
  // Gradient, with respect to the layer's output, of the mean loss over this
  // worker's examples, multiplied by StepInfo::loss_scale. Rows that the caller
  // fills with zeros do not count in the mean. Shape {K, M}.
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

  // Position of this worker: its index, in [0, workers), among the `workers`
  // workers that take part in the step, by rank. At the start of a job whose
  // workers all have a number of their launcher (ClientOptions::rank), these
  // are the positions. `position` and `workers` can change from step to step,
  // as workers join and leave.
  int position = 0;
  int workers = 1;

  // Index of this worker among the `local_workers` of the step that run on its
  // host, in [0, local_workers). A caller may choose its GPU or its cores by
  // this index. Work that must be done once on each host can be left to the
  // worker with index 0. `local_position` and `local_workers` can change from
  // step to step, too.
  int local_position = 0;
  int local_workers = 1;

  // Sum of `workers` over all earlier steps: each worker contributes once to a
  // step. Equal on all workers. If every worker takes B examples in each step,
  // this worker's examples in this step are the B examples from number
  // (contributions_before + position) * B on, in a sequence of examples without
  // end. Unless the job goes back, no two workers take the same number, even if
  // the number of workers changes.
  int64_t contributions_before = 0;

  // Factor by which the caller multiplies the loss, and so all gradients. The
  // client divides the gradients by it again. With `--loss-scale=dynamic` it is
  // a power of two that keeps small gradients from becoming zero in fp16;
  // otherwise it is 1.
  float loss_scale = 1.0f;

  // True if this worker had to discard its parameters and state (kOutOfRange,
  // see Client) after the step that it began before this one. The client has
  // written the job's parameters and state, often those of a checkpoint, and
  // `step` can be a step that this worker has done before. The caller must also
  // drop what it recorded of steps that it has not waited for, such as their
  // losses.
  bool went_back = false;

  // True if an operator has asked this worker to leave (`nereusctl drain`). The
  // caller then calls LeaveEarly in place of this step, and ends its process.
  bool should_leave = false;
};

// Properties of the job that a client has joined. They never change while the
// client exists.
struct JobTraits {
  // Rank of this worker. Unique in the job: a worker that joins again receives
  // a new rank.
  int rank = 0;

  // Optimizer of the job. Its settings are equal on every worker.
  OptimizerOptions optimizer;
  // Factor of its learning rate by step (OptimizerAt).
  RateSchedule rate_schedule = {};

  // True if the caller must update the parameters from the mean gradients
  // (`--optimizer=worker`). False if the job updates them.
  bool updates_parameters = false;

  // True if the job skips each step in which a gradient has a NaN or an
  // infinity (`--nan=skip`). The caller then checks Skipped after each step.
  bool may_skip = false;

  // True if only a part of each gradient travels in a round (`--sparsity`).
  bool sparse = false;
};

class Client;

// Turn at the device that a worker shares with other jobs, for computing
// outside of steps. Movable. Gives the turn back when destroyed. The client
// must outlive it.
class DeviceTurn {
 public:
  DeviceTurn(DeviceTurn&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)) {}
  DeviceTurn& operator=(DeviceTurn&& other) noexcept {
    std::swap(client_, other.client_);
    return *this;
  }
  inline ~DeviceTurn();

 private:
  friend class Client;
  explicit DeviceTurn(Client* client) : client_(client) {}

  Client* client_;  // Null: this was moved from.
};

// Keeps the parameters of one worker equal to those of the job's other workers.
//
// In each step, the caller begins the step, pushes each layer's gradient as
// soon as the backward pass has produced it (last layer first), and waits for
// each layer before it uses that layer again. The plan of the job decides how a
// layer travels: through the servers, around a ring of workers, straight from
// host to host, or as factors from worker to worker. The caller's loop is the
// same for every plan. Other workers can join, leave and die between any two
// calls.
//
//   // Memory of the layers: must outlive the client, which uses it.
//   std::vector<std::vector<float>> parameters = ..., gradients = ...;
//   auto client = NEREUS_TRY(Client::Connect(options, layers));
//   for (;;) {
//     const StepInfo step = NEREUS_TRY(client->BeginStep());
//     const bool is_done = step.step >= kSteps;
//     const absl::Status status = is_done ? client->Leave() : DoStep(step);
//     if (absl::IsOutOfRange(status)) continue;  // The job has gone back.
//     NEREUS_TRY(status);
//     if (is_done) break;
//   }
//
// DoStep reads this worker's examples (StepInfo::contributions_before), goes
// forward, and then:
//
//   for (int layer = last; layer >= 0; --layer) {
//     ... backward of `layer` writes gradients[layer] ...
//     NEREUS_TRY(client->Push(layer, step.step,
//                             absl::MakeSpan(gradients[layer])));
//   }
//   // After this, `parameters` has the result of the step, equal on all
//   // workers.
//   return client->WaitAll(step.step);
//
// worker/examples has complete programs.
//
// Errors that any call after Connect (or AwaitJoined) may return, and what the
// caller does:
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
//                 A mistake in the call, unless the call's comment says
//                 otherwise. Correct the caller.
//   kDeadlineExceeded, and kUnavailable of Leave
//                 A time limit has passed. The call's comment says what to do.
//   other errors  The job has failed, or has lost this worker. Later calls fail
//                 as well, usually with the same error. Report it and end the
//                 process.
//
// With layers on a GPU (worker/public/gpu.h) each call that takes or returns
// values has a stream, which orders the client's use of the memory with the
// caller's own work on the GPU:
//
//   Push(layer, step, gradient, stream)  The client reads the gradient after
//                                        the work that is queued on `stream`
//                                        at the time of the call.
//   Wait(layer, step, stream)            Work that is queued on `stream` after
//                                        the call sees the result.
//
// So a program queues its backward pass, pushes, waits, and queues its next
// forward pass. The program itself never has to wait for the GPU. Where a
// comment below says that the client uses memory "until the Wait returns", it
// is until the stream of that Wait continues.
//
// Most calls that wait take a `timeout` (use Join and AwaitJoined in place of
// Connect), so that a program can handle signals or other work in between.
// After a timeout, the program makes the same call again.
// ClientOptions::round_timeout limits one call of Wait, not the sum of repeated
// calls. So a program that repeats a Wait with short timeouts must limit the
// total time itself.
//
// After an error other than a mistake in the call, the client may still read
// and write pushed buffers and the layers' memory: after kOutOfRange until
// BeginStep returns OK, after a timeout until the repeated call returns OK,
// otherwise until the client is destroyed. Destroy the client first, then the
// memory.
//
// Thread-safe: any thread may call any method. One thread usually makes all
// calls; a second one may, for example, ask for a Report.
//
// Memory that the client allocates, besides that of frames in flight:
//
//   each layer by factors  twice the factors of all workers, and one gradient,
//                          unless PushFactors gets memory for it (two
//                          gradients, if the workers of one host share the
//                          product)
//   each layer on a ring   the size of two gradients
//   both of these kinds    memory for a third round, from the second epoch on;
//                          the state of the job's optimizer, unless the caller
//                          runs the optimizer
//   several workers on     the sums of the chunks that this worker carries, for
//   one host               two rounds; one gradient, if the caller runs the
//                          optimizer
//   factors that the plan  one gradient, unless PushFactors gets memory for it
//   does not send
//   with `--sparsity`      twice the model, for gradients that are not sent yet
class Client {
 public:
  // Joins the job and writes the job's parameters to the memory of `layers`.
  //
  // In a new job, waits until all members have joined; in a running job, until
  // the next epoch begins. Every few seconds this call logs which members are
  // missing. In a job that does not begin from a checkpoint, the parameters of
  // the first worker that joins become the initial parameters. The parameters
  // of all other workers are overwritten.
  //
  // `layers`: all layers of the model, in forward order. The index in this
  // vector is the `layer` of every later call.
  //
  // Errors:
  //   kInvalidArgument     Bad options or layers. Correct them.
  //   kUnavailable         A port is in use, or no coordinator answered within
  //                        connect_timeout. Check the address, or call again.
  //   kFailedPrecondition  This process has another protocol version, model or
  //                        setting than the job. The message names the layer
  //                        or setting and both values.
  //   kNotFound            The coordinator serves a job of another name.
  //   kAlreadyExists       A live worker of the job has this name.
  //   kResourceExhausted   The job has all its workers.
  //   kUnimplemented       Another kind of process answers at the address.
  //   kAborted             The job has failed.
  //   kCancelled           The coordinator has removed this worker. Call again.
  //   kOutOfRange          The job has finished. Nothing is left to do.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options, std::vector<LayerBinding> layers);

  // Begins to join the job, and returns at once: the first half of Connect, for
  // a caller that must be able to stop waiting. AwaitJoined is the second half.
  // Errors: kInvalidArgument; kUnavailable, a port is in use.
  static absl::StatusOr<std::unique_ptr<Client>> Join(
      const ClientOptions& options, std::vector<LayerBinding> layers);

  // Leaves the job as if this process had died, unless Leave has returned OK.
  virtual ~Client() = default;

  // Waits until the client that Join returned has joined the job and written
  // the job's parameters. REQUIRES: the caller makes no other call before
  // AwaitJoined has returned OK. Errors: those of Connect; kDeadlineExceeded
  // after `timeout`: call AwaitJoined again, or destroy the client.
  virtual absl::Status AwaitJoined(absl::Duration timeout,
                                   Stream stream = nullptr) = 0;

  // Returns the properties of the job. The reference is valid until the client
  // is destroyed.
  virtual const JobTraits& traits() const = 0;

  // Begins the next step and describes it. The next step is the one after the
  // last step that this worker began. After kOutOfRange it is the step after
  // the values that the worker receives, and in the beginning the step at which
  // this worker joined. Waits while the job changes to another epoch. Before a
  // change of plan, also waits until all workers have done the switch round.
  //
  // The caller must push every layer in every step that it begins. There is one
  // exception: the caller may call Leave without any push in its last step.
  // This worker then has no part in that step.
  //
  // Errors: kFailedPrecondition, a layer of the previous step was not pushed;
  // the message names the layers. kDeadlineExceeded after `timeout`: call
  // BeginStep again; it goes on waiting for the same step.
  //
  // On a GPU this call first waits until the GPU has computed all pushed
  // gradients, and the first part of each is in host memory.
  virtual absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout,
                                             Stream stream = nullptr) = 0;
  absl::StatusOr<StepInfo> BeginStep(Stream stream = nullptr) {
    return BeginStep(absl::InfiniteDuration(), stream);
  }

  // Contributes `gradient` to round `step` of `layer`. Does not wait for the
  // round. With `--nan=skip`, in a sparse job, and for a layer whose factors
  // the plan sends, this call searches the gradient for NaNs before it returns;
  // not with `--nan=ignore`.
  //
  // `layer`: index in Connect's `layers`. A layer that has factors
  // (LayerSpec::has_factors) should be pushed by PushFactors. Push is for a
  // step with more rows than K, and for steps in which factor_rows is 0: if the
  // plan sends the layer's factors, this worker then sends its dense gradient
  // to all others, in their place. Other workers may push factors in the same
  // step. `step`: the step that BeginStep returned. Each layer is pushed once
  // in a step, after the Wait for its previous round.
  //
  // `gradient`: gradient of the mean loss over this worker's examples,
  // multiplied by StepInfo::loss_scale. float32, shape {spec.parameters}. The
  // client uses this memory, without a copy, until the Wait for the
  // round returns. Before that the caller must neither read nor write it. The
  // client divides the gradient by the loss scale in place. With
  // `--optimizer=worker`, the client writes the mean gradient over all workers
  // to this memory (for the exception see ClientOptions::means_in_place). On a
  // GPU it also does so in any job for a layer whose factors the plan sends. In
  // a sparse job the values in this memory are undefined afterwards.
  //
  // Errors: kInvalidArgument, no such layer, wrong length, or another step.
  // With `--nan=fail`, a NaN or an infinity ends the job for all workers. Push
  // or the Wait for the layer then returns that error.
  virtual absl::Status Push(int layer, int64_t step, absl::Span<float> gradient,
                            Stream stream = nullptr) = 0;

  // Contributes the factors of a layer that has factors
  // (LayerSpec::has_factors). So the caller need not compute the weight
  // gradient. If the plan does not send the layer's factors, the client
  // multiplies them, on its driver thread or, in a call that waits, on the
  // caller's thread. The client reads the factors until the Wait for the round
  // returns.
  //
  // `gradient`: memory for the mean gradient, shape {spec.parameters}. May be
  // empty, but not on a GPU or in a job with `--optimizer=worker`. On a GPU the
  // client multiplies factors that the plan does not send on `stream`, and
  // writes the product to `gradient`. Other arguments and errors:
  // as for Push. A layer without factors is kInvalidArgument, and so are
  // factors with another number of rows than K, and a layer whose rows the job
  // does not know: push its gradient.
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const Factors& factors,
                                   absl::Span<float> gradient,
                                   Stream stream = nullptr) = 0;

  // Tells the job what this caller has seen of its layers' factors. A caller
  // that joined with LayerSpec::rows 0 (kRowsNotKnown) pushes gradients in its
  // first step, and calls this before the last Push of that step. If all
  // workers do so, the next step goes by a plan that may send factors, of as
  // many rows as the largest worker has. A later call counts, too, but then the
  // plan changes in the middle of the job.
  //
  // `rows`: by layer of Connect's `layers`: the number of rows; 0: nothing is
  // known, or the layer has no factors; -1 (kFactorsLost): the gradient of the
  // layer is no product of factors any more, for example because a hook has
  // changed it. The layer then goes as a gradient for the rest of the job. The
  // caller pushes its gradient from now on, whatever factor_rows says. Calls
  // add up: -1 stays, and of two numbers the larger one counts.
  //
  // Does not wait. Errors: kInvalidArgument, not one number for each layer, a
  // number out of range, or another number than 0 for a layer without
  // LayerSpec::has_factors.
  virtual absl::Status SetFactorRows(absl::Span<const int64_t> rows) = 0;

  // Returns the number of rows, K, that factors of the layer must have in the
  // open step, or in the next one between two steps, if the plan sends them;
  // otherwise 0: a caller that has the gradient may as well push it. Call it
  // after BeginStep, because the plan can change there. Errors:
  // kInvalidArgument, no such layer.
  virtual absl::StatusOr<int64_t> factor_rows(int layer) const = 0;

  // Waits until round `step` of `layer` is done. Then the layer's parameters
  // (with `--optimizer=worker`: the layer's Mean) have the result of the round.
  // If rounds wait for all workers (`--quorum=all`), the result has the same
  // bits on every worker. The pushed buffers belong to the caller again.
  //
  // Errors: kInvalidArgument, the step was not pushed; kDeadlineExceeded,
  // `timeout` or round_timeout has passed. The message names what is missing.
  // The round can still become done later: call Wait again, or give up and
  // destroy the client.
  virtual absl::Status Wait(int layer, int64_t step, absl::Duration timeout,
                            Stream stream = nullptr) = 0;
  absl::Status Wait(int layer, int64_t step, Stream stream = nullptr) {
    return Wait(layer, step, absl::InfiniteDuration(), stream);
  }

  // Waits for the last round of `layer` that was pushed. Returns at once if the
  // layer was never pushed. The caller calls this before it uses the layer in
  // its forward pass, in place of WaitAll at the end of each step: results come
  // in this order, and the network works during forward, too. Errors: as for
  // Wait.
  virtual absl::Status WaitForward(int layer, absl::Duration timeout,
                                   Stream stream = nullptr) = 0;
  absl::Status WaitForward(int layer, Stream stream = nullptr) {
    return WaitForward(layer, absl::InfiniteDuration(), stream);
  }

  // Waits for round `step` of every layer, for at most `timeout` in total.
  // Errors: as for Wait.
  virtual absl::Status WaitAll(int64_t step, absl::Duration timeout,
                               Stream stream = nullptr) = 0;
  absl::Status WaitAll(int64_t step, Stream stream = nullptr) {
    return WaitAll(step, absl::InfiniteDuration(), stream);
  }

  // Returns the mean gradient of `layer` over all workers, once the Wait for
  // the layer has returned OK: float32, shape {spec.parameters}, host memory,
  // valid until the next Push of the layer. It lies in the pushed buffer, or in
  // memory of the client (see ClientOptions::means_in_place). The values are
  // undefined if the step was skipped. Errors: kInvalidArgument, no such layer;
  // kFailedPrecondition, the job runs the optimizer, the round is not done, or
  // the client is one of a GPU: the mean is in the pushed gradient.
  virtual absl::StatusOr<absl::Span<const float>> Mean(int layer) const = 0;

  // True if the job skipped `step` because some worker's gradient had a NaN or
  // an infinity (`--nan=skip`). `step`: the last step that this worker has
  // waited for. The job's parameters did not change in that step. A caller that
  // runs the optimizer must not run it for that step.
  virtual bool Skipped(int64_t step) const = 0;

  // Takes the turn at the device that this worker shares with other jobs
  // (ClientOptions::share), for computing outside of a step, such as an
  // evaluation. Waits for the turn, and keeps it until the result is destroyed.
  // Other jobs wait meanwhile, and pass this worker after
  // ShareOptions::limit: so a caller takes a turn for each batch rather than
  // for all of them. On a GPU the caller waits for the work that it has queued
  // before it gives the turn back. Calls that wait for other workers give the
  // turn back meanwhile. Returns at once if the device is not shared. Not to be
  // called while another DeviceTurn of the client exists.
  //
  // Errors: kDeadlineExceeded after `timeout`; kDataLoss, the board of the
  // device is damaged; kFailedPrecondition, it is gone. BeginStep, Push and the
  // waits return these two errors, too.
  absl::StatusOr<DeviceTurn> TakeDeviceTurn(
      absl::Duration timeout = absl::InfiniteDuration()) {
    const absl::Status taken = TakeTurn(timeout);
    if (!taken.ok()) return taken;
    return DeviceTurn(this);
  }

  // Says what memory of the shared device this worker keeps, and what it needs
  // besides in its turn, in bytes, from now on in place of
  // ShareOptions::resident_bytes and turn_bytes: a job that comes later waits
  // for its first turn if its memory does not fit beside it. Does nothing if
  // the device is not shared. Errors: kInvalidArgument, a number is negative or
  // above 2^50.
  virtual absl::Status SetDeviceMemory(int64_t /*resident_bytes*/,
                                       int64_t /*turn_bytes*/) {
    return absl::OkStatus();
  }

  // Requests a checkpoint of the next step that no worker has begun. Returns at
  // once. If the servers have a folder for checkpoints, they also save the last
  // step of the job, without a request.
  //
  // Errors: kFailedPrecondition, the servers run without --checkpoint-dir.
  virtual absl::Status Checkpoint() = 0;

  // Collects one value from each worker, and returns all values, with that of
  // this worker among them, in the order of StepInfo::position. Callers can use
  // this as a barrier, or to average a few numbers.
  //
  // Workers gather together if the last step of which they have pushed all
  // layers is the same. Before their first push, workers gather together if
  // they begin with the same step; for later ones see below. All workers must
  // gather equally often between the pushes of two steps. If a worker that
  // joins later gathers before its first push, it gets the values that the
  // first workers gathered before their first pushes; so a worker may gather at
  // most 64 times before its first push. Workers that go back with the job
  // gather together, until they push again.
  //
  // `value`: at most 64 KiB. The values of all workers together: at most 2 MiB.
  //
  // Errors: kInvalidArgument, the value is too long; kFailedPrecondition,
  // another worker has pushed a later step without gathering, this worker has
  // gathered 64 times before its first push, the values of all workers are too
  // long, or the job has another `--quorum` than `all`; kDeadlineExceeded after
  // `timeout`: call Gather again. The value of the first call counts, not that
  // of the repeated call.
  virtual absl::StatusOr<std::vector<std::string>> Gather(
      absl::string_view value, absl::Duration timeout) const = 0;

  // Returns the cost of each layer, the bytes exchanged with each peer, and the
  // measurements of this worker.
  virtual ClientReport Report() const = 0;

  // Returns the first spans of the GPU since Connect, at most about thirty
  // thousand. Spans of one kind are in the order of time. Waits for the work of
  // the GPU. Errors: kFailedPrecondition, this is no client of a GPU, or
  // GpuOptions::timeline is false; errors of the GPU.
  virtual absl::StatusOr<std::vector<GpuSpan>> Timeline() const {
    return absl::FailedPreconditionError(
        "only a client of a GPU keeps a timeline");
  }

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
  // calls Leave (on a GPU: queues it on `stream`), and changes neither
  // parameters nor state until Leave returns.
  //
  // Errors:
  //   kFailedPrecondition  The caller has pushed some layers of the last step,
  //                        and not all (see BeginStep). Push the rest.
  //   kDeadlineExceeded    A pushed round is not done in time (see Wait), or
  //                        other workers still work after `timeout`. Call Leave
  //                        again, or destroy the client. Make no other call in
  //                        between.
  //   kUnavailable         The coordinator was silent for round_timeout, while
  //                        this worker waited for the other workers. Destroy
  //                        the client. Calls that repeat Leave after
  //                        kDeadlineExceeded share this time.
  absl::Status Leave(absl::Duration timeout, Stream stream = nullptr) {
    return LeaveJob(/*early=*/false, timeout, stream);
  }
  absl::Status Leave(Stream stream = nullptr) {
    return Leave(absl::InfiniteDuration(), stream);
  }

  // Leaves a job that is not done, as Leave does: because the process was asked
  // to end (SIGTERM, see LeaveSignal), or because of StepInfo::should_leave.
  // The other workers go on without this one at once. If all workers leave
  // early, the job is stopped: it makes its last checkpoint, and another job
  // can go on from there (`--restore=latest`). Errors: those of Leave.
  absl::Status LeaveEarly(absl::Duration timeout, Stream stream = nullptr) {
    return LeaveJob(/*early=*/true, timeout, stream);
  }
  absl::Status LeaveEarly(Stream stream = nullptr) {
    return LeaveEarly(absl::InfiniteDuration(), stream);
  }

 private:
  // Implements Leave and LeaveEarly.
  virtual absl::Status LeaveJob(bool early, absl::Duration timeout,
                                Stream stream) = 0;
  // Implement TakeDeviceTurn and its end.
  friend class DeviceTurn;
  virtual absl::Status TakeTurn(absl::Duration /*timeout*/) {
    return absl::OkStatus();
  }
  virtual void GiveTurn() {}
};

DeviceTurn::~DeviceTurn() {
  if (client_ != nullptr) client_->GiveTurn();
}

}  // namespace nereus
