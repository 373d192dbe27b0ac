#pragma once

namespace nereus {

// Exit codes of nereus-server, nereusctl and workers.
inline constexpr int kExitDone = 0;    // The operation succeeded.
inline constexpr int kExitFailed = 1;  // The operation did not succeed.
inline constexpr int kExitUsage = 2;   // The command line is wrong.
// Exit code of a coordinator only: the job is finished and has a folder for
// checkpoints, but no checkpoint of its last step.
inline constexpr int kExitNotSaved = 3;
// Exit code of a worker only: the job goes on without it, because it stood
// still for too long. It may be started again (EX_TEMPFAIL of sysexits.h).
inline constexpr int kExitAgain = 75;

}  // namespace nereus
