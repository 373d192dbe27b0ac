#ifndef NEREUS_COMMON_COMPUTE_FACTOR_PRECISION_H_
#define NEREUS_COMMON_COMPUTE_FACTOR_PRECISION_H_

namespace nereus {

// What a product of factors is made of; sums are float32 always.
enum class FactorPrecision {
  kFloat32,   // As they are.
  kTf32,      // Their first 11 bits.
  kBfloat16,  // Rounded to bfloat16.
};

}  // namespace nereus

#endif  // NEREUS_COMMON_COMPUTE_FACTOR_PRECISION_H_
