#include "common/base/log_repeats.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Shortest and longest time between two lines.
constexpr absl::Duration kShortest = absl::Seconds(5);
constexpr absl::Duration kLongest = absl::Minutes(1);

// Time after which a text that was not noted again is forgotten.
constexpr absl::Duration kKeptFor = absl::Minutes(2);

}  // namespace

bool LogPace::IsDue(absl::Duration lasted) {
  if (lasted < next_) return false;
  next_ = lasted + std::clamp(lasted, kShortest, kLongest);
  return true;
}

std::optional<absl::Duration> LogRepeats::Note(const std::string& what,
                                               absl::Time now) {
  if (repeats_.count(what) == 0) Forget(now);
  Repeat& repeat =
      repeats_.try_emplace(what, Repeat{now, now, {}}).first->second;
  if (now - repeat.noted_at > kKeptFor) repeat = {now, now, {}};
  repeat.noted_at = now;
  const absl::Duration lasts = now - repeat.since;
  if (!repeat.pace.IsDue(lasts)) return std::nullopt;
  return lasts;
}

void LogRepeats::Forget(absl::Time now) {
  std::erase_if(repeats_, [&](const auto& entry) {
    return now - entry.second.noted_at > kKeptFor;
  });
  if (repeats_.size() < kKeptMax) return;
  repeats_.erase(
      absl::c_min_element(repeats_, [](const auto& a, const auto& b) {
        return a.second.noted_at < b.second.noted_at;
      }));
}

std::string LastsText(absl::Duration lasts) {
  if (lasts <= absl::ZeroDuration()) return "";
  return absl::StrCat(" (for ", absl::ToInt64Seconds(lasts), " s now)");
}

}  // namespace nereus
