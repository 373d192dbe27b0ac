#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace nereus {

// Returns the seeds of a property test: 0 .. count - 1. NEREUS_TEST_SEEDS sets
// the count, NEREUS_TEST_SEEDS_TIMES multiplies it, and NEREUS_TEST_SEEDS_MAX
// limits it. NEREUS_TEST_SEED gives a single seed, to replay a failure. Put
// ReplayHint into a SCOPED_TRACE.
inline std::vector<uint64_t> TestSeeds(uint64_t count) {
  if (const char* seed = std::getenv("NEREUS_TEST_SEED")) {
    return {std::strtoull(seed, nullptr, 10)};
  }
  if (const char* more = std::getenv("NEREUS_TEST_SEEDS")) {
    count = std::strtoull(more, nullptr, 10);
  }
  if (const char* times = std::getenv("NEREUS_TEST_SEEDS_TIMES")) {
    count *= std::strtoull(times, nullptr, 10);
  }
  if (const char* most = std::getenv("NEREUS_TEST_SEEDS_MAX")) {
    count = std::min<uint64_t>(count, std::strtoull(most, nullptr, 10));
  }
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 0; seed < count; ++seed) seeds.push_back(seed);
  return seeds;
}

// True if no variable changes the seeds of TestSeeds. Only then may a test
// expect counts over all its seeds.
inline bool TriesAllSeeds() {
  return std::getenv("NEREUS_TEST_SEED") == nullptr &&
         std::getenv("NEREUS_TEST_SEEDS") == nullptr &&
         std::getenv("NEREUS_TEST_SEEDS_TIMES") == nullptr &&
         std::getenv("NEREUS_TEST_SEEDS_MAX") == nullptr;
}

// Returns a line with the command that repeats the current test with only this
// seed.
inline std::string ReplayHint(uint64_t seed) {
  const char* target = std::getenv("TEST_TARGET");  // Set by Bazel.
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string hint = "replay with: bazel test ";
  hint += target != nullptr ? target : "TARGET";
  hint += " --test_env=NEREUS_TEST_SEED=" + std::to_string(seed);
  if (test == nullptr) return hint;
  return hint + " --test_filter=" + test->test_suite_name() + "." +
         test->name();
}

}  // namespace nereus
