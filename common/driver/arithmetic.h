#pragma once

#include "common/protocol/outbox.h"

namespace nereus {

// Carries out `action` on the CPU if it is arithmetic (values copied, added,
// scaled, parameters updated, factors multiplied) and returns true; false for
// all else. Actions on buffers without bytes (Buffer::SizeOnly) are done by
// doing nothing.
bool ExecuteArithmetic(const Action& action);

// The index in check.values of the first that is NaN or infinite; -1: none is.
int64_t FindNotFinite(const CheckValues& check);

}  // namespace nereus
