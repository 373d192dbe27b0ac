#pragma once

#include <memory>

#include "common/base/status.h"
#include "worker/public/client_options.h"
#include "worker/trainer/device.h"
#include "worker/trainer/network.h"
#include "worker/trainer/network_client.h"

namespace nereus {

// Returns GPU `number`. In a program that was built without CUDA, MakeGpuDevice
// and JoinWithGpu return kUnimplemented.
//
// Errors: kInvalidArgument, no such GPU; kUnavailable, no driver;
// kResourceExhausted, out of device memory.
absl::StatusOr<std::shared_ptr<Device>> MakeGpuDevice(int number);

// Joins the job with `network`, which must be on a device of MakeGpuDevice and
// must outlive the result. `keep_timeline`: true if NetworkClient::Timeline
// will be called. Errors: those of GpuClient::Connect; kInvalidArgument, the
// network is not on a GPU.
absl::StatusOr<std::unique_ptr<NetworkClient>> JoinWithGpu(
    const ClientOptions& options, Network* network, bool keep_timeline);

}  // namespace nereus
