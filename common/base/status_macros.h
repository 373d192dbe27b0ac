#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function if `expression` is not OK.
#define NEREUS_RETURN_IF_ERROR(expression)           \
  do {                                               \
    absl::Status nereus_status_ = (expression);      \
    if (!nereus_status_.ok()) return nereus_status_; \
  } while (false)

// Declares or assigns `target` from a StatusOr, or returns its error:
//
//   NEREUS_ASSIGN_OR_RETURN(Plan plan, MakePlan(options));
#define NEREUS_ASSIGN_OR_RETURN(target, expression)                         \
  NEREUS_ASSIGN_OR_RETURN_IMPL_(NEREUS_CONCAT_(nereus_statusor_, __LINE__), \
                                target, expression)

// Parts of the macro above: a temporary with a name that no other line uses.
#define NEREUS_CONCAT_IMPL_(a, b) a##b
#define NEREUS_CONCAT_(a, b) NEREUS_CONCAT_IMPL_(a, b)
#define NEREUS_ASSIGN_OR_RETURN_IMPL_(result, target, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) return std::move(result).status();            \
  target = *std::move(result)
