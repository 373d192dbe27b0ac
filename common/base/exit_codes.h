#pragma once

#include "common/base/status.h"

namespace nereus {

// Exit codes of nereus-server, of nereusctl and of the workers of the reference
// trainer. A supervisor decides by them what to do: docs/operating.md, "How a
// job ends". Codes from 2 to 6 are permanent: the process would end in the same
// way again.
inline constexpr int kExitDone = 0;    // The operation succeeded.
inline constexpr int kExitFailed = 1;  // The operation did not succeed.
inline constexpr int kExitUsage = 2;   // The command line is wrong.
// The job has failed, and would fail so again: a NaN, a damaged checkpoint.
inline constexpr int kExitJobFailed = 3;
// The job refuses this process for good: another model, version or setting.
inline constexpr int kExitRefused = 4;
// The job was stopped, or values were lost: all of its processes must be
// started again, with --restore=latest if it has checkpoints.
inline constexpr int kExitJobLost = 5;
// Exit code of a coordinator only: the job is finished and has a folder for
// checkpoints, but no checkpoint of its last step.
inline constexpr int kExitNotSaved = 6;
// The process may be started again (EX_TEMPFAIL of sysexits.h): no coordinator
// answered, the port or the place in the job was taken, or the job went on
// without it, because it stood still for too long.
inline constexpr int kExitAgain = 75;
// Exit code after SIGTERM: 128 + 15. A member has left the job before, if it
// could.
inline constexpr int kExitTerminated = 143;

// Returns the exit code for the outcome of a process.
int ExitCodeOf(const absl::Status& outcome);

// Text about the exit codes for --help.
inline constexpr char kExitCodesHelp[] =
    "Exit codes: 0 done; 1 another error; 2 wrong command line; 3 the job has "
    "failed; 4 refused by the job; 5 the whole job must be started again; 6 "
    "finished, but not saved; 75 start this process again; 130, 143 ended by "
    "SIGINT, SIGTERM";

}  // namespace nereus
