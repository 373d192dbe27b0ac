#pragma once

#include <cstdint>
#include <string>

#include "common/base/random.h"
#include "common/protocol/frame.h"

namespace nereus {

// A few random changes to `bytes`: flipped bits, extreme bytes, insertions,
// deletions, pieces repeated, the end cut off. May change nothing.
void Mutate(Random& random, std::string& bytes);

// `count` random bytes.
std::string RandomBytes(Random& random, uint64_t count);

// A number where limits lie: near 0, a power of two, the ends of 32 and 64
// bits, or any.
uint64_t EdgeNumber(Random& random);

// Sets a few fields to other values that are plausible or extreme.
void MutateHeader(Random& random, FrameHeader& header);

}  // namespace nereus
