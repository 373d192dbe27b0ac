#pragma once

#include <utility>

#include "absl/status/status.h"    // IWYU pragma: export
#include "absl/status/statusor.h"  // IWYU pragma: export
#include "absl/strings/str_cat.h"  // IWYU pragma: export

// Evaluates an expression, which is a Status or a StatusOr. If the result is an
// error, returns the error from the calling function. Otherwise the macro's
// value is the value of the StatusOr:
//
//   const Plan plan = NEREUS_TRY(MakePlan(options));
//   NEREUS_TRY(plan.Check());
//
// Only a macro can return from the calling function. NEREUS_TRY stands as a
// whole statement, as the whole right side of an assignment, or as the operand
// of `return`. Never write it within an initializer list: GCC and clang would
// not destroy the members that were built before the return.
#define NEREUS_TRY(...)                                   \
  __extension__({                                         \
    auto nereus_result_ = (__VA_ARGS__);                  \
    if (!nereus_result_.ok()) [[unlikely]] {              \
      return nereus::StatusOf(std::move(nereus_result_)); \
    }                                                     \
    nereus::ValueOf(std::move(nereus_result_));           \
  })

namespace nereus {

// Functions that NEREUS_TRY uses.
inline absl::Status StatusOf(absl::Status&& status) {
  return std::move(status);
}
template <typename T>
absl::Status StatusOf(absl::StatusOr<T>&& result) {
  return std::move(result).status();
}
inline void ValueOf(absl::Status&& /*status*/) {}
template <typename T>
T ValueOf(absl::StatusOr<T>&& result) {
  return *std::move(result);
}

// Defines AbortedError, AlreadyExistsError and so on. Each returns an error of
// the code in its name. The message is the parts, joined by absl::StrCat:
//
//   return NotFoundError("layer ", layer, " of ", layer_count);
#define NEREUS_ERROR_(Code)                           \
  template <typename... Parts>                        \
  absl::Status Code##Error(const Parts&... parts) {   \
    return absl::Code##Error(absl::StrCat(parts...)); \
  }
NEREUS_ERROR_(Aborted)
NEREUS_ERROR_(AlreadyExists)
NEREUS_ERROR_(Cancelled)
NEREUS_ERROR_(DataLoss)
NEREUS_ERROR_(DeadlineExceeded)
NEREUS_ERROR_(FailedPrecondition)
NEREUS_ERROR_(Internal)
NEREUS_ERROR_(InvalidArgument)
NEREUS_ERROR_(NotFound)
NEREUS_ERROR_(OutOfRange)
NEREUS_ERROR_(PermissionDenied)
NEREUS_ERROR_(ResourceExhausted)
NEREUS_ERROR_(Unavailable)
NEREUS_ERROR_(Unimplemented)
#undef NEREUS_ERROR_

// Returns `status` with the parts put before its message. The code stays.
template <typename... Parts>
absl::Status Prefixed(const absl::Status& status, const Parts&... parts) {
  return absl::Status(status.code(), absl::StrCat(parts..., status.message()));
}

}  // namespace nereus
