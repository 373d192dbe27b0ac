#pragma once

#include <cstdint>

namespace nereus {

// Seeded generator of random numbers: SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014). It draws the same
// numbers on every computer. The distributions of the C++ standard library do
// not: each library draws its own. Not thread-safe. Not for secrets.
class Random {
 public:
  // Equal seeds give equal numbers.
  explicit Random(uint64_t seed) : state_(seed) {}

  // Returns 64 random bits.
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // Returns a number in [0, bound). Some numbers are likelier than others, by a
  // factor of about 1 + bound / 2^64 at most. REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>(
        (static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

  // Returns a number in [0, 1), a multiple of 2^-53.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  // Returns true with probability `probability`.
  bool Chance(double probability) { return Uniform() < probability; }

 private:
  uint64_t state_;  // Advances by a constant with each number.
};

}  // namespace nereus
