#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"
#include "worker/public/client_options.h"

struct CUstream_st;  // A cudaStream_t points to one.

namespace nereus {

struct GpuOptions {
  // As cudaSetDevice numbers them. Workers may share one.
  int device = 0;

  // How much pinned host memory gradients may pass through; 0: as much as those
  // of one step need. With less, a gradient waits on the device until others
  // are done: then all workers must push the layers in the same order, and
  // where layers differ in size memory is given up and pinned again, which
  // waits for the GPU. Parameters have pinned memory of their own, once the
  // model.
  int64_t staging_bytes = 0;

  // Whether the client keeps a timeline (GpuClient::Timeline).
  bool timeline = false;

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// What a GPU did, and when, since the timeline began.
struct GpuSpan {
  enum class Kind {
    kCompute,  // The caller's stream, from the step's begin, or the push of
               // another layer, to this layer's.
    kCopyOut,
    kCopyIn,
  };
  Kind kind = Kind::kCompute;
  int layer = 0;
  int64_t step = 0;
  absl::Duration begin;
  absl::Duration end;
};

// LayerBinding for device memory, which must outlive the client, too.
struct GpuLayerBinding {
  LayerSpec spec;

  // All that is said of this layer's memory, here and in Push, is the host's:
  // an embedding that the GPU has no room for, say. Streams count as for
  // others.
  bool on_host = false;

  // float32, {spec.parameters}. The client writes it between a Push of the
  // layer and the point at which the stream given to Wait may read it, and in
  // Connect and BeginStep.
  float* parameters = nullptr;

  // With `optimizer=worker`: state_arrays arrays of {spec.parameters}, one
  // after the other, as LayerBinding::state. May be null.
  float* state = nullptr;
  int state_arrays = 0;
};

// Factors, in device memory.
struct GpuFactors {
  const float* output_gradient = nullptr;  // K x M
  const float* input = nullptr;            // K x N
};

// A Client for layers that live on a GPU. What is said of Client holds here;
// what differs is when memory may be used. A stream is given to every call that
// takes or returns values:
//
//   Push(layer, step, gradient, stream)  takes the gradient when all is done
//                                        that is queued on `stream` by now
//   Wait(layer, step, stream)            what is queued on `stream` from now on
//                                        sees the outcome
//
// So a program queues its backward pass, pushes, waits and queues its next
// forward pass, and never waits for the GPU; nor does the client, but for
// events, on threads of its own. Copies go beside the program's work on streams
// of their own, and leave for the network piece by piece.
//
// In a sparse job (`--sparsity`) what is held back stays on the GPU, in three
// times the model's memory, and only what travels is copied, both ways; the
// gradient is changed. With `--nan=skip`, and in a sparse job, the GPU looks
// for NaNs.
//
// Thread-safe. Errors of the GPU name the layer, the call and the bytes. One of
// a gradient that was pushed comes from the Wait for it.
class GpuClient {
 public:
  // Errors: those of Client::Connect; kUnavailable, no driver, or no such GPU;
  // kInvalidArgument, memory that is not that GPU's, or not aligned to 4 bytes;
  // kResourceExhausted, out of device or pinned memory.
  static absl::StatusOr<std::unique_ptr<GpuClient>> Connect(
      const ClientOptions& options, const GpuOptions& gpu,
      std::vector<GpuLayerBinding> layers, CUstream_st* stream);

  // Leaves the job as if this process had died, unless Leave was called.
  virtual ~GpuClient() = default;

  // What is queued on `stream` from now on finds the job's parameters, if the
  // job went back. Waits until the GPU has made the first values of all
  // gradients that are pushed; with `--nan=skip`, and in a sparse job, all.
  virtual absl::StatusOr<StepInfo> BeginStep(CUstream_st* stream) = 0;

  // `gradient`: float32, {spec.parameters}, device memory; the client's until
  // the stream given to Wait has gone on. Returns at once.
  virtual absl::Status Push(int layer, int64_t step, float* gradient,
                            CUstream_st* stream) = 0;

  // The same by factors; they and `gradient` are the client's until then. Where
  // the plan does not take the layer's factors, the client multiplies them on
  // `stream`.
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const GpuFactors& factors, float* gradient,
                                   CUstream_st* stream) = 0;

  // Waits until the round is done, but not for the GPU: `stream` does.
  virtual absl::Status Wait(int layer, int64_t step, CUstream_st* stream) = 0;
  virtual absl::Status WaitForward(int layer, CUstream_st* stream) = 0;
  virtual absl::Status WaitAll(int64_t step, CUstream_st* stream) = 0;

  // With `optimizer=worker`, the last update of parameters and state is queued
  // on `stream`.
  virtual absl::Status Leave(CUstream_st* stream) = 0;

  // What was copied between the GPU and the host so far, of layers' values.
  struct Staged {
    int64_t bytes_out = 0;  // To the host.
    int64_t bytes_in = 0;
  };
  virtual Staged staged() const = 0;

  // The first spans, some ten thousand, by kind in order. Waits for the GPU.
  // Errors: kFailedPrecondition, GpuOptions::timeline is off; the GPU's.
  virtual absl::StatusOr<std::vector<GpuSpan>> Timeline() const = 0;

  // For everything else: what the plan takes, who takes part, what it costs.
  // (The mean is not where Client::Mean says, but in the gradient that was
  // pushed.)
  virtual const Client& client() const = 0;
};

}  // namespace nereus
