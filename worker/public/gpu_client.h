#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"
#include "worker/public/client_options.h"

struct CUstream_st;  // CUDA's stream: a cudaStream_t is a pointer to it.

namespace nereus {

// Options of a client for layers on a GPU.
struct GpuOptions {
  // Number of the GPU, as for cudaSetDevice. Several workers may share one GPU.
  int device = 0;

  // Limit, in bytes, of the pinned host memory through which gradients travel:
  // host memory that a GPU reads and writes by itself. 0: as much as all
  // gradients of one step need. Otherwise the limit must be at least what the
  // push of each layer needs: its float32 values and half as much again, or
  // both factors, rounded up. Connect says how much.
  //
  // With less memory than one step needs, a gradient waits on the GPU until an
  // earlier gradient has left this memory. All workers must then push the
  // layers in the same order. Otherwise two workers can wait for ever, each for
  // a layer that the other has not sent. Where layers differ in size, the
  // client also unpins memory and pins it again, and each time waits for all
  // work of the GPU.
  //
  // The client pins more memory, beyond this limit: for the parameters, as much
  // as the model has; for the state of an optimizer that runs on the workers;
  // and, for each layer that goes around a ring, up to three times the layer's
  // size.
  int64_t staging_bytes = 0;

  // True if the client records when the GPU computed and copied (see
  // GpuClient::Timeline). Costs two CUDA events per span.
  bool timeline = false;

  // Returns OK, or kInvalidArgument with the field's name and value.
  absl::Status Validate() const;
};

// Time in which a GPU computed or copied for one layer. Times count from the
// beginning of the timeline.
struct GpuSpan {
  enum class Kind {
    // Work on the caller's stream: from the begin of the step, or from the last
    // push or wait, to the push of this layer or to a wait for it.
    kCompute,
    kCopyOut,  // Copy of a gradient to the host.
    kCopyIn,   // Copy of a result, or of a part of it, to the GPU.
  };
  Kind kind = Kind::kCompute;  // Kind of work in the span.
  int layer = 0;               // Index of the layer.
  int64_t step = 0;            // Step that the work belongs to.
  // Begin and end of the span, counted from the first span of the timeline.
  absl::Duration begin;
  absl::Duration end;
};

// Binds one layer to memory of the GPU, as LayerBinding does to host memory.
// The memory must outlive the client.
struct GpuLayerBinding {
  LayerSpec spec;

  // True if the layer is in host memory: for example, an embedding that does
  // not fit on the GPU. All pointers for this layer, here and in Push, then
  // point to host memory. The stream of a call orders it as for other layers. A
  // layer in host memory must not have factors.
  bool on_host = false;

  // Parameters of the layer: float32, shape {spec.parameters}, device memory.
  // The client writes this memory in Connect, in BeginStep, and from a Push of
  // the layer on until the stream of the Wait continues: work that is queued
  // there after the Wait may use the memory.
  float* parameters = nullptr;

  // State of the caller's optimizer, with `--optimizer=worker`: `state_arrays`
  // float32 arrays of shape {spec.parameters}, one after the other, as in
  // LayerBinding::state. May be null.
  float* state = nullptr;
  int state_arrays = 0;  // Number of arrays at `state`.
};

// Factors of a fully connected layer in device memory: float32, row-major,
// otherwise as in Factors.
struct GpuFactors {
  const float* output_gradient = nullptr;  // Shape {K, M}.
  const float* input = nullptr;            // Shape {K, N}.
  // K; 0: the LayerSpec::rows with which the caller has joined.
  int64_t rows = 0;
};

// Client for layers that live on a GPU. The rules, the loop and the errors of
// Client apply. In addition, each call that takes or returns values has a CUDA
// stream, which orders the client's use of the memory with the program's own
// work:
//
//   Push(layer, step, gradient, stream)  The client reads the gradient after
//                                        the work that is queued on `stream`
//                                        at the time of the call.
//   Wait(layer, step, stream)            Work that is queued on `stream` after
//                                        the call sees the result.
//
// A program queues its backward pass, pushes, waits, and queues its next
// forward pass. The program itself never has to wait for the GPU:
//
//   for (;;) {
//     const StepInfo step = NEREUS_TRY(client->BeginStep(stream));
//     if (step.step >= kSteps) break;
//     ... queue forward on `stream` ...
//     for (int layer = last; layer >= 0; --layer) {
//       ... queue backward of `layer` on `stream` ...
//       NEREUS_TRY(client->Push(layer, step.step, gradient[layer], stream));
//     }
//     NEREUS_TRY(client->WaitAll(step.step, stream));
//   }
//   NEREUS_TRY(client->Leave(stream));
//
// (A program handles kOutOfRange as in the example of Client.) The client waits
// for the GPU by CUDA events, mostly on the client's own threads. Copies run on
// streams of the client, beside the program's work. A large gradient leaves for
// the network part by part while it is copied.
//
// In a sparse job (`--sparsity`), the residual, which is the values that are
// not sent yet, stays on the GPU, in memory three times as large as the model.
// Only values that travel in the round are copied to the host and back. The
// client changes the values of the pushed gradient.
//
// With `--nan=skip`, in a sparse job, and in a layer whose factors the plan
// sends, the GPU searches gradients for NaNs.
//
// With `--optimizer=server`, workers run the job's optimizer on the layers that
// go by factors or around a ring. This client runs it on the GPU.
//
// Limits:
//   - A program cannot capture a step as a CUDA graph: a call with a stream
//     that is being captured returns kFailedPrecondition. The program may
//     capture other streams meanwhile.
//   - The client uses the primary context of the GPU. A program must not call
//     cudaDeviceReset, nor fork, while it has a client.
//   - A program must destroy the client before its static variables are
//     destroyed: at that time the CUDA runtime can be gone already.
//   - A program with many streams should run with
//     CUDA_DEVICE_MAX_CONNECTIONS=32: streams beyond the number of hardware
//     queues (8 by default) wait for each other. The client has four streams.
//   - In the first steps the client may have to allocate more memory. CUDA then
//     waits for all work of the GPU.
//
// Thread-safe. Errors of the GPU name the layer, the CUDA call and the number
// of bytes. If the GPU fails with a pushed gradient, the Wait for its layer
// returns the error.
class GpuClient {
 public:
  // Joins the job. Work that is queued on `stream` after the call sees the
  // job's parameters.
  //
  // Errors: those of Client::Connect; kUnavailable, no driver;
  // kInvalidArgument, no such GPU, or a pointer that does not point to memory
  // of that GPU or is not aligned to 4 bytes; kResourceExhausted, device memory
  // or pinned memory is used up.
  static absl::StatusOr<std::unique_ptr<GpuClient>> Connect(
      const ClientOptions& options, const GpuOptions& gpu,
      std::vector<GpuLayerBinding> layers, CUstream_st* stream);

  // Begins to join the job, as Client::Join. The first values of the parameters
  // are those after the work that is queued on `stream` at the time of the
  // call. Errors: those of Connect.
  static absl::StatusOr<std::unique_ptr<GpuClient>> Join(
      const ClientOptions& options, const GpuOptions& gpu,
      std::vector<GpuLayerBinding> layers, CUstream_st* stream);

  // Leaves the job as if this process had died, unless Leave has returned OK.
  virtual ~GpuClient() = default;

  // Waits until the client has joined, as Client::AwaitJoined. Work that is
  // queued on `stream` after the call sees the job's parameters.
  virtual absl::Status AwaitJoined(CUstream_st* stream,
                                   absl::Duration timeout) = 0;

  // Begins the next step, as Client::BeginStep. If the job has gone back, work
  // that is queued on `stream` after the call sees the checkpoint's parameters.
  //
  // Before it begins the step, this call waits until the GPU has computed all
  // pushed gradients, and the first part of each is in host memory. With
  // `--nan=skip`, and in a sparse job, it also waits until the GPU has searched
  // all gradients for NaNs.
  virtual absl::StatusOr<StepInfo> BeginStep(CUstream_st* stream,
                                             absl::Duration timeout) = 0;
  absl::StatusOr<StepInfo> BeginStep(CUstream_st* stream) {
    return BeginStep(stream, absl::InfiniteDuration());
  }

  // Contributes `gradient` to round `step` of `layer`. Returns at once.
  //
  // `gradient`: float32, shape {spec.parameters}, device memory. The client
  // uses this memory until the stream of the Wait for the round continues: work
  // that is queued there after the Wait may use the memory. With
  // `--optimizer=worker` the client writes the mean gradient to it. So it does
  // in any job for a layer whose factors the plan sends. Errors: as for
  // Client::Push.
  virtual absl::Status Push(int layer, int64_t step, float* gradient,
                            CUstream_st* stream) = 0;

  // Contributes the factors of a layer that has factors. The client uses the
  // memory of the factors and of `gradient`, shape {spec.parameters}, as long
  // as Push uses a gradient. If the plan does not send the layer's factors, the
  // client multiplies them on `stream` and writes the product to `gradient`.
  // Errors: as for Client::PushFactors.
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const GpuFactors& factors, float* gradient,
                                   CUstream_st* stream) = 0;

  // Waits until round `step` of `layer` is done, but not until the GPU has
  // copied the result: `stream` waits for that. Errors: as for Client::Wait.
  virtual absl::Status Wait(int layer, int64_t step, CUstream_st* stream,
                            absl::Duration timeout) = 0;
  absl::Status Wait(int layer, int64_t step, CUstream_st* stream) {
    return Wait(layer, step, stream, absl::InfiniteDuration());
  }
  // Waits for the last pushed round of the layer, as Client::WaitForward.
  virtual absl::Status WaitForward(int layer, CUstream_st* stream,
                                   absl::Duration timeout) = 0;
  absl::Status WaitForward(int layer, CUstream_st* stream) {
    return WaitForward(layer, stream, absl::InfiniteDuration());
  }
  // Waits for round `step` of every layer, for at most `timeout` in total.
  virtual absl::Status WaitAll(int64_t step, CUstream_st* stream,
                               absl::Duration timeout) = 0;
  absl::Status WaitAll(int64_t step, CUstream_st* stream) {
    return WaitAll(step, stream, absl::InfiniteDuration());
  }

  // Tells the job what this caller has seen of its factors, as
  // Client::SetFactorRows. Client::factor_rows of client() gives the answer.
  virtual absl::Status SetFactorRows(absl::Span<const int64_t> rows) = 0;

  // Requests a checkpoint, as Client::Checkpoint.
  virtual absl::Status Checkpoint() = 0;

  // Ends the job for all workers, as Client::Abort.
  virtual absl::Status Abort(absl::string_view reason) = 0;

  // Leaves the job, as Client::Leave. With `--optimizer=worker`, the caller
  // queues its last update of parameters and state on `stream` before it calls
  // Leave.
  absl::Status Leave(CUstream_st* stream,
                     absl::Duration timeout = absl::InfiniteDuration()) {
    return LeaveJob(/*early=*/false, stream, timeout);
  }
  // Leaves a job that is not done, as Client::LeaveEarly.
  absl::Status LeaveEarly(CUstream_st* stream,
                          absl::Duration timeout = absl::InfiniteDuration()) {
    return LeaveJob(/*early=*/true, stream, timeout);
  }

  // Bytes of layers' values that were copied between the GPU and the host.
  struct Staged {
    int64_t bytes_out = 0;  // Bytes copied to the host.
    int64_t bytes_in = 0;   // Bytes copied to the GPU.
  };
  // Returns the bytes copied so far.
  virtual Staged staged() const = 0;

  // Returns the first spans since Connect, at most about thirty thousand. Spans
  // of one kind are in the order of time. Waits for the work of the GPU.
  // Errors: kFailedPrecondition, GpuOptions::timeline is false; errors of the
  // GPU.
  virtual absl::StatusOr<std::vector<GpuSpan>> Timeline() const = 0;

  // Returns the host's part of this client, for calls that need no stream:
  // traits, factor_rows, Skipped, Report. Do not call its Mean: a GpuClient
  // writes the mean gradient to the memory of the pushed gradient.
  virtual const Client& client() const = 0;

 private:
  // Implements Leave and LeaveEarly.
  virtual absl::Status LeaveJob(bool early, CUstream_st* stream,
                                absl::Duration timeout) = 0;
};

}  // namespace nereus
