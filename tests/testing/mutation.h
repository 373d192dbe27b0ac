#pragma once

#include <cstdint>
#include <string>

#include "common/base/random.h"
#include "common/protocol/frame.h"

namespace nereus {

// Makes a few random changes to `bytes`: flipped bits, extreme bytes,
// insertions, deletions, pieces repeated, the end cut off. May change nothing.
void Mutate(Random& random, std::string& bytes);

// Returns `count` random bytes.
std::string RandomBytes(Random& random, uint64_t count);

// Returns a number near a limit: 0, a power of two, the ends of 32 and 64 bits;
// or any number.
uint64_t EdgeNumber(Random& random);

// Sets a few fields of `header` to other values, plausible or extreme ones.
void MutateHeader(Random& random, FrameHeader& header);

}  // namespace nereus
