#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/driver/accelerator.h"
#include "worker/gpu/device_factors.h"
#include "worker/gpu/gpu_splitter.h"

namespace nereus {

// Accelerator of a worker's driver: multiplies factors by cuBLAS, and splits
// the gradients of layers that are in the GPU's memory. Called by the driver
// thread.
class GpuAccelerator final : public Accelerator {
 public:
  // `products` is null if no layer has factors. `splitters` has an entry for
  // each layer, null for layers in host memory.
  GpuAccelerator(std::shared_ptr<DeviceFactors> products,
                 std::vector<std::shared_ptr<GpuSplitter>> splitters)
      : products_(std::move(products)), splitters_(std::move(splitters)) {}

  std::string name() const override {
    return products_ == nullptr ? "no products" : products_->name();
  }
  absl::Status Multiply(const MultiplyFactors& factors) override {
    return products_->Multiply(factors);
  }
  bool Splits(int layer) const override { return splitters_[layer] != nullptr; }
  absl::Status Split(const SplitGradient& split) override {
    return splitters_[split.layer]->Split(split);
  }

 private:
  // Both are shared with the client, which pushes through them.
  const std::shared_ptr<DeviceFactors> products_;
  const std::vector<std::shared_ptr<GpuSplitter>> splitters_;
};

}  // namespace nereus
