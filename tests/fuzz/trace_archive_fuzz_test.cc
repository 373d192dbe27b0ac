// Feeds hostile files to the reader of traces. See messages_fuzz_test.cc.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "server/admin/trace_archive.h"
#include "server/admin/trace_json.h"
#include "server/admin/trace_summary.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"
#include "tests/testing/some_trace.h"

namespace nereus {
namespace {

// Checks what `nereusctl explain` does with a trace that the reader accepts.
void CheckRead(const absl::StatusOr<JobTrace>& trace, uint64_t& accepted) {
  if (!trace.ok()) {
    ASSERT_EQ(trace.status().code(), absl::StatusCode::kDataLoss);
    return;
  }
  ++accepted;
  ASSERT_NE(trace->job, nullptr);
  const absl::StatusOr<TraceSummary> summary = Summarise(*trace);
  if (!summary.ok()) return;
  for (const TraceSummary::Layer& layer : summary->layers) {
    ASSERT_GE(layer.layer, 0);
    ASSERT_LT(layer.layer, std::ssize(trace->job->layers));
  }
}

TEST(TraceArchiveFuzzTest, HostileArchiveIsRefusedOrSound) {
  const std::string file = absl::StrCat(testing::TempDir(), "/fuzzed.tar");
  ASSERT_TRUE(WriteTraceArchive(file, SomeTrace()).ok());
  std::ifstream in(file, std::ios::binary);
  const std::string valid{std::istreambuf_iterator<char>(in),
                          std::istreambuf_iterator<char>()};
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    std::string bytes =
        random.Chance(0.1) ? RandomBytes(random, random.Below(2000)) : valid;
    Mutate(random, bytes);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    CheckRead(ReadTraceArchive(file), accepted);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 0u);
}

TEST(TraceArchiveFuzzTest, HostileJsonIsRefusedOrSound) {
  const std::string valid = FormatTraceJson(SomeTrace());
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    std::string text = valid;
    Mutate(random, text);
    CheckRead(ParseTraceJson(text), accepted);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 0u);
}

}  // namespace
}  // namespace nereus
