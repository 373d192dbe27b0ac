#include "server/admin/quantity.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"

namespace nereus {
namespace {

// Units, from the largest to the smallest. FormatBitRate takes the first unit
// that is not larger than the rate. ParseBitRate tries "bit" last, because it
// is a suffix of the others.
constexpr std::pair<absl::string_view, double> kBitUnits[] = {
    {"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1.0}};

}  // namespace

absl::StatusOr<double> ParseBitRate(absl::string_view text) {
  if (text == "unlimited") return std::numeric_limits<double>::infinity();
  for (const auto& [unit, factor] : kBitUnits) {
    absl::string_view number = text;
    double value = 0.0;
    if (!absl::ConsumeSuffix(&number, unit)) continue;
    if (absl::SimpleAtod(number, &value) && std::isfinite(value * factor) &&
        value > 0) {
      return value * factor;
    }
    break;
  }
  return InvalidArgumentError(
      "\"", text, "\" is not a bandwidth such as 10Gbit, 400Mbit or unlimited");
}

std::string FormatBitRate(double bits_per_second) {
  if (std::isinf(bits_per_second)) return "unlimited";
  for (const auto& [unit, factor] : kBitUnits) {
    if (bits_per_second >= factor) {
      return absl::StrFormat("%g %s/s", bits_per_second / factor, unit);
    }
  }
  return absl::StrFormat("%g bit/s", bits_per_second);
}

// A number without a unit is a number of seconds, as in JSON files.
absl::StatusOr<absl::Duration> ParseTime(absl::string_view text) {
  double seconds = 0.0;
  absl::Duration time;
  if (absl::SimpleAtod(text, &seconds)) {
    time = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &time)) {
    time = -absl::InfiniteDuration();
  }
  if (!std::isnan(seconds) && time >= absl::ZeroDuration() &&
      time <= kComputeTimeMax) {
    return time;
  }
  return InvalidArgumentError(
      "\"", text, "\" is not a time such as 20us, 0.925s or 0.925, at most ",
      absl::FormatDuration(kComputeTimeMax));
}

absl::StatusOr<absl::Duration> ParseTimeWithUnit(absl::string_view text) {
  double number = 0.0;
  if (absl::SimpleAtod(text, &number) && number != 0) {
    return InvalidArgumentError("\"", text, "\" has no unit, such as in ", text,
                                "s, ", text, "ms or ", text, "us");
  }
  return ParseTime(text);
}

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.3f MB", static_cast<double>(bytes) / 1e6);
}

std::string Seconds(double seconds) {
  return absl::StrFormat("%.4f s", seconds);
}

std::string Seconds(absl::Duration time) {
  return Seconds(absl::ToDoubleSeconds(time));
}

}  // namespace nereus
