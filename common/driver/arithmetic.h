#pragma once

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
void ExecuteArithmetic(const UpdateParameters& update);
void ExecuteArithmetic(const MultiplyFactors& multiply);

// Each function carries out an action that can check values. Returns the first
// value that is NaN or infinite. NotFinite::index is below 0 if all values are
// finite, or if the action asks for no check.
NotFinite ExecuteArithmetic(const Accumulate& accumulate);
NotFinite ExecuteArithmetic(const CheckValues& check);

}  // namespace nereus
