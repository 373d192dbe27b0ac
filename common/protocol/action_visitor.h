#pragma once

#include <type_traits>
#include <variant>

#include "common/protocol/outbox.h"

namespace nereus {

// Cases for the actions that an executor knows, one callable each:
//
//   std::visit(ActionVisitor{[&](const SendFrame& send) { ... },
//                            [&](const ArithmeticAction auto& action) { ... },
//                            ...},
//              action);
//
// There is no default: an executor without a case for some action does not
// compile. So a new action cannot be forgotten in one of the executors, where
// it would be dropped in silence and hang a job. An executor that does nothing
// for an action has an empty case for it, so that a reader sees the decision.
template <typename... Cases>
struct ActionVisitor : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
ActionVisitor(Cases...) -> ActionVisitor<Cases...>;

template <typename T, typename... Types>
concept OneOf = (std::is_same_v<T, Types> || ...);

// Arithmetic on values in host memory, which ExecuteArithmetic
// (common/driver/arithmetic.h) carries out.
template <typename T>
concept ArithmeticAction =
    OneOf<T, CopyValues, ScaleValues, RoundValues, SplitGradient, SelectBlocks,
          UpdateParameters, MultiplyFactors>;

// Arithmetic that may check values. ExecuteArithmetic returns the first value
// that is NaN or infinite, if any.
template <typename T>
concept CheckingAction = OneOf<T, Accumulate, CheckValues>;

// Returns the check that an action carries out. REQUIRES: the action has a
// check.
inline const GradientCheck& CheckOf(const Accumulate& accumulate) {
  return *accumulate.addend.check;
}
inline const GradientCheck& CheckOf(const CheckValues& values) {
  return values.check;
}

// True if the action is carried out even after a check has failed.
inline bool IsMessage(const Action& action) {
  return std::holds_alternative<SendMessage>(action) ||
         std::holds_alternative<EndMembership>(action);
}

}  // namespace nereus
