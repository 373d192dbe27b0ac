#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/public/client.h"
#include "worker/public/client_options.h"

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
  // size. A layer that goes directly, which is small, takes twice its size for
  // each host.
  int64_t staging_bytes = 0;

  // True if the client records when the GPU computed and copied (see
  // Client::Timeline). Costs two CUDA events per span.
  bool timeline = false;

  // Returns OK, or kInvalidArgument with the field's name and value.
  absl::Status Validate() const;
};

// Clients for layers that live on a GPU. The rules, the loop and the errors of
// Client apply:
//
//   auto client = NEREUS_TRY(ConnectOnGpu(options, gpu, layers, stream));
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
// sends, the GPU searches gradients for NaNs, and BeginStep waits until it has
// searched all of them.
//
// With `--optimizer=server`, workers run the job's optimizer on the layers that
// go without servers. This client runs it on the GPU.
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
// Errors of the GPU name the layer, the CUDA call and the number of bytes. If
// the GPU fails with a pushed gradient, the Wait for its layer returns the
// error.
//
// ConnectOnGpu joins the job as Client::Connect does. Work that is queued on
// `stream` after the call sees the job's parameters. JoinOnGpu begins to join
// as Client::Join does: the first values of the parameters are those after the
// work that is queued on `stream` at the time of the call.
//
// Errors: those of Client::Connect; kUnavailable, no driver; kInvalidArgument,
// no such GPU, or a pointer that does not point to memory of that GPU or is not
// aligned to 4 bytes; kResourceExhausted, device memory or pinned memory is
// used up; kUnimplemented, the program was built without CUDA.
absl::StatusOr<std::unique_ptr<Client>> ConnectOnGpu(
    const ClientOptions& options, const GpuOptions& gpu,
    std::vector<LayerBinding> layers, Stream stream);
absl::StatusOr<std::unique_ptr<Client>> JoinOnGpu(
    const ClientOptions& options, const GpuOptions& gpu,
    std::vector<LayerBinding> layers, Stream stream);

}  // namespace nereus
