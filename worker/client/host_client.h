#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/driver/accelerator.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"
#include "common/tensor/device_layer.h"
#include "worker/public/client.h"

namespace nereus {

// A layer in host memory that may be a copy of a layer on a GPU.
struct HostLayerBinding {
  LayerBinding layer;

  // Device that has the originals of the parameters and of the state. The
  // client awaits it before it reads the copies, as the device may have newer
  // values. Null: the layer is in host memory alone.
  std::shared_ptr<DeviceLayer> device = nullptr;
};

struct HostClientOptions {
  ClientOptions client;  // Options of the public client.

  // Called when a round of a layer is done, before the Wait for it returns.
  // With `fetched`, the layer's parameters were fetched instead, for a Connect
  // or BeginStep that has not returned yet. Called on any thread: it must
  // neither wait nor call the client. May be empty.
  std::function<void(const LayerDone& done, bool fetched)> done = nullptr;

  // Called when a part of the result of a layer with a `device` is complete in
  // host memory, before `done` is called for the layer. Called on any thread,
  // like `done`. May be empty.
  std::function<void(const PartDone& part)> part_done = nullptr;

  // Multiplies the factors of all workers, splits gradients in a sparse job,
  // and makes the steps of the job's optimizer on worker-owned layers. Shared
  // by the client and the caller, which also uses the device. Null: the CPU
  // computes.
  std::shared_ptr<Accelerator> accelerator = nullptr;
};

// The client of a worker on host memory, with the hooks that clients for other
// memory are built on: GpuClient, and packages for other languages. Callers in
// C++ use Client, which is this class without the hooks. Thread-safe.
class HostClient : public Client {
 public:
  // Join the job like Client::Join and Client::Connect, with the same errors.
  static absl::StatusOr<std::unique_ptr<HostClient>> Join(
      HostClientOptions options, std::vector<HostLayerBinding> layers);
  static absl::StatusOr<std::unique_ptr<HostClient>> Connect(
      HostClientOptions options, std::vector<HostLayerBinding> layers);

  // Pushes a gradient that a copy from a device is still writing, from its
  // first value on. Sends arrived values without delay, and awaits `arrival`
  // for the others. With `--nan=skip`, and in a sparse job unless it ignores
  // NaNs, this call searches the values for NaNs and infinities. It then waits
  // until `arrival` has searched the values (Arrival::FindNotFinite), or until
  // all values have arrived. An arrival that fails ends the job for all
  // workers, with its error.
  //
  // Also accepts a layer with factors if the plan does not send factors
  // (takes_factors) and the caller has multiplied them.
  virtual absl::Status PushArriving(
      int layer, int64_t step, absl::Span<float> gradient,
      const std::shared_ptr<Arrival>& arrival) = 0;

  // Pushes factors that have arrived, in memory that `arrival` keeps. The
  // client holds `arrival` as long as it reads them. Without an arrival, the
  // caller keeps the memory (PushFactors).
  virtual absl::Status PushArrivingFactors(
      int layer, int64_t step, const Factors& factors,
      absl::Span<float> gradient, const std::shared_ptr<Arrival>& arrival) = 0;

  // Announces a Wait for a layer: frames that the client holds back, for fusion
  // or for the order of the forward pass, leave now.
  virtual absl::Status Hurry(int layer) = 0;

  // Returns the error of the job if the job has failed. Returns kOutOfRange if
  // the job has gone back to a checkpoint and the caller has not called
  // BeginStep since. Otherwise returns OK.
  virtual absl::Status Interruption() const = 0;

  // True if the plan sends the layer's factors: the caller must then push
  // factors and not a gradient. A plan changes only between two steps, or when
  // the job goes back to a checkpoint.
  virtual bool takes_factors(int layer) const = 0;

  // True if the plan sends the layer's gradients as bfloat16, and the client
  // needs them in no other form. The caller may then push them as bfloat16
  // (Arrival::bfloat16). A new plan may change this.
  virtual bool takes_bfloat16(int layer) const = 0;
};

}  // namespace nereus
