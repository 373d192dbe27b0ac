#pragma once

#include <cstdint>
#include <string>

#include "common/base/random.h"
#include "common/protocol/frame.h"

namespace nereus {

// Makes up to five random changes to `bytes`: flips a bit, sets a byte to an
// extreme or random value, inserts, deletes or repeats a few bytes, or cuts off
// the end. May change nothing.
void Mutate(Random& random, std::string& bytes);

// Returns `count` random bytes.
std::string RandomBytes(Random& random, uint64_t count);

// Returns a number near 0, near a power of two or near 2^64, or any number.
uint64_t EdgeNumber(Random& random);

// Sets up to two fields of `header` to random values, plausible or extreme.
void MutateHeader(Random& random, FrameHeader& header);

}  // namespace nereus
