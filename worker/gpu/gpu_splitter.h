#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/compute/block_pieces.h"
#include "common/device/device_memory.h"
#include "common/device/pinned_pool.h"
#include "common/device/stager.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"
#include "common/tensor/value_range.h"
#include "worker/gpu/device_gradient.h"
#include "worker/gpu/gpu_timeline.h"

namespace nereus {

// Splits one layer's gradients on the GPU, in a sparse job. Blocks that are
// sent in a round "travel": they are copied to the host. The other blocks are
// "held back": they stay on the GPU, in the residual.
//
// Split is called by one thread at a time. From the first step that holds
// blocks back, uses device memory of three times the layer's length.
class GpuSplitter final {
 public:
  // `layer`: index of the layer. `parameters`: those of the layer, in device
  // memory. The memory and objects behind the pointers must outlive this
  // object.
  GpuSplitter(int layer, const LayerSpec& spec, const float* parameters,
              Stager* stager, PinnedPool* pool, GpuTimeline* timeline);
  // Waits for the last split and the last copy, which use memory of this
  // object.
  ~GpuSplitter();

  // Returns the largest number of bytes that the splitter of a layer takes from
  // the pool.
  static int64_t PinnedBytesOf(const LayerSpec& spec);

  // Sets the gradient that the next Split splits, and its step.
  void Take(int64_t step, const std::shared_ptr<DeviceGradient>& gradient)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Queues `split` (Compute::Split), and the copy of the blocks that
  // travel.
  absl::Status Split(const SplitGradient& split) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the GPU has done the last Split, and adds its norms to
  // SplitGradient::norms. Does nothing if the norms are added already.
  absl::Status Finish();

  // Returns the ranges of values that travelled at the last Split, in order.
  // Joins ranges with short gaps between them, since each copy has a fixed
  // cost. REQUIRES: Split does not run.
  std::vector<ValueRange> Travelled() const;

 private:
  // Gradient to split next.
  struct Taken {
    int64_t step = 0;
    // Weak, so that a gradient is freed if the job goes back to a checkpoint
    // before Split is called.
    std::weak_ptr<DeviceGradient> gradient;
  };
  // Norms of the last split.
  struct Norms {
    Stager::Point there;  // Point at which host_lists_ has them.
    Buffer sum;           // SplitGradient::norms. Empty: added already.
  };
  // Lists that a split reads and writes, with an entry for each piece. One set
  // of lists is on the device, and one in pinned memory.
  struct Lists {
    float* norms = nullptr;     // L1 norm of each piece.
    int32_t* chosen = nullptr;  // Indices of the pieces that travel.
    PieceUse* uses = nullptr;   // Use of each piece.
  };

  // Returns the lists that lie in `memory`.
  static Lists ListsAt(void* memory, int64_t pieces);
  // Allocates the lists and, if uses_ holds a piece back, held_. Keeps what is
  // allocated already.
  absl::Status Reserve();
  // Parts of held_, each as large as the layer: values that are held back,
  // velocity of the optimizer, and the pieces that travel, packed.
  enum class Held { kValues, kVelocity, kPacked };
  // Returns a part of held_; null until a step has held a piece back.
  float* MemoryOf(Held part) const {
    if (held_.data() == nullptr) return nullptr;
    return static_cast<float*>(held_.data()) +
           static_cast<int64_t>(part) * pieces_.values;
  }
  // Queues the split of `gradient`. Then queues the packing of the pieces that
  // travel: the first `chosen` entries of Lists::chosen name them.
  absl::Status QueueSplit(const SplitGradient& split, int64_t chosen,
                          float* gradient);
  // Queues the copy of `count` values at `source` to the host.
  absl::Status CopyOut(int64_t step, DeviceGradient& gradient,
                       const float* source, int64_t count);
  // Carries out `split` for `gradient`.
  absl::Status TrySplit(const SplitGradient& split, int64_t step,
                        DeviceGradient& gradient);

  const int layer_;                // Index of the layer.
  const std::string what_;         // Name for messages.
  const float* const parameters_;  // Device memory.
  // Not owned, like pool_ and timeline_.
  Stager* const stager_;
  PinnedPool* const pool_;
  GpuTimeline* const timeline_;

  // Memory of the parts (see Held). Empty until a step has held a piece back.
  DeviceMemory held_;
  DeviceMemory lists_;          // Lists on the device.
  Buffer host_lists_;           // Lists in pinned memory.
  Stager::Point copied_;        // Point at which the last copy is done.
  Norms norms_;                 // Norms that Finish adds.
  BlockPieces pieces_;          // Pieces of the last split.
  std::vector<PieceUse> uses_;  // Use of each piece in the last split.

  Mutex mu_;
  Taken taken_ ABSL_GUARDED_BY(mu_);  // See Take.
};

}  // namespace nereus
