#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace nereus {

// What people write for a bandwidth: a number and bit, kbit, Mbit, Gbit or Tbit
// (powers of 1000, a second); or "unlimited". In bits/s, infinite or above 0.
// Errors: kInvalidArgument, with the text.
absl::StatusOr<double> ParseBitRate(absl::string_view text);

// "10 Gbit/s", "unlimited".
std::string FormatBitRate(double bits_per_second);

// A time: "20us", "0.925s", "1m30s"; or a number alone, in seconds. At least 0,
// and finite. Errors: kInvalidArgument, with the text.
absl::StatusOr<absl::Duration> ParseTime(absl::string_view text);

}  // namespace nereus
