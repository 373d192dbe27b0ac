#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "common/protocol/action_visitor.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Each function carries out one arithmetic action on the CPU. If the buffers
// have no memory (Buffer::SizeOnly), it does nothing. If the lengths of the
// buffers do not fit each other, it ends the process: this is a mistake of the
// machine, because machines check all input from outside.
void ExecuteArithmetic(const CopyValues& copy);
void ExecuteArithmetic(const ScaleValues& scale);
void ExecuteArithmetic(const RoundValues& round);
void ExecuteArithmetic(const SplitGradient& split);
void ExecuteArithmetic(const SelectBlocks& select);

// Each function carries out an action that can check values. Returns the first
// value that must not be: in a gradient, one that is NaN, infinite or too large
// (kTooLarge); in a result, one that is NaN or infinite. BadValue::index is
// below 0 if there is none, or if the action asks for no check.
BadValue ExecuteArithmetic(const Accumulate& accumulate);
BadValue ExecuteArithmetic(const CheckValues& check);
BadValue ExecuteArithmetic(const UpdateParameters& update);
// Calls `moved` with the number of rows done, from time to time: about each
// half second on one core.
BadValue ExecuteArithmetic(
    const MultiplyFactors& multiply,
    absl::FunctionRef<void(int64_t)> moved = [](int64_t) {});

}  // namespace nereus
