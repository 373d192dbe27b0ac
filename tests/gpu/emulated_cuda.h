#pragma once

#include <cstdint>

namespace cuda_emulation {

// Functions of emulated_cuda.cc for tests.

// The call after so many others fails, of those that ask a device for
// something; below 0: none does.
void FailCallAfter(int64_t calls);

// Whether any thread has made a context on a device, of which there are two.
bool HasContext(int device);

}  // namespace cuda_emulation
