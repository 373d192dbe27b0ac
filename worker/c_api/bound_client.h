#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "worker/c_api/nereus.h"
#include "worker/public/client.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Arguments of nereus_client_connect, as the types of the C++ clients.
struct Binding {
  ClientOptions options;
  GpuOptions gpu;
  bool on_gpu = false;  // True: a GpuClient, with the options `gpu`.
  std::vector<GpuLayerBinding> layers;  // The layers, in either memory.
};

// Client behind a handle of the C interface: a HostClient, which ignores the
// streams, or a GpuClient. The functions are those of Client and GpuClient.
// Thread-safe.
class BoundClient {
 public:
  virtual ~BoundClient() = default;

  virtual absl::Status AwaitJoined(absl::Duration timeout,
                                   CUstream_st* stream) = 0;
  virtual absl::StatusOr<StepInfo> BeginStep(absl::Duration timeout,
                                             CUstream_st* stream) = 0;
  // `gradient`: `length` values.
  virtual absl::Status Push(int layer, int64_t step, float* gradient,
                            int64_t length, CUstream_st* stream) = 0;
  virtual absl::Status PushFactors(int layer, int64_t step,
                                   const nereus_factors& factors,
                                   float* gradient, int64_t length,
                                   CUstream_st* stream) = 0;
  virtual absl::Status Wait(int layer, int64_t step, absl::Duration timeout,
                            CUstream_st* stream) = 0;
  virtual absl::Status WaitForward(int layer, absl::Duration timeout,
                                   CUstream_st* stream) = 0;
  virtual absl::Status WaitAll(int64_t step, absl::Duration timeout,
                               CUstream_st* stream) = 0;
  // Errors: kInvalidArgument, no such layer; kFailedPrecondition, there is no
  // mean gradient, or it is in the pushed gradient on a GPU.
  virtual absl::StatusOr<absl::Span<const float>> Mean(int layer) const = 0;
  // Returns the rows of the factors that the plan sends (Client::factor_rows).
  // Errors: kInvalidArgument, no such layer.
  virtual absl::StatusOr<int64_t> FactorRows(int layer) const = 0;
  // Reports the rows of factors, by layer (Client::SetFactorRows).
  virtual absl::Status SetFactorRows(absl::Span<const int64_t> rows) = 0;
  virtual absl::Status Checkpoint() = 0;
  virtual absl::Status Abort(absl::string_view reason) = 0;
  // Leaves the job; `early`: as Client::LeaveEarly.
  virtual absl::Status Leave(bool early, absl::Duration timeout,
                             CUstream_st* stream) = 0;
  // Client for calls that need no stream: traits, Skipped, Report.
  virtual const Client& client() const = 0;
};

// Begins to join as a worker with layers in host memory. Errors: those of
// Client::Join.
absl::StatusOr<std::unique_ptr<BoundClient>> JoinOnHost(const Binding& binding);

// Begins to join as a worker with layers on a GPU. Errors: those of
// GpuClient::Join; kUnimplemented in a library without CUDA.
absl::StatusOr<std::unique_ptr<BoundClient>> JoinOnGpu(const Binding& binding,
                                                       CUstream_st* stream);

}  // namespace nereus
