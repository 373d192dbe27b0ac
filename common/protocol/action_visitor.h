#pragma once

#include <type_traits>
#include <variant>

#include "common/protocol/outbox.h"

namespace nereus {

// Set of callables, one for each type of action, for code that carries out
// actions (an executor: a driver, real or simulated):
//
//   std::visit(ActionVisitor{[&](const SendFrame& send) { ... },
//                            [&](const ArithmeticAction auto& action) { ... },
//                            ...},
//              action);
//
// There is no default: an executor that lacks a callable for some action does
// not compile. Otherwise an executor could drop a new action without a message,
// and a job would hang. An executor that must do nothing for an action has an
// empty callable for it, so that a reader sees the decision.
template <typename... Cases>
struct ActionVisitor : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
ActionVisitor(Cases...) -> ActionVisitor<Cases...>;

// True if T is one of `Types`.
template <typename T, typename... Types>
concept OneOf = (std::is_same_v<T, Types> || ...);

// True for actions that compute with values in host memory and check nothing.
// ExecuteArithmetic (common/driver/arithmetic.h) carries them out.
template <typename T>
concept ArithmeticAction =
    OneOf<T, CopyValues, ScaleValues, RoundValues, SplitGradient, SelectBlocks>;

// True for actions that check values, or can. ExecuteArithmetic carries them
// out and returns the first value that must not be, if there is one.
template <typename T>
concept CheckingAction =
    OneOf<T, Accumulate, CheckValues, UpdateParameters, MultiplyFactors>;

// Returns the check of an action. REQUIRES: the action has a check.
inline const ValueCheck& CheckOf(const Accumulate& accumulate) {
  return *accumulate.addend.check;
}
inline const ValueCheck& CheckOf(const CheckValues& values) {
  return values.check;
}
inline const ValueCheck& CheckOf(const UpdateParameters& update) {
  return *update.check;
}
inline const ValueCheck& CheckOf(const MultiplyFactors& multiply) {
  return *multiply.check;
}

// True if a driver carries the action out even after a check has found a NaN or
// an infinity (CheckValues).
inline bool IsMessage(const Action& action) {
  return std::holds_alternative<SendMessage>(action) ||
         std::holds_alternative<EndMembership>(action);
}

}  // namespace nereus
