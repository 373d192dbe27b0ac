#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function with the error of `expression`, a Status
// or a StatusOr, or is the value of that StatusOr:
//
//   const Plan plan = NEREUS_TRY(MakePlan(options));
//   NEREUS_TRY(plan.Check());
//
// A macro is the only way to return from the caller. It stands as a whole
// statement, as all that is right of an assignment, or as the operand of
// `return`. It never stands within an initializer list: GCC and clang do not
// destroy the members that were built before the return.
#define NEREUS_TRY(...)                                   \
  __extension__({                                         \
    auto nereus_result_ = (__VA_ARGS__);                  \
    if (!nereus_result_.ok()) [[unlikely]] {              \
      return nereus::StatusOf(std::move(nereus_result_)); \
    }                                                     \
    nereus::ValueOf(std::move(nereus_result_));           \
  })

namespace nereus {

// Parts of the macro above.
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

}  // namespace nereus
