#pragma once

namespace nereus {

// Starts the thread that ExitAtOnce needs. Later calls do nothing, but in a
// child of fork(), which has no such thread yet. Without it, because the system
// gives no more threads, ExitAtOnce writes no line.
void PrepareExitAtOnce();

// Ends the process, and writes the event `end` with `text` to its log before.
// There is no line if it would wait for a reader of standard error, and none
// after a second call. May return: another thread writes the line and ends the
// process, and until then all threads go on. Uses alarm(2) and SIGALRM, so that
// the process ends within a second even if the write does not.
//
// For signal handlers: async-signal-safe. `text` must be a constant. Call
// PrepareExitAtOnce first.
void ExitAtOnce(int exit_code, const char* text);

// Lets SIGINT and SIGTERM end the process at once, with exit code 128 plus the
// signal's number and a last line in the log. Ending is safe at any moment: for
// its peers the process has died, which they handle, and files are written
// whole or not at all.
void ExitOnSignals();

}  // namespace nereus
