// Feeds random texts to the parser of job files. A text is either refused, or a
// job that is written and read back unchanged.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "common/base/random.h"
#include "common/flags/job_file.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

TEST(JobFileFuzzTest, TextIsRefusedOrReadBackUnchanged) {
  const std::string valid = JobText(JobSpec());
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 20; ++i) {
      std::string text =
          random.Chance(0.1) ? RandomBytes(random, random.Below(200)) : valid;
      Mutate(random, text);
      JobSpec spec;
      const auto names = ParseJobText(text, spec);
      if (!names.ok()) {
        ASSERT_EQ(names.status().code(), absl::StatusCode::kInvalidArgument);
        ASSERT_LT(names.status().message().size(), 500);
        continue;
      }
      ++accepted;
      (void)spec.Validate();
      JobSpec again;
      ASSERT_TRUE(ParseJobText(JobText(spec), again).ok());
      ASSERT_EQ(JobText(again), JobText(spec));
    }
  }
  EXPECT_GT(accepted, 0u);
}

}  // namespace
}  // namespace nereus
