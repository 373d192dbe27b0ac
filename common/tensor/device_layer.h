#pragma once

#include <cstdint>

#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Host memory of a layer whose values are in the memory of a device, such as a
// GPU. Host memory has copies of the parameters and of the optimizer's state.
// After the device has updated its values, Await copies the newest values to
// the host. Thread-safe.
class DeviceLayer : public Arrival {
 public:
  // Returns zeroed host memory, pinned if pinned memory is left. Without pinned
  // memory, copies to and from the device are slower.
  virtual Buffer Allocate(int64_t bytes) = 0;

  // Makes the state of the job's optimizer on the device, zeroed, and returns
  // the zeroed host copy. Called when a plan makes this worker update the layer
  // with the job's optimizer. `bytes`: length of all arrays of state together.
  // Replaces the state of an earlier call. If the device fails, Await and every
  // update return the error.
  virtual Buffer MakeState(int64_t bytes) = 0;
};

}  // namespace nereus
