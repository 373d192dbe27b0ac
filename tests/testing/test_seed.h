#ifndef NEREUS_TESTS_TESTING_TEST_SEED_H_
#define NEREUS_TESTS_TESTING_TEST_SEED_H_

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace nereus {

// The seeds of a property test: 0 .. count - 1; as many as NEREUS_TEST_SEEDS
// says; or the one in NEREUS_TEST_SEED, to replay a failure. Put ReplayHint
// into a SCOPED_TRACE.
inline std::vector<uint64_t> TestSeeds(uint64_t count) {
  if (const char* seed = std::getenv("NEREUS_TEST_SEED")) {
    return {std::strtoull(seed, nullptr, 10)};
  }
  if (const char* more = std::getenv("NEREUS_TEST_SEEDS")) {
    count = std::strtoull(more, nullptr, 10);
  }
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 0; seed < count; ++seed) seeds.push_back(seed);
  return seeds;
}

inline std::string ReplayHint(uint64_t seed) {
  return "replay with NEREUS_TEST_SEED=" + std::to_string(seed);
}

}  // namespace nereus

#endif  // NEREUS_TESTS_TESTING_TEST_SEED_H_
