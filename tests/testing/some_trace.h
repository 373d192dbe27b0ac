#pragma once

#include "common/protocol/trace.h"

namespace nereus {

// Returns a trace of steps 10 and 11 of a job with two workers and one server.
// Layer "fc" goes by the server: each worker's gradient takes 2 ms, and the
// worker waits 3 ms for the result. Worker 1 computes 1 ms longer. The clock of
// worker 1 is behind the coordinator's by an hour; the other clocks agree with
// it. All times are of about an hour after the clocks began.
JobTrace SomeTrace();

}  // namespace nereus
