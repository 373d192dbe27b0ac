#include "common/base/status.h"
#include "worker/replay/gpu_replay.h"
#include "worker/trainer/gpu_worker.h"

namespace nereus {
namespace {

absl::Status BuiltWithoutCuda() {
  return UnimplementedError(
      "this program was built without CUDA: build it with --config=cuda, or "
      "use --device=cpu");
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> MakeGpuDevice(int /*number*/) {
  return BuiltWithoutCuda();
}

absl::StatusOr<std::unique_ptr<NetworkClient>> JoinWithGpu(
    const ClientOptions& /*options*/, Network* /*network*/,
    bool /*keep_timeline*/) {
  return BuiltWithoutCuda();
}

absl::StatusOr<std::unique_ptr<ReplayDevice>> JoinReplayOnGpu(
    const ClientOptions& /*options*/, const std::vector<LayerSpec>& /*layers*/,
    int /*number*/) {
  return BuiltWithoutCuda();
}

}  // namespace nereus
