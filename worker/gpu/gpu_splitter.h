#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
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

// Splits one layer's gradients where they are, in a sparse job: what is held
// back stays on the GPU, and only what travels comes to the host.
//
// Device memory, once something is held: three times the layer.
class GpuSplitter final {
 public:
  // `layer`: its number. `parameters`: the layer's, in device memory. What is
  // pointed to must outlive it.
  GpuSplitter(int layer, const LayerSpec& spec, const float* parameters,
              Stager* stager, PinnedPool* pool, GpuTimeline* timeline);
  ~GpuSplitter();

  // What it takes of the pool, at most.
  static int64_t PinnedBytesOf(const LayerSpec& spec);

  // What is to be split next.
  void Take(int64_t step, const std::shared_ptr<DeviceGradient>& gradient)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Carries out `split` on the GPU (Accelerator::Split).
  absl::Status Split(const SplitGradient& split) ABSL_LOCKS_EXCLUDED(mu_);

  // What travelled at the last Split, in order, and with it what is in gaps
  // that are shorter than what another copy costs. REQUIRES: not while Split
  // runs.
  std::vector<ValueRange> Travelled() const;

 private:
  struct Taken {
    int64_t step = 0;
    // What the job goes back without is not kept.
    std::weak_ptr<DeviceGradient> gradient;
  };
  // What a split reads and writes besides, for as many pieces as there are: on
  // the device, and the same in pinned memory.
  struct Lists {
    float* norms = nullptr;
    int32_t* chosen = nullptr;
    PieceUse* uses = nullptr;
  };

  static Lists ListsAt(void* memory, int64_t pieces);
  // Memory for what uses_ ask for.
  absl::Status Reserve();
  // The parts of held_, each as large as the layer; null, all of them, as long
  // as nothing is held.
  float* HeldMemory() const { return static_cast<float*>(held_.data()); }
  float* VelocityMemory() const {
    return held_.data() == nullptr ? nullptr : HeldMemory() + pieces_.values;
  }
  float* PackedMemory() const {
    return held_.data() == nullptr ? nullptr
                                   : VelocityMemory() + pieces_.values;
  }
  // Splits `gradient` and gathers the first `chosen` of the list.
  absl::Status QueueSplit(const SplitGradient& split, int64_t chosen,
                          float* gradient);
  absl::Status CopyOut(int64_t step, DeviceGradient& gradient,
                       const float* source, int64_t count);
  absl::Status TrySplit(const SplitGradient& split, int64_t step,
                        DeviceGradient& gradient);

  const int layer_;
  const std::string what_;
  const float* const parameters_;
  Stager* const stager_;
  PinnedPool* const pool_;
  GpuTimeline* const timeline_;

  DeviceMemory held_;
  DeviceMemory lists_;
  Buffer host_lists_;
  Stager::Point copied_;  // What travelled last.
  BlockPieces pieces_;    // Of the last split.
  std::vector<PieceUse> uses_;

  Mutex mu_;
  Taken taken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
