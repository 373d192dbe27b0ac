#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/device/device_memory.h"
#include "common/device/stager.h"
#include "common/plan/layer_spec.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"
#include "worker/client/host_client.h"
#include "worker/gpu/device_look.h"
#include "worker/gpu/gpu_splitter.h"
#include "worker/gpu/gpu_timeline.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// What a caller has pushed of one layer.
struct GpuPush {
  int layer = 0;
  int64_t step = 0;
  float* gradient = nullptr;
  GpuFactors factors;  // Null: the gradient.
  Stager::Point made;  // When they are, on the caller's stream.
};

// Brings what is pushed to where the client reads it: pinned memory. Not
// thread-safe.
class PushStager {
 public:
  // Not owned; what the client has.
  struct Parts {
    const std::vector<GpuLayerBinding>* layers = nullptr;
    Stager* stager = nullptr;
    GpuTimeline* timeline = nullptr;
    DeviceLook* look = nullptr;
    HostClient* client = nullptr;
    // By layer; null: it is on the host.
    const std::vector<std::shared_ptr<GpuSplitter>>* splitters = nullptr;
  };
  // Pinned memory of so many bytes; it may wait. `what`: for whom.
  using TakePinned =
      std::function<absl::StatusOr<Buffer>(const std::string& what, int64_t)>;

  PushStager(Parts parts, TakePinned take_pinned);

  // What a layer may need of it at a time.
  static int64_t PinnedBytesOf(const LayerSpec& spec);

  struct Staged {
    Buffer values;  // Pinned, where the mean will be; none of factors.
    std::function<absl::Status()> hand_on;  // To the client.
  };
  // Copies what was pushed, or begins to. An error is the GPU's, or that of the
  // memory.
  absl::StatusOr<Staged> Stage(const GpuPush& push);

 private:
  const LayerSpec& SpecOf(const GpuPush& push) const {
    return (*parts_.layers)[push.layer].spec;
  }
  std::string NameOf(const GpuPush& push, absl::string_view what) const;
  absl::StatusOr<Staged> StageHost(const GpuPush& push);
  absl::StatusOr<Staged> StageGradient(const GpuPush& push);
  absl::StatusOr<Staged> StageFactors(const GpuPush& push);
  // To the begin of `memory`, or as bfloat16 behind that.
  absl::StatusOr<std::shared_ptr<Arrival>> CopyOut(const GpuPush& push,
                                                   bool is_narrow,
                                                   const Buffer& memory);
  absl::StatusOr<std::shared_ptr<Arrival>> CopyNarrow(const GpuPush& push,
                                                      const Buffer& memory);

  const Parts parts_;
  const TakePinned take_pinned_;
  // By layer: gradients rounded to bfloat16, if any are.
  std::vector<DeviceMemory> halves_;
};

}  // namespace nereus
