#pragma once

#include "common/protocol/action_visitor.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"

namespace nereus {

// Each carries out one arithmetic action on the CPU. Actions on buffers without
// memory (Buffer::SizeOnly) do nothing. Lengths that do not fit each other end
// the process: they are a machine's mistake, since machines check input from
// outside.
void ExecuteArithmetic(const CopyValues& copy);
void ExecuteArithmetic(const ScaleValues& scale);
void ExecuteArithmetic(const RoundValues& round);
void ExecuteArithmetic(const SplitGradient& split);
void ExecuteArithmetic(const SelectBlocks& select);
void ExecuteArithmetic(const UpdateParameters& update);
void ExecuteArithmetic(const MultiplyFactors& multiply);

// Each carries out an action that may check values. Returns the first value
// that is NaN or infinite. Its index is below 0 if all values are finite, or if
// the action asks for no check.
NotFinite ExecuteArithmetic(const Accumulate& accumulate);
NotFinite ExecuteArithmetic(const CheckValues& check);

}  // namespace nereus
