#pragma once

#include <cstdint>

namespace nereus {

// Conversions between float32 and floats of 16 bits: the wire types bfloat16 (8
// bits of exponent, 7 of mantissa) and IEEE 754 binary16, called fp16 (5 bits
// of exponent, 10 of mantissa).
//
// A conversion to 16 bits rounds to nearest, ties to even. Values that are too
// large become infinite, subnormal numbers are kept, and a NaN stays a NaN and
// becomes quiet. A conversion from 16 bits is exact, except that a signaling
// NaN of fp16 becomes quiet, as the CPU's instruction does it. The bits are the
// same on every CPU, with or without vectors.
//
// Each function converts `count` values. Source and destination must not
// overlap.

void ToBfloat16(const float* source, int64_t count, uint16_t* destination);
void FromBfloat16(const uint16_t* source, int64_t count, float* destination);
void ToFloat16(const float* source, int64_t count, uint16_t* destination);
void FromFloat16(const uint16_t* source, int64_t count, float* destination);

// Conversions of one value, without vectors. They are the reference: the
// functions above must give their bits.
namespace scalar {
uint16_t ToBfloat16(float value);
float FromBfloat16(uint16_t bits);
uint16_t ToFloat16(float value);
float FromFloat16(uint16_t bits);
}  // namespace scalar

}  // namespace nereus
