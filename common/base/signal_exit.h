#pragma once

namespace nereus {

// Starts the thread that ExitAtOnce needs. Later calls do nothing.
void PrepareExitAtOnce();

// Ends the process with a last line in its log: event `end`, with `text`. There
// is no line if it would wait for a reader of standard error, in a child of
// fork(), and after a second call. May return: another thread writes the line
// and ends the process.
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
