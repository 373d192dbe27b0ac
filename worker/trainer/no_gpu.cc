#include "common/base/status.h"
#include "worker/trainer/gpu_device.h"

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

absl::StatusOr<std::unique_ptr<Client>> ConnectOnGpu(
    const ClientOptions& /*options*/, const GpuOptions& /*gpu*/,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): the other one moves.
    std::vector<LayerBinding> /*layers*/, Stream /*stream*/) {
  return BuiltWithoutCuda();
}

}  // namespace nereus
