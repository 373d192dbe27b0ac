#pragma once

#include "common/network/simulated_network.h"
#include "common/protocol/frame.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Looks at both ends of a frame that a machine has just handled, and tells the
// laws what the server holds, what the backup has, or what the worker was
// shown. Ends where a check of values has failed are not looked at: they send
// messages only, and no other process hears what they have.
void WatchFrame(SimulatedWorld& world, ProcessId from, ProcessId to,
                const FrameHeader& header);

}  // namespace nereus
