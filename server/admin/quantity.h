#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"

namespace nereus {

inline constexpr double kBitsPerByte = 8;

// Parses a bandwidth: a number and bit, kbit, Mbit, Gbit or Tbit (powers of
// 1000, per second), or "unlimited". Returns bits per second, above 0 and
// perhaps infinite. Errors: kInvalidArgument, with the text.
absl::StatusOr<double> ParseBitRate(absl::string_view text);

// Returns a text such as "10 Gbit/s", or "unlimited" for infinity.
std::string FormatBitRate(double bits_per_second);

// Parses a time from 0 to kComputeTimeMax: "20us", "0.925s", "1m30s", or a
// number of seconds. Errors: kInvalidArgument, with the text.
absl::StatusOr<absl::Duration> ParseTime(absl::string_view text);

// Parses a time as ParseTime does, but refuses a number other than 0 without a
// unit.
absl::StatusOr<absl::Duration> ParseTimeWithUnit(absl::string_view text);

// Returns "1234.567 MB", where a megabyte has 1e6 bytes.
std::string Megabytes(int64_t bytes);

// Returns "0.9250 s".
std::string Seconds(double seconds);
std::string Seconds(absl::Duration time);

}  // namespace nereus
