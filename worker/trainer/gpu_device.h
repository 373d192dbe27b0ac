#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/public/client.h"
#include "worker/public/gpu.h"
#include "worker/trainer/device.h"

namespace nereus {

// Returns GPU `number`, or kUnimplemented in a program that was built without
// CUDA. Errors: kInvalidArgument, no such GPU; kUnavailable, no driver;
// kResourceExhausted, out of device memory.
absl::StatusOr<std::shared_ptr<Device>> MakeGpuDevice(int number);

// Joins the job with layers in the memory of `device`. `keep_timeline`: true if
// Client::Timeline will be called. Errors: those of Client::Connect and
// ConnectOnGpu.
inline absl::StatusOr<std::unique_ptr<Client>> ConnectOn(
    const Device& device, const ClientOptions& options,
    std::vector<LayerBinding> layers, bool keep_timeline = false) {
  if (device.gpu() < 0) return Client::Connect(options, std::move(layers));
  GpuOptions gpu;
  gpu.device = device.gpu();
  gpu.timeline = keep_timeline;
  return ConnectOnGpu(options, gpu, std::move(layers), device.stream());
}

}  // namespace nereus
