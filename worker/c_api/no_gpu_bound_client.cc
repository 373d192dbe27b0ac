#include "worker/c_api/bound_client.h"

namespace nereus {

absl::StatusOr<std::unique_ptr<BoundClient>> JoinOnGpu(
    const Binding& /*binding*/, CUstream_st* /*stream*/) {
  return UnimplementedError(
      "options.memory is NEREUS_MEMORY_CUDA, and this is libnereus.so, which "
      "knows host memory only: load libnereus_cuda.so instead");
}

}  // namespace nereus
