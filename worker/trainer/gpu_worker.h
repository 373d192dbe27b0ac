#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/public/client_options.h"
#include "worker/trainer/device.h"
#include "worker/trainer/network.h"
#include "worker/trainer/replica.h"

namespace nereus {

// What a worker on a GPU is made of; the same calls without one, in a program
// that was built without CUDA, fail with kUnimplemented.

// GPU `number`. Errors: kUnavailable, no driver, or no such GPU;
// kResourceExhausted.
absl::StatusOr<std::shared_ptr<Device>> MakeGpuDevice(int number);

// Joins the job with `network`, which is on a device that MakeGpuDevice made
// and must outlive what is returned. Errors: GpuClient::Connect's.
absl::StatusOr<std::unique_ptr<Replica>> JoinWithGpu(
    const ClientOptions& options, Network* network, bool keep_timeline);

}  // namespace nereus
