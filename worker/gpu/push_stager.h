#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/device/device_memory.h"
#include "common/device/stager.h"
#include "common/plan/layer_spec.h"
#include "common/tensor/buffer.h"
#include "worker/client/host_client.h"
#include "worker/gpu/device_gradient.h"
#include "worker/gpu/device_look.h"
#include "worker/gpu/gpu_splitter.h"
#include "worker/gpu/gpu_timeline.h"
#include "worker/public/gpu.h"

namespace nereus {

// Returns the float32 values of a buffer.
inline absl::Span<float> FloatsOf(const Buffer& buffer) {
  return {buffer.floats(), static_cast<size_t>(buffer.float_count())};
}

// A caller's push of one layer.
struct GpuPush {
  int layer = 0;
  int64_t step = 0;
  // Gradient; for a push of factors, the memory for the mean gradient. Device
  // memory, or host memory if the layer is on the host.
  absl::Span<float> gradient;
  // Factors to send. Empty: send `gradient` instead (the client multiplies
  // pushed factors first).
  Factors factors;
  // Point of the caller's stream at which the pushed values are computed.
  Stager::Point made;
  // True if the mean is made of factors: those above, or those of other workers
  // beside this worker's gradient.
  bool by_factors = false;
};

// Copies pushed values to pinned memory, where the host client reads them. Once
// the staging thread runs, only that thread uses this class.
class PushStager {
 public:
  // Parts of the GPU client. Not owned; must outlive this.
  struct Parts {
    const std::vector<LayerBinding>* layers = nullptr;
    Stager* stager = nullptr;
    GpuTimeline* timeline = nullptr;
    DeviceLook* look = nullptr;    // Searches gradients for NaNs.
    HostClient* client = nullptr;  // Receives the pushes.
    // Splitters, by layer. An entry is null if its layer is on the host.
    const std::vector<std::shared_ptr<GpuSplitter>>* splitters = nullptr;
  };
  // Returns pinned memory of the given number of bytes, and waits if none is
  // free. `what`: name for messages.
  using TakePinned =
      std::function<absl::StatusOr<Buffer>(const std::string& what, int64_t)>;

  PushStager(Parts parts, TakePinned take_pinned);

  // Returns the largest number of pinned bytes that one push of the layer
  // needs.
  static int64_t PinnedBytesOf(const LayerSpec& spec);
  // Returns the number of pinned bytes that a push of the layer needs by the
  // current plan.
  int64_t PinnedBytesOf(int layer) const;

  // Result of Stage.
  struct Staged {
    // Pinned memory of the gradient. A mean gradient from the servers will
    // arrive in it. Empty for factors, and for a layer on the host.
    Buffer values;
    // Pushes the values to the host client.
    std::function<absl::Status()> hand_on;
  };
  // Starts the copy of a gradient, and waits for its first part; copies factors
  // completely. For a layer on the host, only waits until the values are
  // computed. In a sparse job also takes pinned memory, and gives the gradient
  // to the splitter. Errors: those of the GPU and of TakePinned.
  absl::StatusOr<Staged> Stage(const GpuPush& push);

 private:
  const LayerSpec& SpecOf(const GpuPush& push) const {
    return (*parts_.layers)[push.layer].spec;
  }
  // Returns the subject of messages about a push.
  std::string NameOf(const GpuPush& push, absl::string_view what) const;
  // Stage for a layer on the host, for a gradient on the GPU, and for factors.
  absl::StatusOr<Staged> StageHost(const GpuPush& push);
  absl::StatusOr<Staged> StageGradient(const GpuPush& push);
  absl::StatusOr<Staged> StageFactors(const GpuPush& push);
  // Starts the copy of a gradient to the host, as bfloat16 if `halves` has
  // memory for it, and waits for its first part.
  absl::Status CopyOut(const GpuPush& push, const Buffer& halves,
                       DeviceGradient& gradient);
  // Rounds a gradient to bfloat16 and starts the copy of the rounded values to
  // `memory`.
  absl::StatusOr<Buffer> CopyHalves(const GpuPush& push, const Buffer& memory);

  const Parts parts_;
  const TakePinned take_pinned_;
  // Device memory for gradients rounded to bfloat16, by layer. Empty: the layer
  // was never rounded.
  std::vector<DeviceMemory> halves_;
};

}  // namespace nereus
