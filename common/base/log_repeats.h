#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace nereus {

// Pace of a log line that says that something still lasts: at first at once,
// then after 5 s, each time when it has lasted twice as long, and at last every
// minute. Not thread-safe.
class LogPace {
 public:
  // True if a line is due now that it has lasted for `lasted`. The caller then
  // writes the line.
  bool IsDue(absl::Duration lasted);

 private:
  absl::Duration next_ = -absl::InfiniteDuration();  // Time of the next line.
};

// Log lines that would say the same again and again, such as that a process is
// refused. It writes nothing itself: it says which lines are due, by LogPace.
//
//   if (const auto lasts = repeats_.Note(reason, now)) {
//     NEREUS_LOG(Warning) << "refused: " << reason << LastsText(*lasts);
//   }
//
// If nothing was noted for two minutes, the next line counts as a new one.
// Bounded: keeps kKeptMax texts, and forgets the one that was noted longest
// ago. Not thread-safe.
class LogRepeats {
 public:
  // Largest number of texts that are kept.
  static constexpr size_t kKeptMax = 64;

  // Notes that `what` is to be said at `now`. Returns nothing if the line is
  // not due, and otherwise for how long the same has been said: zero at first.
  std::optional<absl::Duration> Note(const std::string& what, absl::Time now);

  // Forgets all texts: each counts as new from now on.
  void Clear() { repeats_.clear(); }

 private:
  // A text that was noted.
  struct Repeat {
    absl::Time since;     // Time of its first Note.
    absl::Time noted_at;  // Time of its last Note.
    LogPace pace;
  };

  // Forgets the texts that were noted too long ago, and one more if there are
  // kKeptMax.
  void Forget(absl::Time now);

  std::map<std::string, Repeat> repeats_;  // Repeats of each text.
};

// Returns " (for 12 s now)" for the end of a repeated line, and "" for zero.
std::string LastsText(absl::Duration lasts);

}  // namespace nereus
