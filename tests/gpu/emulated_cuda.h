#pragma once

#include <cstdint>

namespace cuda_emulation {

// Functions of emulated_cuda.cc for tests. There are two emulated devices, 0
// and 1.

// Lets one call of the runtime fail, after `calls` more calls have succeeded.
// Counts only calls that ask a device for something: allocations, copies,
// kernels, streams and events. Below 0: no call fails.
void FailCallAfter(int64_t calls);

// True if any thread has made a context on `device`.
bool HasContext(int device);

}  // namespace cuda_emulation
