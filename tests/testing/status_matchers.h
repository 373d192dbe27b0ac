#pragma once

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"

namespace nereus {

// Matches an absl::Status with `code`, and with `words` in its message.
MATCHER_P2(IsError, code, words,
           std::string(negation ? "is not " : "is ") +
               absl::StatusCodeToString(code) + " with \"" +
               testing::PrintToString(words) + "\"") {
  return arg.code() == code && testing::ExplainMatchResult(
                                   testing::HasSubstr(words),
                                   std::string(arg.message()), result_listener);
}

// Short forms of IsError.
inline auto IsInvalidArgument(const std::string& words) {
  return IsError(absl::StatusCode::kInvalidArgument, words);
}
inline auto IsFailedPrecondition(const std::string& words) {
  return IsError(absl::StatusCode::kFailedPrecondition, words);
}
inline auto IsUnavailable(const std::string& words) {
  return IsError(absl::StatusCode::kUnavailable, words);
}
inline auto IsDataLoss(const std::string& words) {
  return IsError(absl::StatusCode::kDataLoss, words);
}
inline auto IsAlreadyExists(const std::string& words) {
  return IsError(absl::StatusCode::kAlreadyExists, words);
}
inline auto IsNotFound(const std::string& words) {
  return IsError(absl::StatusCode::kNotFound, words);
}

}  // namespace nereus
