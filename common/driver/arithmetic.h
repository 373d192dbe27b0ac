#pragma once

#include "common/protocol/action_visitor.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Each carries out one arithmetic action on the CPU. Actions on buffers without
// bytes (Buffer::SizeOnly) do nothing. Lengths that do not fit each other end
// the process: machines check what comes from outside.
void ExecuteArithmetic(const CopyValues& copy);
void ExecuteArithmetic(const ScaleValues& scale);
void ExecuteArithmetic(const RoundValues& round);
void ExecuteArithmetic(const SplitGradient& split);
void ExecuteArithmetic(const SelectBlocks& select);
void ExecuteArithmetic(const UpdateParameters& update);
void ExecuteArithmetic(const MultiplyFactors& multiply);

// Carries out an action that checks values, and returns the first value that is
// NaN or infinite; its index is below 0 if all values are finite, or if the
// action asks for no check.
NotFinite ExecuteArithmetic(const Accumulate& accumulate);
NotFinite ExecuteArithmetic(const CheckValues& check);

}  // namespace nereus
