#pragma once

namespace nereus {

// Exit codes of nereus-server and nereusctl.
inline constexpr int kExitDone = 0;    // The operation succeeded.
inline constexpr int kExitFailed = 1;  // The operation did not succeed.
inline constexpr int kExitUsage = 2;   // The command line makes no sense.
// The job is finished, but its last step is in no checkpoint although it has a
// folder for them. Of coordinators only.
inline constexpr int kExitNotSaved = 3;

}  // namespace nereus
