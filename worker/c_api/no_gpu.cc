#include "common/base/status.h"
#include "worker/public/gpu.h"

namespace nereus {

absl::StatusOr<std::unique_ptr<Client>> JoinOnGpu(
    const ClientOptions& /*options*/, const GpuOptions& /*gpu*/,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): the other one moves.
    std::vector<LayerBinding> /*layers*/, Stream /*stream*/) {
  return UnimplementedError(
      "options.memory is NEREUS_MEMORY_CUDA, and this is libnereus.so, which "
      "knows host memory only: load libnereus_cuda.so instead");
}

}  // namespace nereus
