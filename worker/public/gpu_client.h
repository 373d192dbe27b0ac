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

struct CUstream_st;  // A cudaStream_t points to one.

namespace nereus {

// Options of a client for layers on a GPU.
struct GpuOptions {
  // Number of the GPU, as for cudaSetDevice. Several workers may share one GPU.
  int device = 0;

  // Limit of the pinned host memory through which gradients travel, in bytes.
  // 0: as much as all gradients of one step need. The memory must at least hold
  // the largest layer.
  //
  // With less memory than one step needs, a gradient waits on the GPU until an
  // earlier gradient has left. All workers must then push the layers in the
  // same order; otherwise each may wait for a layer that another one has not
  // sent. Where layers differ in size, memory is also unpinned and pinned
  // again, which waits for the GPU.
  //
  // Parameters have pinned memory of their own, as large as the model, and so
  // has the state of an optimizer that runs on the workers. Each layer on a
  // ring needs twice its size in addition.
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
    // Work on the caller's stream: from the begin of the step, or the push of
    // the previous layer, to the push of this layer.
    kCompute,
    kCopyOut,  // Copy of a gradient to the host.
    kCopyIn,   // Copy of a result, or of a part of it, to the GPU.
  };
  Kind kind = Kind::kCompute;  // Kind of work in the span.
  int layer = 0;               // Index of the layer.
  int64_t step = 0;            // Step that the work belongs to.
  // Begin and end, since the first span of the timeline.
  absl::Duration begin;
  absl::Duration end;
};

// Binds one layer to memory of the GPU, as LayerBinding does to host memory.
// The memory must outlive the client.
struct GpuLayerBinding {
  LayerSpec spec;

  // True if the layer's memory is host memory: for example, that of an
  // embedding that does not fit on the GPU. All pointers for this layer, here
  // and in Push, then point to host memory. Streams keep their meaning. Such a
  // layer must not have factors.
  bool on_host = false;

  // Parameters of the layer: float32, shape {spec.parameters}, device memory.
  // The client writes this memory in Connect, in BeginStep, and between a Push
  // of the layer and the point at which the stream of the Wait continues.
  float* parameters = nullptr;

  // State of the caller's optimizer, with `optimizer=worker`: `state_arrays`
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
};

// Client for layers that live on a GPU. The rules, the loop and the errors of
// Client apply. In addition, each call that takes or returns values has a CUDA
// stream, which decides when memory may be used.
//
//   Push(layer, step, gradient, stream)  The client reads the gradient after
//                                        the work that is queued on `stream`
//                                        at the time of the call.
//   Wait(layer, step, stream)            Work that is queued on `stream` after
//                                        the call sees the result.
//
// A program queues its backward pass, pushes, waits, and queues its next
// forward pass. It needs no wait for the GPU of its own:
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
// (kOutOfRange is handled as in Client.) The client waits for the GPU by CUDA
// events, mostly on threads of its own. Copies run on streams of the client,
// beside the program's work. A large gradient leaves for the network part by
// part while it is copied.
//
// In a sparse job (`--sparsity`), the values that are held back stay on the
// GPU, in three times the memory of the model. Only the values that travel are
// copied, in both directions. The client changes the pushed gradient. With
// `--nan=skip`, and in a sparse job, the GPU itself searches for NaNs.
//
// The GPU itself makes the steps of the job's optimizer where workers run it:
// for layers by factors or by a ring, with `optimizer=server`.
//
// Limits:
//   - A step cannot be captured for a CUDA graph: a call with a stream that is
//     being captured returns kFailedPrecondition. Graphs of other streams may
//     be captured meanwhile.
//   - The client uses the primary context of the GPU. A program must not call
//     cudaDeviceReset, nor fork, while it has a client.
//   - The client is destroyed before static variables are: the CUDA runtime may
//     be gone by then.
//   - With many streams, set CUDA_DEVICE_MAX_CONNECTIONS=32: streams beyond the
//     GPU's hardware queues (8 by default) wait for each other. The client has
//     four streams.
//   - Memory that must grow in the first steps is allocated then, which waits
//     for the whole GPU.
//
// Thread-safe. Errors of the GPU name the layer, the CUDA call and the bytes.
// The Wait for a pushed gradient returns the error of that gradient.
class GpuClient {
 public:
  // Joins the job. Work that is queued on `stream` after the call sees the
  // job's parameters.
  //
  // Errors: those of Client::Connect; kUnavailable, no driver or no such GPU;
  // kInvalidArgument, a pointer that is not memory of that GPU or not aligned
  // to 4 bytes; kResourceExhausted, out of device memory or pinned memory.
  static absl::StatusOr<std::unique_ptr<GpuClient>> Connect(
      const ClientOptions& options, const GpuOptions& gpu,
      std::vector<GpuLayerBinding> layers, CUstream_st* stream);

  // Begins to join the job, as Client::Join. The parameters start from their
  // values at this point of `stream`. Errors: those of Connect.
  static absl::StatusOr<std::unique_ptr<GpuClient>> Join(
      const ClientOptions& options, const GpuOptions& gpu,
      std::vector<GpuLayerBinding> layers, CUstream_st* stream);

  // Leaves the job as if this process had died, unless Leave was called before.
  virtual ~GpuClient() = default;

  // Waits until the client has joined, as Client::AwaitJoined. Work that is
  // queued on `stream` after the call sees the job's parameters.
  virtual absl::Status AwaitJoined(CUstream_st* stream,
                                   absl::Duration timeout) = 0;

  // Begins the next step, as Client::BeginStep. If the job has gone back, work
  // that is queued on `stream` after the call sees the checkpoint's parameters.
  //
  // Waits until the GPU has computed all pushed gradients, and the first values
  // of each are on the host. With `--nan=skip`, and in a sparse job, also waits
  // until all gradients have been searched for NaNs.
  virtual absl::StatusOr<StepInfo> BeginStep(CUstream_st* stream,
                                             absl::Duration timeout) = 0;
  absl::StatusOr<StepInfo> BeginStep(CUstream_st* stream) {
    return BeginStep(stream, absl::InfiniteDuration());
  }

  // Contributes `gradient` to round `step` of `layer`. Returns at once.
  //
  // `gradient`: float32, shape {spec.parameters}, device memory. The client
  // uses it until the stream that was given to Wait has continued. With
  // `optimizer=worker` the mean gradient replaces it. Errors: as for
  // Client::Push.
  virtual absl::Status Push(int layer, int64_t step, float* gradient,
                            CUstream_st* stream) = 0;

  // Contributes the gradient of a layer that has factors. The client uses the
  // factors and `gradient`, shape {spec.parameters}, until the stream that was
  // given to Wait has continued. If the plan does not send factors, the client
  // multiplies them on `stream`, into `gradient`.
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const GpuFactors& factors, float* gradient,
                                   CUstream_st* stream) = 0;

  // Waits until the round is done. Does not wait for the GPU: `stream` waits
  // for the copy of the result. Errors: as for Client::Wait.
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
  // Waits for round `step` of every layer, for `timeout` in all.
  virtual absl::Status WaitAll(int64_t step, CUstream_st* stream,
                               absl::Duration timeout) = 0;
  absl::Status WaitAll(int64_t step, CUstream_st* stream) {
    return WaitAll(step, stream, absl::InfiniteDuration());
  }

  // Requests a checkpoint, as Client::Checkpoint.
  virtual absl::Status Checkpoint() = 0;

  // Ends the job for all workers, as Client::Abort.
  virtual absl::Status Abort(absl::string_view reason) = 0;

  // Leaves the job, as Client::Leave. With `optimizer=worker`, the caller has
  // queued its last update of parameters and state on `stream` before.
  virtual absl::Status Leave(CUstream_st* stream, absl::Duration timeout) = 0;
  absl::Status Leave(CUstream_st* stream) {
    return Leave(stream, absl::InfiniteDuration());
  }

  // Bytes of layers' values that were copied between the GPU and the host.
  struct Staged {
    int64_t bytes_out = 0;  // Bytes copied to the host.
    int64_t bytes_in = 0;   // Bytes copied to the GPU.
  };
  // Returns the bytes copied so far.
  virtual Staged staged() const = 0;

  // Returns the first spans since Connect, about thirty thousand at most. Spans
  // of one kind are in the order of time. Waits for the GPU. Errors:
  // kFailedPrecondition, GpuOptions::timeline is false; errors of the GPU.
  virtual absl::StatusOr<std::vector<GpuSpan>> Timeline() const = 0;

  // Returns the client on the host, for everything that needs no stream:
  // traits, Skipped, Report. Its Mean is not valid here: the mean gradient is
  // in the pushed gradient.
  virtual const Client& client() const = 0;
};

}  // namespace nereus
