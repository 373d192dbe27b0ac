// Feeds hostile output of a process to the buffer that cuts it into lines. Runs
// for two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/line_buffer_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "server/admin/process.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

// Returns random bytes, many of them line feeds.
std::string SomeOutput(Random& random) {
  std::string output = RandomBytes(random, random.Below(200));
  const double line_feeds = random.Uniform() / 2;
  for (char& byte : output) {
    if (random.Chance(line_feeds)) byte = '\n';
  }
  return output;
}

TEST(LineBufferFuzzTest, LinesDoNotDependOnTheArrivalOfOutput) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 100; ++i) {
      const std::string output = SomeOutput(random);
      const size_t line_bytes_max = random.Below(20);
      std::vector<std::string> expected = absl::StrSplit(output, '\n');
      for (std::string& line : expected) {
        if (line.size() <= line_bytes_max) continue;
        const std::string cut = absl::StrCat(" (", line.size() - line_bytes_max,
                                             " more bytes are cut)");
        line = line.substr(0, line_bytes_max) + cut;
      }
      if (expected.back().empty()) expected.pop_back();

      LineBuffer buffer(line_bytes_max);
      std::vector<std::string> lines;
      for (size_t at = 0; at < output.size();) {
        // The memory has exactly this size, so that a sanitizer detects reads
        // beyond it.
        const std::string piece = output.substr(at, random.Below(30));
        const std::vector<char> exact(piece.begin(), piece.end());
        at += piece.size();
        for (std::string& line :
             buffer.Append(absl::string_view(exact.data(), exact.size()))) {
          lines.push_back(std::move(line));
        }
      }
      if (auto line = buffer.Finish()) lines.push_back(*std::move(line));
      ASSERT_EQ(lines, expected);
      ASSERT_EQ(buffer.Finish(), std::nullopt);
    }
  }
  EXPECT_GT(budget.runs(), 0u);
}

}  // namespace
}  // namespace nereus
