#pragma once

namespace nereus {

// Exit codes of nereus-server and nereusctl.
inline constexpr int kExitDone = 0;    // The operation succeeded.
inline constexpr int kExitFailed = 1;  // The operation did not succeed.
inline constexpr int kExitUsage = 2;   // The command line makes no sense.
// Exit code of coordinators only: the job is finished, but no checkpoint has
// its last step, although the job has a folder for checkpoints.
inline constexpr int kExitNotSaved = 3;

}  // namespace nereus
