#pragma once

namespace nereus {

// Exit codes of nereus-server and nereusctl.
inline constexpr int kExitDone = 0;    // The operation succeeded.
inline constexpr int kExitFailed = 1;  // The operation did not succeed.
inline constexpr int kExitUsage = 2;   // The command line is wrong.
// Exit code of a coordinator only: the job is finished and has a folder for
// checkpoints, but no checkpoint of its last step.
inline constexpr int kExitNotSaved = 3;

}  // namespace nereus
