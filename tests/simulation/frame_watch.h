#pragma once

#include "common/network/simulated_network.h"
#include "common/protocol/frame.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Reads the state at both ends of a frame that a machine has just handled, and
// tells the laws: the bytes that a server holds, the chunk that a backup has,
// or the result that a worker has received. Skips chunks and results of a
// process that has found a NaN or an infinity, because it sends no more frames.
void WatchFrame(SimulatedWorld& world, ProcessId from, ProcessId to,
                const FrameHeader& header);

}  // namespace nereus
