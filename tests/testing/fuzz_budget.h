#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/testing/test_seed.h"

namespace nereus {

// Gives a fuzz test its seeds until the time of the test is over:
//
//   FuzzBudget budget;
//   while (budget.Next()) {
//     SCOPED_TRACE(ReplayHint(budget.seed()));
//     ...
//   }
//   EXPECT_GT(budget.runs(), 0u);
//
// The seeds are 0, 1, 2 and so on. The time is NEREUS_FUZZ_SECONDS, or 2 s if
// the variable is not set. If NEREUS_TEST_SEED is set, it is the only seed, so
// a run must depend on nothing but its seed.
class FuzzBudget {
 public:
  FuzzBudget() : end_(absl::Now() + Duration()) {
    if (const char* seed = std::getenv("NEREUS_TEST_SEED")) {
      only_ = true;
      seed_ = std::strtoull(seed, nullptr, 10);
    }
  }

  // Goes on to the next seed. Returns false if there is none: the time is over,
  // or the only seed has run. The first call returns true.
  bool Next() {
    if (only_) return runs_++ == 0;
    if (runs_ > 0 && absl::Now() >= end_) return false;
    seed_ = runs_++;
    return true;
  }

  uint64_t seed() const { return seed_; }  // Current seed.
  // Number of seeds so far. Above 0 after the first Next.
  uint64_t runs() const { return runs_; }

 private:
  static absl::Duration Duration() {
    const char* seconds = std::getenv("NEREUS_FUZZ_SECONDS");
    return absl::Seconds(seconds == nullptr ? 2.0
                                            : std::strtod(seconds, nullptr));
  }

  const absl::Time end_;  // Time at which the budget is spent.
  bool only_ = false;     // True if NEREUS_TEST_SEED gives the only seed.
  uint64_t seed_ = 0;
  // Number of seeds so far; with an only seed, number of calls of Next.
  uint64_t runs_ = 0;
};

}  // namespace nereus
