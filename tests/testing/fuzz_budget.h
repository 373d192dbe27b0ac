#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/testing/test_seed.h"

namespace nereus {

// Counts the seeds of a fuzz test until its time is over:
//
//   FuzzBudget budget;
//   while (budget.Next()) {
//     SCOPED_TRACE(ReplayHint(budget.seed()));
//     ...
//   }
//   EXPECT_GT(budget.runs(), 0u);
//
// Seeds count from 0; the time is 2 s, or NEREUS_FUZZ_SECONDS. With
// NEREUS_TEST_SEED there is that seed alone, once: a test of a seed must depend
// on nothing else.
class FuzzBudget {
 public:
  FuzzBudget() : end_(absl::Now() + Duration()) {
    if (const char* seed = std::getenv("NEREUS_TEST_SEED")) {
      only_ = true;
      seed_ = std::strtoull(seed, nullptr, 10);
    }
  }

  // Goes on to the next seed. False: the time is over.
  bool Next() {
    if (only_) return runs_++ == 0;
    if (runs_ > 0 && absl::Now() >= end_) return false;
    seed_ = runs_++;
    return true;
  }

  uint64_t seed() const { return seed_; }
  uint64_t runs() const { return runs_; }

 private:
  static absl::Duration Duration() {
    const char* seconds = std::getenv("NEREUS_FUZZ_SECONDS");
    return absl::Seconds(seconds == nullptr ? 2.0
                                            : std::strtod(seconds, nullptr));
  }

  const absl::Time end_;  // Time at which the budget is spent.
  bool only_ = false;     // There is a single seed, to replay.
  uint64_t seed_ = 0;
  uint64_t runs_ = 0;  // Number of seeds so far.
};

}  // namespace nereus
