#pragma once

namespace nereus {

// Exit codes of nereus-server and nereusctl.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // The operation did not succeed.
inline constexpr int kExitUsage = 2;   // The command line makes no sense.
// Of a coordinator: the job is finished, but its folder for checkpoints lacks
// what its last step came to.
inline constexpr int kExitNotSaved = 3;

}  // namespace nereus
