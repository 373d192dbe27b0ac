#pragma once

#include <cstdint>

#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Host memory of a layer that a device, such as a GPU, has in its own memory.
// The layer's parameters and state on the host are copies; awaiting them brings
// the device's newest values, where the device updates them. Thread-safe.
class DeviceLayer : public Arrival {
 public:
  // Returns zeroed host memory that the device copies to and from at full
  // speed. Never fails: without such memory, other memory will do.
  virtual Buffer Allocate(int64_t bytes) = 0;

  // Returns the host's copy of the state of the job's optimizer, zeroed, and
  // makes the device's. Called when the layer becomes worker-owned, with the
  // bytes of all arrays of state. Replaces the state of an earlier call. An
  // error of the device is returned by Await, and by the first update.
  virtual Buffer MakeState(int64_t bytes) = 0;
};

}  // namespace nereus
