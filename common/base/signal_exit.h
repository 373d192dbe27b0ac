#pragma once

namespace nereus {

// Starts the thread that writes the line of ExitAtOnce. A later call does
// nothing, except in a child of fork(): there it starts the child's thread. If
// the system refuses the thread, ExitAtOnce ends the process without a line.
void PrepareExitAtOnce();

// Writes a line with the event `end` and `text` to the log, and ends the
// process. Another thread does both, so this function may return, and all
// threads go on until then. A second call ends the process without the line.
// If the log does not take the line, alarm(2) ends the process after a second.
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
